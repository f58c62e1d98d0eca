//! Options that cannot be in force together.

/// Reasons against segments of more than 64 KiB.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another option contradicts.
    #[error("option {option}: true is impossible with {other}: {reason}; change it, or remove {option}")]
    Contradiction {
        /// The option.
        option: &'static str,
        /// The other option and its value.
        other: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The kernel's tunnel devices send no such segments.
    #[error(
        "option {option}: true is impossible with {other}: this kernel's {kind} devices send at most {size} bytes; use \
         routing-mode=native, another kernel, or remove {option}"
    )]
    Tunnel {
        /// The option.
        option: &'static str,
        /// The option that needs the device.
        other: &'static str,
        /// The kind of the device.
        kind: &'static str,
        /// The largest segment of such a device.
        size: u32,
    },
    /// The kernel could not be asked.
    #[error(transparent)]
    Netlink(#[from] devices::NetlinkError),
}

//! Errors of desired devices.

use std::sync::Arc;

/// A device that is not in the kernel, or cannot be desired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is none of a device.
    #[error("device {name:?}: a name has 1 to 15 characters without blanks and slashes")]
    Name {
        /// The name.
        name: String,
    },
    /// The VLAN id is out of range.
    #[error("device {name}: VLAN {id} is out of range, 1 to 4094 are valid")]
    VlanId {
        /// The device.
        name: String,
        /// The id.
        id: u16,
    },
    /// Another owner desires a device of this name.
    #[error("device {name}: {owner} desires one of this name already")]
    Owned {
        /// The device.
        name: Arc<str>,
        /// Its owner.
        owner: Arc<str>,
    },
    /// There is a device of this name that this agent has not created.
    #[error("device {name}: exists already ({kind}), made by another process; it is left as it is")]
    Foreign {
        /// The device.
        name: Arc<str>,
        /// Its kind.
        kind: String,
    },
    /// The parent does not exist.
    #[error("device {name}: no parent device {parent}")]
    NoParent {
        /// The device.
        name: Arc<str>,
        /// The parent.
        parent: Arc<str>,
    },
    /// The kernel refused the request.
    #[error(transparent)]
    Netlink(#[from] devices::NetlinkError),
    /// The log of devices could not be read or written.
    #[error(transparent)]
    Log(#[from] state_file::Error),
}

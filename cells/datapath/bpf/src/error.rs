//! Errors of the kernel's bpf objects.

use std::io;
use std::path::PathBuf;

use crate::spec::Layout;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why the entries of a pinned map cannot be migrated to a map of the desired layout.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutMismatch {
    /// The types, keys or values differ.
    #[error("{0}")]
    Incompatible(&'static str),
    /// The old map cannot be read.
    #[error("its entries cannot be read ({0})")]
    Read(#[source] Error),
    /// The new map cannot be written.
    #[error("its entries cannot be copied ({0})")]
    Copy(#[source] Error),
    /// The new map is too small.
    #[error("it holds {entries} entries")]
    TooMany {
        /// Entries of the old map.
        entries: usize,
    },
    /// The new array is too small.
    #[error("rows from {first} on are in use")]
    InUse {
        /// The first index that the new array does not have.
        first: usize,
    },
}

/// An error of a bpf object, a pin or a tc filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A bpf(2) command failed.
    #[error("{operation} {object}: {source}")]
    Syscall {
        /// The bpf command in words, such as `create map`.
        operation: &'static str,
        /// The object: its name, pin or id.
        object: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A map is full.
    #[error("map {name} is full: it holds {entries} entries")]
    Full {
        /// The map's name.
        name: String,
        /// The map's capacity in entries.
        entries: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A pinned map has another layout than the desired one, and its entries cannot be migrated.
    #[error(
        "pinned map {path} is {found}, but {wanted} is wanted: {why}",
        path = .path.display()
    )]
    Layout {
        /// The pin.
        path: PathBuf,
        /// The layout of the pinned map.
        found: Box<Layout>,
        /// The layout that the agent or its programs require.
        wanted: Box<Layout>,
        /// The reason.
        why: Box<LayoutMismatch>,
    },
    /// The key or value of a map has another size than the typed handle.
    #[error(
        "map {name} has {found_key}-byte keys and {found_value}-byte values, the handle wants {key} and {value}"
    )]
    HandleSize {
        /// The map's name.
        name: String,
        /// Size of the map's keys in bytes.
        found_key: u32,
        /// Size of the map's values in bytes.
        found_value: u32,
        /// Size of the handle's keys in bytes.
        key: usize,
        /// Size of the handle's values in bytes.
        value: usize,
    },
    /// A per-CPU handle on a plain map, or a plain handle on a per-CPU map.
    #[error("map {name} is of type {found}, which the handle cannot read")]
    HandleType {
        /// The map's name.
        name: String,
        /// The map's type.
        found: crate::MapType,
    },
    /// A file operation on the bpf file system failed.
    #[error("{operation} {path}: {source}", path = .path.display())]
    File {
        /// The failed operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The path is not on a bpf file system.
    #[error("{path} is not on a bpf file system; mount one there: mount -t bpf bpf {path}", path = .path.display())]
    NotBpfFs {
        /// The path of the root.
        path: PathBuf,
    },
    /// No bpf file system is mounted there, and this process may not mount one.
    #[error(
        "no bpf file system is mounted on {path}, and this process may not mount one: run \
         mount -t bpf bpf {path}, or start it with CAP_SYS_ADMIN",
        path = .path.display()
    )]
    NotMounted {
        /// The expected mount point.
        path: PathBuf,
    },
    /// An object file could not be parsed or linked.
    #[error("eBPF object {object}: {reason}")]
    Object {
        /// The object's name.
        object: String,
        /// The fault.
        reason: String,
    },
    /// The verifier rejected a program; the end of its log has the reason.
    #[error("the kernel refused program {program}: {source}; end of the verifier's log:\n{log}")]
    Verifier {
        /// The program's name.
        program: String,
        /// The last lines of the log.
        log: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel lacks a feature that the agent requires.
    #[error("the kernel lacks {feature}, needed for {purpose} (Linux {since} or newer has it): {source}")]
    Feature {
        /// The missing feature.
        feature: &'static str,
        /// Its purpose.
        purpose: &'static str,
        /// The first Linux release that has it.
        since: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A netlink request about a tc filter failed.
    #[error("{operation} on interface {ifindex}: {source}")]
    Tc {
        /// The failed operation.
        operation: &'static str,
        /// The interface's index.
        ifindex: u32,
        /// The kernel's error.
        #[source]
        source: netlink::Error,
    },
}

impl Error {
    pub(crate) fn syscall(operation: &'static str, object: impl Into<String>, source: io::Error) -> Error {
        Error::Syscall { operation, object: object.into(), source }
    }

    pub(crate) fn file(operation: &'static str, path: &std::path::Path, source: io::Error) -> Error {
        Error::File { operation, path: path.to_owned(), source }
    }

    /// Returns the kernel's error number, if the error is the kernel's.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Syscall { source, .. }
            | Error::Full { source, .. }
            | Error::File { source, .. }
            | Error::Verifier { source, .. }
            | Error::Feature { source, .. } => source.raw_os_error(),
            Error::Tc { source, .. } => source.errno(),
            _ => None,
        }
    }

    /// Whether the requested object does not exist: pin, map entry, filter, link or interface.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO))
    }

    /// Whether the object exists already: a pin of that name, a filter, an interface.
    pub fn is_existing(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether trying again later may succeed without any change.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Full { .. })
            || matches!(self, Error::Tc { source, .. } if source.is_retryable())
            || matches!(
                self.errno(),
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM | libc::ENOSPC)
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_is_named_with_its_purpose() {
        let error = Error::Feature {
            feature: "maps of maps",
            purpose: "one policy map for each endpoint",
            since: "4.12",
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        insta::assert_snapshot!(error, @"the kernel lacks maps of maps, needed for one policy map for each endpoint (Linux 4.12 or newer has it): Invalid argument (os error 22)");
        assert!(!error.is_retryable() && !error.is_not_found());
    }

    #[test]
    fn errors_tell_whether_to_try_again() {
        let of = |errno| Error::syscall("update map", "cilium_lxc", io::Error::from_raw_os_error(errno));
        assert!(of(libc::EBUSY).is_retryable());
        assert!(of(libc::ENOENT).is_not_found());
        insta::assert_snapshot!(of(libc::E2BIG), @"update map cilium_lxc: Argument list too long (os error 7)");
    }
}

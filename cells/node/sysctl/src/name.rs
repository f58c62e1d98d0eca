//! Names of kernel settings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use crate::Error;

/// The name of a kernel setting: the parts of its path below `/proc/sys`. A part may contain dots, as names of
/// interfaces do.
///
/// ```
/// use sysctl::Name;
/// let forwarding = Name::new(["net", "ipv4", "conf", "eth0.100", "forwarding"]).unwrap();
/// assert_eq!(forwarding.to_string(), "net.ipv4.conf.eth0.100.forwarding");
/// assert_eq!("net/ipv4/conf/eth0.100/forwarding".parse(), Ok(forwarding));
/// assert_eq!("net.ipv4.ip_forward".parse(), Name::new(["net", "ipv4", "ip_forward"]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Vec<String>);

impl Name {
    /// Builds a name from the parts of its path.
    pub fn new<P: Into<String>>(parts: impl IntoIterator<Item = P>) -> Result<Self, Error> {
        let parts: Vec<String> = parts.into_iter().map(Into::into).collect();
        let bad = |part: &String| {
            part.is_empty() || part == "." || part == ".." || part.contains(['/', '\0', '\n'])
        };
        if parts.is_empty() || parts.iter().any(bad) {
            return Err(Error::Name { name: parts.join(".") });
        }
        Ok(Self(parts))
    }

    /// Returns the parts of the path.
    #[must_use]
    pub fn parts(&self) -> &[String] {
        &self.0
    }

    /// Returns the path of the setting's file below this mount point of procfs.
    pub(crate) fn path(&self, procfs: &Path) -> PathBuf {
        let mut path = procfs.join("sys");
        path.extend(&self.0);
        path
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Splits at slashes, or at dots if there are no slashes.
impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let separator = if text.contains('/') { '/' } else { '.' };
        Self::new(text.split(separator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_folder() {
        for bad in ["", "net..x", "net/../../etc/passwd", "net/./x", "/net"] {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(
                error.ends_with("write it as net.ipv4.ip_forward or net/ipv4/conf/eth0.1/rp_filter"),
                "{error}"
            );
        }
        let name: Name = "kernel.timer_migration".parse().unwrap();
        assert_eq!(name.path(Path::new("/host/proc")), Path::new("/host/proc/sys/kernel/timer_migration"));
    }
}

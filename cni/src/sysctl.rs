//! Sysctls of the current network namespace of the thread.

use crate::error::Error;
use std::fs;
use std::path::PathBuf;

/// Returns the path of a key. Keys are written with slashes, because interface names may contain dots.
fn path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}

pub(crate) fn set(key: &str, value: &str) -> Result<(), Error> {
    fs::write(path(key), value).map_err(|source| Error::Sysctl {
        key: key.into(),
        value: value.into(),
        source,
    })
}

pub(crate) fn get(key: &str) -> std::io::Result<String> {
    fs::read_to_string(path(key)).map(|text| text.trim().to_owned())
}

/// Adds ports to those that the kernel does not choose as ephemeral ports.
pub(crate) fn append_reserved_ports(ports: &str) -> Result<(), Error> {
    const KEY: &str = "net/ipv4/ip_local_reserved_ports";
    let present = get(KEY).unwrap_or_default();
    set(KEY, &joined(&present, ports))
}

fn joined(present: &str, more: &str) -> String {
    if present.is_empty() { more.to_owned() } else { format!("{present},{more}") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ports_are_added_to_those_present() {
        assert_eq!(super::joined("", "8472"), "8472");
        assert_eq!(super::joined("1-3", "8472,9000"), "1-3,8472,9000");
    }
}

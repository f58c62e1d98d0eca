//! The kernel's settings as files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::plan::Kernel;
use crate::ports::Ports;

/// More than the longest list: each second port, 6 bytes each.
const MAX_LIST: usize = 256 * 1024;
/// Less than a page.
const MAX_PART: usize = 4000;

/// The files of one mounted procfs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    procfs: PathBuf,
}

impl Files {
    pub(crate) fn new(procfs: &str) -> Files {
        Files { procfs: procfs.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.procfs.join("sys").join(name)
    }

    fn reserved(&self) -> PathBuf {
        self.path("net/ipv4/ip_local_reserved_ports")
    }

    /// Reads both settings. They are files of the kernel: no disk is involved.
    pub(crate) fn read(&self) -> Result<Kernel, Error> {
        let (range, reserved) = (self.path("net/ipv4/ip_local_port_range"), self.reserved());
        let bounds = Ports::bounds(&read_once(&range)?);
        let ephemeral = bounds.map_err(|source| Error::Form { path: range, source })?;
        let list = read_once(&reserved)?.parse();
        Ok(Kernel { ephemeral, reserved: list.map_err(|source| Error::Form { path: reserved, source })? })
    }

    /// Returns the id of this boot, since which reservations have been in the kernel; empty if it is not known.
    pub(crate) fn boot(&self) -> String {
        let id = read_once(&self.path("kernel/random/boot_id")).unwrap_or_default();
        id.trim().to_owned()
    }

    /// Adds ports to those that are reserved.
    pub(crate) fn add(&self, ports: &Ports) -> Result<(), Error> {
        self.write(ports, 1)
    }

    /// Replaces the ports that are reserved.
    pub(crate) fn replace(&self, ports: &Ports) -> Result<(), Error> {
        self.write(ports, 0)
    }

    /// Writes ports; the first part at an offset. A part behind the beginning of the file is added to the kernel's ports
    /// (`proc_do_large_bitmap`), so that what another process adds at the same time is not lost.
    fn write(&self, ports: &Ports, mut offset: u64) -> Result<(), Error> {
        let path = self.reserved();
        let text = ports.to_string();
        let mut write = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            for part in parts(&text) {
                file.write_all_at(format!("{part}\n").as_bytes(), offset)?;
                offset = 1;
            }
            Ok(())
        };
        let written = write();
        written.map_err(|source| Error::Setting { operation: "write", path, source })
    }
}

/// Splits a list between its elements, so that no part is longer than a page, which the kernel takes at once. An empty list
/// has one empty part.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), list);
    while rest.len() > MAX_PART {
        let at = rest[..MAX_PART].rfind(',').unwrap_or(MAX_PART);
        parts.push(&rest[..at]);
        rest = rest[at..].trim_start_matches(',');
    }
    parts.push(rest);
    parts
}

/// Reads a setting by one call: the kernel truncates a list to the first one's buffer.
fn read_once(path: &Path) -> Result<String, Error> {
    let read = || {
        let mut buffer = vec![0; MAX_LIST];
        let length = File::open(path)?.read(&mut buffer)?;
        buffer.truncate(length);
        String::from_utf8(buffer).map_err(io::Error::other)
    };
    read().map_err(|source| Error::Setting { operation: "read", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_split_between_elements() {
        assert_eq!(parts(""), [""]);
        assert_eq!(parts("1-3,5"), ["1-3,5"]);
        let list: Vec<String> = (10_000..12_000).map(|port| port.to_string()).collect();
        let list = list.join(",");
        let split = parts(&list);
        assert!(split.len() == 4 && split.iter().all(|part| part.len() <= MAX_PART));
        assert_eq!(split.join(","), list);
    }
}

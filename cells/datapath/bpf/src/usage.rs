//! Kernel memory of maps and programs, as descriptors of the process and pins lead to them: listing all of the kernel
//! needs `CAP_SYS_ADMIN`.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::bpffs::names_in;
use crate::error::{Error, Result};
use crate::sys;

/// The maximum number of descriptors and of pins of a folder that are read.
const MAX_READ: usize = 16_384;

/// Maps and programs with their kernel memory. Each is counted once, however many descriptors and pins lead to it.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Maps.
    pub maps: u64,
    /// Kernel memory of the maps in bytes.
    pub map_bytes: u64,
    /// Programs.
    pub programs: u64,
    /// Kernel memory of the programs in bytes.
    pub program_bytes: u64,
    map_ids: HashSet<u32>,
    program_ids: HashSet<u32>,
}

/// The kernel's description of an open map or program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FdInfo {
    map_id: Option<u32>,
    program_id: Option<u32>,
    bytes: u64,
}

impl FdInfo {
    fn parse(text: &str) -> FdInfo {
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let id = |name| number(name).and_then(|id: u64| u32::try_from(id).ok());
        FdInfo {
            map_id: id("map_id:"),
            program_id: id("prog_id:"),
            bytes: number("memlock:").unwrap_or_default(),
        }
    }
}

/// Returns the kernel memory of a map in bytes.
pub(crate) fn memory(fd: BorrowedFd<'_>) -> Result<u64> {
    let (info, path) = (fdinfo(fd.as_raw_fd()), fdinfo_path(fd.as_raw_fd()));
    Ok(info.map_err(|source| Error::file("read", &path, source))?.bytes)
}

fn fdinfo_path(fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fdinfo/{fd}"))
}

fn fdinfo(fd: i32) -> io::Result<FdInfo> {
    Ok(FdInfo::parse(&std::fs::read_to_string(fdinfo_path(fd))?))
}

impl Usage {
    /// Adds the maps and programs that this process has open.
    ///
    /// # Errors
    /// The descriptors cannot be listed.
    pub fn add_descriptors(&mut self) -> Result<()> {
        let folder = Path::new("/proc/self/fd");
        let open = std::fs::read_dir(folder).map_err(|source| Error::file("read folder", folder, source))?;
        for entry in open.take(MAX_READ).flatten() {
            // A descriptor that another thread has closed meanwhile has neither target nor description.
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            if !["anon_inode:bpf-map", "anon_inode:bpf-prog"].iter().any(|kind| target == Path::new(kind)) {
                continue;
            }
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(info) = number.and_then(|number| fdinfo(number).ok()) {
                self.add(&info);
            }
        }
        Ok(())
    }

    /// Adds the maps that are pinned in a folder; none if it does not exist. Pins that cannot be opened are left out.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn add_pinned_maps(&mut self, folder: &Path) -> Result<()> {
        for name in names_in(folder)?.iter().take(MAX_READ) {
            let Ok(fd) = sys::open_pin(&folder.join(name)) else { continue };
            if let Ok(info) = fdinfo(fd.as_raw_fd()) {
                self.add(&info);
            }
        }
        Ok(())
    }

    fn add(&mut self, info: &FdInfo) {
        if info.map_id.is_some_and(|id| self.map_ids.insert(id)) {
            self.maps += 1;
            self.map_bytes += info.bytes;
        }
        if info.program_id.is_some_and(|id| self.program_ids.insert(id)) {
            self.programs += 1;
            self.program_bytes += info.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_the_kernel_are_read() {
        let map = "pos:\t0\nflags:\t02000002\nmap_type:\t1\nmemlock:\t84992\nmap_id:\t34\nfrozen:\t0\n";
        assert_eq!(FdInfo::parse(map), FdInfo { map_id: Some(34), program_id: None, bytes: 84_992 });
        let program = "pos:\t0\nprog_type:\t3\nmemlock:\t4096\nprog_id:\t7\nrun_time_ns:\t0\n";
        assert_eq!(FdInfo::parse(program), FdInfo { map_id: None, program_id: Some(7), bytes: 4096 });
        assert_eq!(FdInfo::parse("pos:\t0\n"), FdInfo::default());
    }

    #[test]
    fn each_map_and_program_counts_once() {
        let mut usage = Usage::default();
        let map = FdInfo { map_id: Some(1), program_id: None, bytes: 10 };
        for info in [
            map,
            map,
            FdInfo { map_id: Some(2), ..map },
            FdInfo { map_id: None, program_id: Some(1), bytes: 5 },
        ] {
            usage.add(&info);
        }
        assert_eq!((usage.maps, usage.map_bytes, usage.programs, usage.program_bytes), (2, 20, 1, 5));
    }
}

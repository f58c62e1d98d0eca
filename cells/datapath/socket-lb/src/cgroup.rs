//! The cgroup whose sockets are translated.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use crate::error::Error;

/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// An open cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    /// The kernel's id, which is the inode number of its folder.
    pub(crate) id: u64,
    folder: OwnedFd,
}

impl Cgroup {
    /// Opens a folder, which must be a cgroup v2.
    pub(crate) fn open(path: &Path) -> Result<Cgroup, Error> {
        if !is_cgroup2(path) {
            return Err(Error::NoCgroup { path: path.to_owned() });
        }
        let failed = |operation| {
            move |error: rustix::io::Errno| Error::Folder {
                operation,
                path: path.to_owned(),
                source: error.into(),
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let id = rustix::fs::fstat(&folder).map_err(failed("stat"))?.st_ino;
        Ok(Cgroup { path: path.to_owned(), id, folder })
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

fn is_cgroup2(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == CGROUP2_MAGIC)
}

/// The inode number of the initial cgroup namespace (`PROC_CGROUP_INIT_INO` of the kernel).
const INITIAL_NAMESPACE: u64 = 0xefff_fffb;

/// Mounts the cgroup v2 hierarchy at the path, unless the path is in one. Needs `CAP_SYS_ADMIN`.
pub fn mount(path: &Path) -> Result<(), Error> {
    if is_cgroup2(path) {
        return Ok(());
    }
    // The root of a mount is that of the process's namespace: in a container it would be the container's own cgroup, and
    // programs there would meet no sockets but the agent's.
    if fs::metadata("/proc/self/ns/cgroup").is_ok_and(|namespace| namespace.ino() != INITIAL_NAMESPACE) {
        return Err(Error::NoCgroup { path: path.to_owned() });
    }
    let failed =
        |operation| move |source: io::Error| Error::Folder { operation, path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(failed("create folder"))?;
    rustix::mount::mount("none", path, "cgroup2", MountFlags::empty(), None)
        .map_err(|error| failed("mount a cgroup v2 on")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_cgroup_is_named_with_the_remedy() {
        for path in ["/proc", "/nowhere"] {
            let error = Cgroup::open(Path::new(path)).unwrap_err().to_string();
            for part in ["cgroup-root", path, "mount -t cgroup2 none", "CAP_SYS_ADMIN"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}

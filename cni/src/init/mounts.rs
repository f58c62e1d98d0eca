//! File systems that the agent needs, mounted where nothing is mounted yet.

use super::{InitError, file_error, say};
use crate::netns;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Enters namespaces of the machine's first process, whose `/proc` is mounted at `host_proc`. Without it the step acts on
/// its own namespaces.
pub(super) fn enter_host(host_proc: Option<&str>, kinds: &[&str]) -> Result<(), InitError> {
    let Some(proc) = host_proc else { return Ok(()) };
    let path = |kind: &&str| PathBuf::from(proc).join("1/ns").join(kind);
    // All of them first: the paths are gone in the other mount namespace.
    let open = |path: PathBuf| File::open(&path).map_err(file_error("open", &path)).map(|file| (path, file));
    let namespaces: Vec<(PathBuf, File)> = kinds.iter().map(path).map(open).collect::<Result<_, _>>()?;
    for (path, namespace) in &namespaces {
        netns::join(namespace.as_fd()).map_err(file_error("enter", path))?;
    }
    Ok(())
}

/// Mounts a file system of this type unless something is mounted there; another type is left, with a warning.
pub(super) fn mount(path: &Path, kind: &str, out: &mut dyn Write) -> Result<(), InitError> {
    let table = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(table).map_err(file_error("read", table))?;
    match mounted(&mounts, path) {
        Some(found) if found == kind => say(out, &format!("{kind} is mounted at {}", path.display())),
        Some(found) => {
            say(out, &format!("warning: {found} is mounted at {}, not {kind}; it stays", path.display()));
        }
        None => {
            let mut folder = DirBuilder::new();
            folder.recursive(true).mode(0o755).create(path).map_err(file_error("create", path))?;
            mount_new(path, kind).map_err(file_error("mount a file system at", path))?;
            say(out, &format!("mounted {kind} at {}", path.display()));
        }
    }
    Ok(())
}

/// Returns the type of the topmost file system at a path, by the text of `/proc/self/mountinfo` (proc(5)).
fn mounted<'a>(mountinfo: &'a str, path: &Path) -> Option<&'a str> {
    let of_line = |line: &'a str| {
        let (mount, kind) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        (Path::new(&point) == path).then(|| kind.split(' ').next())?
    };
    mountinfo.lines().rev().find_map(of_line)
}

#[expect(unsafe_code, reason = "mount(2) has no wrapper in std")]
fn mount_new(path: &Path, kind: &str) -> io::Result<()> {
    let target = CString::new(path.as_os_str().as_bytes())?;
    let kind = CString::new(kind)?;
    // JUSTIFICATION: std cannot mount, and an init container without a shell has no mount(8).
    // SAFETY: all pointers are to strings with a final zero that outlive the call; no data is passed.
    let code = unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 0:21 / / rw - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/bpf rw,nosuid shared:9 - bpf bpf rw
31 22 0:27 / /run/a\\040b rw - tmpfs tmpfs rw
32 31 0:28 / /run/a\\040b rw master:3 shared:4 - cgroup2 none rw
";

    #[test]
    fn the_topmost_file_system_counts() {
        assert_eq!(mounted(TABLE, Path::new("/sys/fs/bpf")), Some("bpf"));
        assert_eq!(mounted(TABLE, Path::new("/run/a b")), Some("cgroup2"));
        assert_eq!(mounted(TABLE, Path::new("/sys/fs")), None);
        assert_eq!(mounted("garbage\n", Path::new("/")), None);
    }

    #[test]
    fn a_missing_process_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = enter_host(folder.path().to_str(), &["mnt"]).unwrap_err().to_string();
        assert!(error.contains("1/ns/mnt"), "{error}");
    }
}

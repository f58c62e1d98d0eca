//! A cgroup that limits the memory of processes started in it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A cgroup below the test's own with a memory limit, in the hierarchy that has the controller. The cgroups above
/// are not changed.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    pub(crate) folder: PathBuf,
}

impl MemoryGroup {
    /// Creates the group; [`ErrorKind::Unsupported`] if the controller is not available in any hierarchy.
    pub(crate) fn new(name: &str, limit: u64) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (below, file) = first(&mounts, &own).or_else(|| second(&mounts, &own)).ok_or_else(|| {
            io::Error::new(ErrorKind::Unsupported, "no cgroup may have the memory controller")
        })?;
        let group = Self { folder: below.join(name) };
        fs::create_dir(&group.folder).map_err(|e| io::Error::new(ErrorKind::Unsupported, e))?;
        fs::write(group.folder.join(file), limit.to_string())?;
        // Disable swap, which would extend the limit; not every kernel has the file.
        let _ = fs::write(group.folder.join("memory.swap.max"), "0");
        Ok(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let removed = crate::try_wait_until(std::time::Duration::from_secs(2), || {
            fs::remove_dir(&self.folder).map_err(|e| e.to_string())
        });
        if let Err(error) = removed {
            use std::io::Write;
            let _ = writeln!(io::stderr(), "cgroup {}: {error}", self.folder.display());
        }
    }
}

/// Returns the parent group in version 1: the test's own, and the file of the limit.
fn first(mounts: &str, own: &str) -> Option<(PathBuf, &'static str)> {
    let point = mount(mounts, |kind, options| kind == "cgroup" && options.split(',').any(|o| o == "memory"))?;
    let path = path(own, |controllers| controllers.split(',').any(|c| c == "memory"))?;
    Some((visible(point, path), "memory.limit_in_bytes"))
}

/// Returns the parent group in version 2: the nearest ancestor that has the controller enabled for its children. A
/// group with processes cannot enable it for children.
fn second(mounts: &str, own: &str) -> Option<(PathBuf, &'static str)> {
    let point = mount(mounts, |kind, _| kind == "cgroup2")?;
    let path = path(own, str::is_empty)?;
    let own = visible(point, path);
    let gives = |folder: &&Path| {
        let controllers = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
        folder.starts_with(point) && controllers.split_whitespace().any(|c| c == "memory")
    };
    Some((own.ancestors().find(gives)?.to_owned(), "memory.max"))
}

fn mount(mounts: &str, ours: impl Fn(&str, &str) -> bool) -> Option<&Path> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind, options) = (words.next()?, words.next()?, words.next()?);
        ours(kind, options).then_some(Path::new(point))
    })
}

fn path(own: &str, ours: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        ours(controllers).then_some(path.trim_start_matches('/'))
    })
}

/// Returns the visible path of a group: in a container the mount begins at its own group, whatever its name outside.
fn visible(point: &Path, path: &str) -> PathBuf {
    let own = point.join(path);
    if own.is_dir() { own } else { point.to_owned() }
}

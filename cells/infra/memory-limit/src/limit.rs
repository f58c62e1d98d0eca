//! The memory limit of the agent's cgroup, and the part of it in use.

use std::fs;
use std::path::{Path, PathBuf};

/// Fraction of the limit that the kernel's maps may take before there are endpoints. The rest is for the agent (25 MB,
/// plus endpoints and policies), for loading programs, and for the growth of maps with their entries.
const FOR_MAPS: (u64, u64) = (3, 8);
/// Divisor of the limit for the largest input: parsing takes about ten times the size of a text, a sixth of the limit.
const INPUT: u64 = 64;
/// Limit below which programs are loaded one at a time: verifying one takes up to 10 MB of kernel memory.
const LOADS_AT_ONCE: u64 = 128 << 20;
/// Percentage of the limit in use beyond which requests that make the agent larger are refused.
const FULL: u64 = 90;

/// The memory limit of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    limit: Option<Limit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    /// The cgroup that sets it; `None` in tests.
    group: Option<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The limit is nearly reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Bytes in use that cannot be reclaimed.
    pub used: u64,
    /// Bytes that may be used.
    pub limit: u64,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Full { used, limit } = self;
        write!(
            f,
            "{} of {} MiB of memory that the agent may use are in use; raise the limit of its container",
            used >> 20,
            limit >> 20
        )
    }
}

impl std::error::Error for Full {}

impl MemoryLimit {
    /// Returns no limit: the machine's memory is the only bound.
    #[must_use]
    pub fn none() -> MemoryLimit {
        MemoryLimit::default()
    }

    /// Returns a limit of `bytes` without a cgroup, so that usage is unknown; for tests.
    #[must_use]
    pub fn of(bytes: u64) -> MemoryLimit {
        MemoryLimit { limit: Some(Limit { bytes, group: None }) }
    }

    /// Returns the limit of the cgroup (v2) in this folder; `None` if it has none.
    #[must_use]
    pub fn of_group(folder: &Path) -> Option<MemoryLimit> {
        let bytes = Version::Two.limit(folder)?;
        let group = Some(Group { folder: folder.to_owned(), version: Version::Two });
        Some(MemoryLimit { limit: Some(Limit { bytes, group }) })
    }

    /// Detects the limit of this process.
    #[must_use]
    pub fn detect() -> MemoryLimit {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        MemoryLimit::find(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"))
    }

    /// Returns the smallest limit among a process' cgroups and their ancestors, as far as they are visible.
    fn find(cgroups: &str, mounts: &str) -> MemoryLimit {
        let mounted = mounts.lines().flat_map(|line| {
            [Version::Two, Version::One]
                .into_iter()
                .filter_map(|version| Some((version, version.mount(line)?)))
        });
        let groups = mounted.filter_map(|(version, (root, point))| {
            let path = cgroups.lines().find_map(|line| version.path(line))?;
            // In a container the mount's root may be the process' own cgroup, while the path is that of the host.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            let own = Path::new(point).join(below);
            let own = if own.is_dir() { own } else { PathBuf::from(point) };
            Some((version, own, PathBuf::from(point)))
        });
        let limits = groups.flat_map(|(version, own, point)| {
            let above: Vec<PathBuf> =
                own.ancestors().take_while(|folder| folder.starts_with(&point)).map(Path::to_owned).collect();
            above.into_iter().filter_map(move |folder| {
                let bytes = version.limit(&folder)?;
                Some(Limit { bytes, group: Some(Group { folder, version }) })
            })
        });
        MemoryLimit { limit: limits.min_by_key(|limit| limit.bytes) }
    }

    /// Returns the limit in bytes; `None` if there is none but the machine's memory.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.limit.as_ref().map(|limit| limit.bytes)
    }

    /// Returns the bytes that the kernel's maps may take when they are created; `None` without a limit.
    #[must_use]
    pub fn for_maps(&self) -> Option<u64> {
        self.bytes().map(|bytes| bytes / FOR_MAPS.1 * FOR_MAPS.0)
    }

    /// Returns the number of threads on which programs may be loaded; `usual` is their number without a limit.
    #[must_use]
    pub fn load_threads(&self, usual: usize) -> usize {
        if self.bytes().is_some_and(|bytes| bytes < LOADS_AT_ONCE) { 1 } else { usual }
    }

    /// Returns the maximum size of external input that is read as a whole; `usual` is the maximum without a limit.
    #[must_use]
    pub fn largest_input(&self, usual: u64) -> u64 {
        self.bytes().map_or(usual, |bytes| usual.min(bytes / INPUT))
    }

    /// Returns the bytes in use, without the page cache, which the kernel can reclaim; `None` without a limit.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.limit.as_ref()?.group.as_ref()?.used()
    }

    /// Returns an error if the limit is nearly reached, before the caller grows the agent. Reads two small files.
    pub fn room(&self) -> Result<(), Full> {
        match (self.used(), self.bytes()) {
            (Some(used), Some(limit)) if used > limit / 100 * FULL => Err(Full { used, limit }),
            _ => Ok(()),
        }
    }

    /// Returns the folder of the cgroup that sets the limit.
    #[must_use]
    pub fn group(&self) -> Option<&Path> {
        Some(&self.limit.as_ref()?.group.as_ref()?.folder)
    }
}

impl Version {
    /// Returns the path of the cgroup from a line of `/proc/self/cgroup`.
    fn path(self, line: &str) -> Option<&str> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match self {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => controllers.is_empty(),
        };
        ours.then_some(path)
    }

    /// Returns the root within the hierarchy and the mount point from a line of `/proc/self/mountinfo`.
    fn mount(self, line: &str) -> Option<(&str, &str)> {
        let (mount, kind) = line.split_once(" - ")?;
        let (mut mount, mut kind) = (mount.split(' ').skip(3), kind.split(' '));
        let (root, point) = (mount.next()?, mount.next()?);
        let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
        let ours = match self {
            Version::One => name == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::Two => name == "cgroup2",
        };
        ours.then_some((root, point))
    }

    fn limit(self, folder: &Path) -> Option<u64> {
        let file = match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        // No limit is `max` in v2, and the largest page counter in v1 (9223372036854771712).
        number(&folder.join(file)).filter(|bytes| *bytes < 1 << 62)
    }
}

impl Group {
    /// Returns the usage of the cgroup without its page cache.
    fn used(&self) -> Option<u64> {
        // v1 has the sums over descendants in the `total_` rows, v2 in the plain ones.
        let (usage, inactive, active) = match self.version {
            Version::One => ("memory.usage_in_bytes", "total_inactive_file ", "total_active_file "),
            Version::Two => ("memory.current", "inactive_file ", "active_file "),
        };
        let usage = number(&self.folder.join(usage))?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let row = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        let files = row(inactive).unwrap_or(0) + row(active).unwrap_or(0);
        Some(usage.saturating_sub(files))
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a cgroup file system.
    struct Hierarchy(tempfile::TempDir);

    impl Hierarchy {
        fn new(files: &[(&str, &str)]) -> Hierarchy {
            let folder = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let path = folder.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Hierarchy(folder)
        }

        fn mount(&self, root: &str, kind: &str, options: &str) -> String {
            format!("1 2 0:3 {root} {} rw shared:4 - {kind} {kind} {options}\n", self.0.path().display())
        }
    }

    #[test]
    fn the_smallest_limit_of_a_cgroup_and_its_ancestors_applies() {
        let tree = Hierarchy::new(&[
            ("pod/memory.max", "67108864\n"),
            ("pod/memory.current", "64000000\n"),
            ("pod/memory.stat", "anon 1\ninactive_file 1000000\nactive_file 2000000\n"),
            ("pod/agent/memory.max", "max\n"),
        ]);
        let limit = MemoryLimit::find("0::/pod/agent\n", &tree.mount("/", "cgroup2", "rw"));
        assert_eq!((limit.bytes(), limit.used()), (Some(64 << 20), Some(61_000_000)));
        assert_eq!(limit.room(), Err(Full { used: 61_000_000, limit: 64 << 20 }));
        assert_eq!(
            limit.room().unwrap_err().to_string(),
            "58 of 64 MiB of memory that the agent may use are in use; raise the limit of its container"
        );
        fs::write(tree.0.path().join("pod/memory.current"), "40000000").unwrap();
        assert_eq!(limit.room(), Ok(()));
    }

    #[test]
    fn cgroups_v1_are_supported() {
        let tree = Hierarchy::new(&[
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("a/memory.limit_in_bytes", "100000000\n"),
            ("a/memory.usage_in_bytes", "50000000\n"),
            ("a/memory.stat", "inactive_file 7\ntotal_inactive_file 10000000\ntotal_active_file 0\n"),
        ]);
        let mounts = tree.mount("/", "cgroup", "rw,memory") + "9 9 0:9 / /nowhere rw - cgroup2 none rw\n";
        let limit = MemoryLimit::find("5:cpu:/b\n4:memory:/a\n0::/c\n", &mounts);
        assert_eq!((limit.bytes(), limit.used()), (Some(100_000_000), Some(40_000_000)));
    }

    #[test]
    fn a_container_sees_its_own_cgroup_as_the_root() {
        let files =
            [("memory.max", "50000000\n"), ("memory.current", "1\n"), ("memory.stat", "inactive_file 0\n")];
        let tree = Hierarchy::new(&files);
        for (cgroup, root) in
            [("0::/\n", "/"), ("0::/kubepods/a\n", "/kubepods/a"), ("0::/kubepods/a\n", "/")]
        {
            let limit = MemoryLimit::find(cgroup, &tree.mount(root, "cgroup2", "rw"));
            assert_eq!(limit.bytes(), Some(50_000_000), "{cgroup} {root}");
        }
    }

    #[test]
    fn without_a_limit_nothing_is_bounded() {
        let tree = Hierarchy::new(&[("memory.max", "max\n")]);
        let limit = MemoryLimit::find("0::/\n", &tree.mount("/", "cgroup2", "rw"));
        assert_eq!(limit, MemoryLimit::none());
        assert_eq!((limit.for_maps(), limit.used(), limit.room()), (None, None, Ok(())));
        assert_eq!(MemoryLimit::find("", ""), MemoryLimit::none());
    }
}

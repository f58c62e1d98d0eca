//! The bpf file system: the paths of pins, and how a pinned map is reused, migrated to a new layout or refused.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, LayoutMismatch, Result};
use crate::raw_map::RawMap;
use crate::spec::{MapSpec, Verdict};

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// The folder of policy maps by their slots, beside those of links.
const POLICY_MAPS: &str = "policy_maps";
/// Suffix of a pin that is being prepared; leftovers of a crash are removed at the next attempt.
const PENDING: &str = "_pending";

/// A mounted bpf file system with Cilium's folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFs {
    root: PathBuf,
}

/// How a pinned map got the desired layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// There was no pin.
    Created,
    /// The pin had the desired layout.
    Reused,
    /// The pin had another size or other flags; its entries were copied.
    Migrated {
        /// Entries copied.
        entries: usize,
    },
    /// The pin had another size or other flags, and programs write into it: a new map has its entries, but not yet its
    /// pin ([`Move`](crate::Move)).
    Moving {
        /// Entries copied.
        entries: usize,
    },
    /// The pin is larger than desired, programs write into it, and its entries do not fit into the new size: it is
    /// kept.
    Kept {
        /// Number of its entries.
        entries: usize,
    },
    /// The pin had another size or other flags, and kernel objects as values: the new map is empty.
    Replaced,
}

impl BpfFs {
    /// Opens the file system at `root`; an error if none is mounted there.
    pub fn open(root: impl Into<PathBuf>) -> Result<BpfFs> {
        let root = root.into();
        if !is_bpffs(&root) {
            return Err(Error::NotBpfFs { path: root });
        }
        let fs = BpfFs { root };
        fs.folders()?;
        Ok(fs)
    }

    /// Opens the file system at `root`. Mounts it first if it is not mounted, which needs `CAP_SYS_ADMIN`.
    pub fn open_or_mount(root: impl Into<PathBuf>) -> Result<BpfFs> {
        let fs = BpfFs { root: root.into() };
        fs.mount_again()?;
        Ok(fs)
    }

    /// Mounts it if another process has unmounted it, and creates its folders; returns true if it was not mounted. The
    /// new mount does not have the pins of the previous one.
    pub fn mount_again(&self) -> Result<bool> {
        let missing = !is_bpffs(&self.root);
        if missing {
            std::fs::create_dir_all(&self.root).map_err(|e| Error::file("create folder", &self.root, e))?;
            mount(&self.root).map_err(|e| match e.raw_os_error() {
                Some(libc::EPERM) => Error::NotMounted { path: self.root.clone() },
                _ => Error::file("mount a bpf file system on", &self.root, e),
            })?;
        }
        self.folders()?;
        Ok(missing)
    }

    fn folders(&self) -> Result<()> {
        let cilium =
            ["devices", "endpoints", POLICY_MAPS].map(|folder| self.root.join("cilium").join(folder));
        for folder in [self.globals()].into_iter().chain(cilium) {
            std::fs::create_dir_all(&folder).map_err(|e| Error::file("create folder", &folder, e))?;
        }
        Ok(())
    }

    /// Returns the mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the maps, `<root>/tc/globals`.
    pub fn globals(&self) -> PathBuf {
        self.root.join("tc/globals")
    }

    /// Returns the pin of a map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.globals().join(name)
    }

    /// Returns the folder of a device's links, `<root>/cilium/devices/<dev>/links`; dots in the device's name become
    /// dashes.
    pub fn device_links(&self, device: &str) -> PathBuf {
        self.root.join("cilium/devices").join(device.replace('.', "-")).join("links")
    }

    /// Returns the folder of an endpoint's links, `<root>/cilium/endpoints/<id>/links`.
    pub fn endpoint_links(&self, id: u16) -> PathBuf {
        self.root.join("cilium/endpoints").join(id.to_string()).join("links")
    }

    /// Returns the folder of the links of socket load balancing, `<root>/cilium/socketlb/links/cgroup`.
    pub fn socket_links(&self) -> PathBuf {
        self.root.join("cilium/socketlb/links/cgroup")
    }

    /// Returns the folder of the datapath's programs that are kept for the next run, a folder for each load,
    /// `<root>/cilium/programs`.
    pub fn program_sets(&self) -> PathBuf {
        self.root.join("cilium/programs")
    }

    /// Returns the folder of Apiary's own pins of policy maps, `<root>/cilium/policy_maps`.
    pub fn policy_maps(&self) -> PathBuf {
        self.root.join("cilium").join(POLICY_MAPS)
    }

    /// Opens the pinned map of a spec, or creates and pins it.
    ///
    /// A pin of another size or other flags is replaced by a map that holds its entries, one of another type or other
    /// keys or values is refused ([`Error::Layout`]). The pin is never missing, and a crash leaves the old or
    /// the new map under it. A map that programs write into gets its pin only by [`Move::finish`](crate::Move::finish).
    pub fn open_or_create(&self, spec: &MapSpec) -> Result<(RawMap, Origin)> {
        let path = self.map(&spec.name);
        let old = match RawMap::open(&path) {
            Ok(old) => old,
            Err(e) if e.is_not_found() => {
                let map = RawMap::create(spec)?;
                match map.pin(&path) {
                    Ok(()) => return Ok((map, Origin::Created)),
                    // Another caller was faster: use its map.
                    Err(e) if e.errno() == Some(libc::EEXIST) => RawMap::open(&path)?,
                    Err(e) => return Err(e),
                }
            }
            Err(e) => return Err(e),
        };
        match spec.reported_layout().compare(&old.layout()) {
            Verdict::Reuse if spec.layout.map_type.is_written_by_programs() => self.end_move(spec, old),
            Verdict::Reuse => Ok((old, Origin::Reused)),
            Verdict::Migrate if spec.layout.map_type.is_written_by_programs() => {
                self.begin_move(spec, spec.reported_layout(), old)
            }
            Verdict::Replace => {
                let map = RawMap::create(spec)?;
                self.replace_pin(&path, |pending| map.pin(pending))?;
                Ok((map, Origin::Replaced))
            }
            Verdict::Refuse(why) => Err(refusal(&path, spec, &old, LayoutMismatch::Incompatible(why))),
            Verdict::Migrate => {
                let map = RawMap::create(spec)?;
                let entries = copy(&old, &map).map_err(|why| refusal(&path, spec, &old, why))?;
                self.replace_pin(&path, |pending| map.pin(pending))?;
                Ok((map, Origin::Migrated { entries }))
            }
        }
    }

    /// Pins a new, empty map in place of the existing one, if any.
    pub fn remake(&self, spec: &MapSpec) -> Result<RawMap> {
        let map = RawMap::create(spec)?;
        self.replace_pin(&self.map(&spec.name), |pending| map.pin(pending))?;
        Ok(map)
    }

    /// Returns the error with which [`BpfFs::open_or_create`] would refuse the map; changes nothing.
    pub fn check(&self, spec: &MapSpec) -> Result<Option<Error>> {
        let path = self.map(&spec.name);
        let old = match RawMap::open(&path) {
            Ok(old) => old,
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e),
        };
        match spec.reported_layout().compare(&old.layout()) {
            Verdict::Refuse(why) => Ok(Some(refusal(&path, spec, &old, LayoutMismatch::Incompatible(why)))),
            Verdict::Migrate if !spec.layout.map_type.is_written_by_programs() => {
                let entries = entries(&old, spec.reported_layout(), old.value_len());
                Ok(entries.err().map(|why| refusal(&path, spec, &old, why)))
            }
            Verdict::Migrate | Verdict::Reuse | Verdict::Replace => Ok(None),
        }
    }

    /// Replaces an existing pin atomically: `pin` creates a pin at a temporary path, which is then renamed.
    pub fn replace_pin(&self, path: &Path, pin: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let mut pending = path.as_os_str().to_owned();
        pending.push(PENDING);
        let pending = PathBuf::from(pending);
        unpin(&pending)?;
        pin(&pending)?;
        std::fs::rename(&pending, path).map_err(|e| Error::file("rename pin to", path, e))
    }

    /// Returns the names of the pins in the maps' folder, sorted.
    pub fn map_names(&self) -> Result<Vec<String>> {
        names_in(&self.globals())
    }
}

/// Removes a pin; false if there was none.
pub fn unpin(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::file("remove pin", path, e)),
    }
}

/// Returns the sorted names in a folder; none if it does not exist.
pub fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("read folder", folder, e)),
    };
    let mut names: Vec<String> =
        entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

fn refusal(path: &Path, spec: &MapSpec, old: &RawMap, why: LayoutMismatch) -> Error {
    Error::Layout {
        path: path.to_owned(),
        found: Box::new(old.layout()),
        wanted: Box::new(spec.reported_layout()),
        why: Box::new(why),
    }
}

/// Copies all entries and returns their number.
fn copy(old: &RawMap, new: &RawMap) -> Result<usize, LayoutMismatch> {
    let (keys, values) = entries(old, new.layout(), new.value_len())?;
    new.update_batch(&keys, &values).map_err(LayoutMismatch::Copy)?;
    Ok(keys.len() / new.layout().key_size as usize)
}

/// Returns the entries for a map of that layout, keys and values.
fn entries(
    old: &RawMap,
    layout: crate::Layout,
    value_len: usize,
) -> Result<(Vec<u8>, Vec<u8>), LayoutMismatch> {
    let (mut keys, mut values) = old.entries().map_err(LayoutMismatch::Read)?;
    let capacity = layout.max_entries as usize;
    let count = keys.len() / layout.key_size as usize;
    if count > capacity {
        if !layout.map_type.is_array() {
            return Err(LayoutMismatch::TooMany { entries: count });
        }
        // An array always has all of its entries; entries of zeros are unused.
        if values[capacity * value_len..].iter().any(|b| *b != 0) {
            return Err(LayoutMismatch::InUse { first: capacity });
        }
        keys.truncate(capacity * layout.key_size as usize);
        values.truncate(capacity * value_len);
    }
    Ok((keys, values))
}

/// Whether a bpf file system is mounted at (or above) the path.
pub fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == BPF_FS_MAGIC)
}

#[expect(unsafe_code, reason = "mount(2) takes strings")]
fn mount(path: &Path) -> std::io::Result<()> {
    let target = CString::new(path.as_os_str().as_bytes())?;
    // JUSTIFICATION: no safe wrapper in the dependencies.
    // SAFETY: all strings are NUL-terminated and live across the call; the last pointer is the string `mode=0700`.
    let answer = unsafe {
        let data = c"mode=0700".as_ptr().cast();
        libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, data)
    };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

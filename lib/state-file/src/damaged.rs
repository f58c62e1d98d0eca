//! Quarantine of damaged files: the newest copies are kept for the operator to inspect.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::file::gone;

/// Maximum number of damaged copies of each file: `NAME.unreadable`, the newest, then `NAME.unreadable-1` and so on.
pub const MAX_CORRUPT_COPIES: usize = 3;

/// Renames a damaged file, folder, link or pipe to `NAME.unreadable` without opening it. Returns its new path.
pub fn quarantine(path: &Path) -> Result<PathBuf, Error> {
    quarantine_as(path, path)
}

/// Quarantines `path` as [`quarantine`] does, under the name that a file at `base` would get.
pub(crate) fn quarantine_as(path: &Path, base: &Path) -> Result<PathBuf, Error> {
    let name = |n: usize| -> PathBuf {
        let mut name = base.as_os_str().to_owned();
        name.push(if n == 0 { ".unreadable".to_owned() } else { format!(".unreadable-{n}") });
        name.into()
    };
    // Shift the older copies from the oldest on, so that no rename overwrites a newer one.
    let last = name(MAX_CORRUPT_COPIES - 1);
    remove(&last).map_err(Error::io("remove", last))?;
    for n in (0..MAX_CORRUPT_COPIES - 1).rev() {
        gone(fs::rename(name(n), name(n + 1))).map_err(Error::io("rename", name(n)))?;
    }
    fs::rename(path, name(0)).map_err(Error::io("quarantine", path))?;
    Ok(name(0))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => gone(fs::remove_dir_all(path)),
        _ => gone(fs::remove_file(path)),
    }
}

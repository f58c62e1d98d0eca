//! A folder of options in the layout of a mounted ConfigMap, as the kubelet's atomic writer creates it.
//!
//! `KEY -> ..data/KEY`, `..data -> ..data_N`, and the files in `..data_N`: one renamed link replaces all files at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::Error;

/// The link to the current folder of files.
const DATA: &str = "..data";

/// The temporary name of a link before it is renamed.
const NEXT: &str = "..data.tmp";

/// Returns a function for `map_err` that adds the operation and its path.
fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Folder { action, path, source }
}

/// Writes exactly these options to the folder. Returns whether anything was changed: an equal folder is not touched, so
/// that its watchers are not woken. An interrupted write leaves the previous options in force, and the next one cleans
/// up.
pub(crate) fn write(folder: &Path, values: &BTreeMap<String, String>) -> Result<bool, Error> {
    fs::create_dir_all(folder).map_err(failed("make", folder))?;
    let (link, before) = (folder.join(DATA), current(folder));
    let same = before.as_ref().is_some_and(|name| read(&folder.join(name)).as_ref() == Some(values));
    if !same {
        let data = folder.join(free(folder)?);
        fs::create_dir(&data).map_err(failed("make", &data))?;
        for (key, value) in values {
            let file = data.join(key);
            fs::write(&file, value).map_err(failed("write", &file))?;
        }
        // Only now, when the new folder is complete: readers see all old or all new values.
        let name = data.file_name().unwrap_or_default();
        exchange(&link, Path::new(name), &folder.join(NEXT))?;
    }
    let mut changed = !same;
    for key in values.keys() {
        let (file, target) = (folder.join(key), Path::new(DATA).join(key));
        if fs::read_link(&file).ok().as_deref() != Some(&target) {
            exchange(&file, &target, &folder.join(NEXT))?;
            changed = true;
        }
    }
    changed |= clear_up(folder, values)?;
    Ok(changed)
}

/// Atomically replaces the file at `link` by a symbolic link to `target`: creates it as `next` and renames it.
fn exchange(link: &Path, target: &Path, next: &Path) -> Result<(), Error> {
    match fs::remove_file(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", next)(error)),
        _ => {}
    }
    symlink(target, next).map_err(failed("make", next))?;
    fs::rename(next, link).map_err(failed("exchange", link))
}

/// Removes links of deleted keys, folders that are not current, and leftovers of an interrupted write.
fn clear_up(folder: &Path, values: &BTreeMap<String, String>) -> Result<bool, Error> {
    let used = current(folder);
    let mut changed = false;
    for entry in entries(folder)? {
        let name = entry.file_name();
        let path = entry.path();
        let text = name.to_string_lossy();
        let is_ours = fs::read_link(&path).is_ok_and(|target| target == Path::new(DATA).join(&name));
        if is_ours && !values.contains_key(&*text) || text == NEXT {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            changed = true;
        } else if number(&text).is_some() && used.as_deref() != Some(Path::new(&name)) {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(changed)
}

/// Returns the name of the current folder of files.
fn current(folder: &Path) -> Option<PathBuf> {
    fs::read_link(folder.join(DATA)).ok()
}

/// Returns an unused name for a folder of files.
fn free(folder: &Path) -> Result<String, Error> {
    let numbers =
        entries(folder)?.into_iter().filter_map(|entry| number(&entry.file_name().to_string_lossy()));
    let next = numbers.max().unwrap_or(0).checked_add(1).unwrap_or(1);
    Ok(format!("{DATA}_{next}"))
}

/// Returns the number in the name of a folder of files.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix(DATA)?.strip_prefix('_')?.parse().ok()
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    let list = || fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>();
    list().map_err(failed("list", folder))
}

/// Returns the files of a folder; none if one cannot be read.
fn read(folder: &Path) -> Option<BTreeMap<String, String>> {
    let file = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
    };
    fs::read_dir(folder).ok()?.map(file).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Returns the names in the folder, links with their targets.
    fn list(folder: &Path) -> Vec<String> {
        let name = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).map(|target| format!(" -> {}", target.display()));
            format!("{}{}", entry.file_name().display(), target.unwrap_or_default())
        };
        let mut names: Vec<String> = entries(folder).unwrap().into_iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_folder_has_the_last_write() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("deep/config-map");
        assert!(write(&folder, &values(&[("debug", "true"), ("mtu", "1400")])).unwrap());
        let first = ["..data -> ..data_1", "..data_1", "debug -> ..data/debug", "mtu -> ..data/mtu"];
        assert_eq!(list(&folder), first);
        assert_eq!(fs::read_to_string(folder.join("mtu")).unwrap(), "1400");
        let inode = fs::symlink_metadata(folder.join(DATA)).unwrap().ino();
        assert!(!write(&folder, &values(&[("debug", "true"), ("mtu", "1400")])).unwrap());
        assert_eq!(fs::symlink_metadata(folder.join(DATA)).unwrap().ino(), inode, "no watcher is woken");

        assert!(write(&folder, &values(&[("debug", "false"), ("ipam", "x")])).unwrap());
        assert_eq!(
            list(&folder),
            ["..data -> ..data_2", "..data_2", "debug -> ..data/debug", "ipam -> ..data/ipam"]
        );
        assert_eq!(fs::read_to_string(folder.join("debug")).unwrap(), "false");
    }

    /// An interrupted write, and a user's file in place of a link.
    #[test]
    fn leftovers_of_an_earlier_write_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        write(folder, &values(&[("debug", "true")])).unwrap();
        fs::create_dir(folder.join("..data_7")).unwrap();
        fs::write(folder.join("..data_7/half"), "").unwrap();
        symlink("..data_7", folder.join(NEXT)).unwrap();
        fs::write(folder.join("mtu"), "by hand").unwrap();
        fs::write(folder.join("other"), "stays").unwrap();
        fs::remove_file(folder.join("debug")).unwrap();
        assert!(write(folder, &values(&[("debug", "true"), ("mtu", "1400")])).unwrap());
        let now = ["..data -> ..data_8", "..data_8", "debug -> ..data/debug", "mtu -> ..data/mtu", "other"];
        assert_eq!(list(folder), now);
        // Only the link is missing.
        fs::remove_file(folder.join("debug")).unwrap();
        assert!(write(folder, &values(&[("debug", "true"), ("mtu", "1400")])).unwrap());
        assert_eq!(list(folder), now);
    }

    #[test]
    fn an_unwritable_folder_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        let error = write(&place.path().join("file"), &values(&[])).unwrap_err().to_string();
        assert!(error.starts_with("cannot make ") && error.contains("/file: "), "{error}");
    }
}

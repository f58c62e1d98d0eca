//! A folder of options as Kubernetes mounts a ConfigMap: the file's name is the key, its content the value.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::error::ConfigError;

/// A key in lower case, its value without surrounding white space, and the file.
pub(crate) type Entry = (String, String, PathBuf);

/// The options of a folder.
#[derive(Default)]
pub(crate) struct Found {
    /// In order of file names.
    pub(crate) entries: Vec<Entry>,
    /// Keys that are ignored, with the reason.
    pub(crate) odd: Vec<(String, PathBuf, &'static str)>,
}

/// The largest value in bytes: that of a whole ConfigMap.
const LARGEST: u64 = 1 << 20;

/// The number of attempts to read a folder that is replaced meanwhile.
const TRIES: usize = 10;

/// The symlink that the kubelet replaces atomically when a mounted ConfigMap changes.
const EXCHANGED: &str = "..data";

/// Reads all files of a folder. Folders and symlinks to folders (`..data`) are skipped, symlinks to files are followed.
/// The result is a consistent state of the folder: if the folder is replaced meanwhile, it is read again.
pub(crate) fn read(dir: &Path, errors: &mut Vec<ConfigError>) -> Found {
    for _ in 0..TRIES {
        let before = state(dir);
        let mut faults = vec![];
        let found = read_once(dir, &mut faults);
        if state(dir) == before {
            errors.append(&mut faults);
            return found;
        }
    }
    errors.push(unreadable(dir, format!("it was replaced {TRIES} times while it was read; try again")));
    Found::default()
}

/// The properties that change when the folder is replaced: device and inode, time of the last change, and the target of
/// its `..data` symlink.
type State = (Option<(u64, u64)>, Option<SystemTime>, Option<PathBuf>);

fn state(dir: &Path) -> Option<State> {
    let meta = fs::metadata(dir).ok()?;
    let target = fs::read_link(dir.join(EXCHANGED)).ok();
    Some((inode(&meta), meta.modified().ok(), target))
}

#[cfg(unix)]
fn inode(meta: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

fn unreadable(path: &Path, reason: impl ToString) -> ConfigError {
    ConfigError::Unreadable { path: path.to_owned(), reason: reason.to_string() }
}

fn read_once(dir: &Path, errors: &mut Vec<ConfigError>) -> Found {
    let mut found = Found::default();
    let mut paths = vec![];
    match fs::read_dir(dir) {
        Ok(listing) => {
            for entry in listing {
                match entry {
                    Ok(entry) => paths.push(entry.path()),
                    Err(error) => errors.push(unreadable(dir, error)),
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            errors.push(ConfigError::NoDirectory(dir.to_owned()));
        }
        Err(error) => errors.push(unreadable(dir, remedy(&error))),
    }
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name() else { continue };
        let Some(name) = name.to_str() else {
            errors.push(unreadable(
                &path,
                "its name is not UTF-8, as the name of an option is; rename or remove it",
            ));
            continue;
        };
        let key = name.to_ascii_lowercase();
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                found.odd.push((key, path, "a folder; an option is a file that holds its value"))
            }
            Ok(_) => match value(&path) {
                Ok(value) => found.entries.push((key, value, path)),
                Err(reason) => errors.push(unreadable(&path, reason)),
            },
            Err(error) => errors.push(unreadable(&path, remedy(&error))),
        }
    }
    found
}

/// Returns the kernel's error with a remedy.
fn remedy(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "; create it, or remove the link that leads there",
        io::ErrorKind::PermissionDenied => "; let the user that runs this read it",
        io::ErrorKind::NotADirectory => "; name a folder with a file for each option",
        _ => unix_remedy(error),
    };
    format!("{error}{remedy}")
}

#[cfg(unix)]
fn unix_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "; its links lead in a circle, replace or remove them",
        Some(libc::ENXIO) => "; it is no file of text, replace or remove it",
        _ => "",
    }
}

#[cfg(not(unix))]
fn unix_remedy(_: &io::Error) -> &'static str {
    ""
}

/// Opens a file to be read.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    // `open` blocks on a pipe without a writer, and a file may be replaced by a pipe after it was checked.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

/// Returns the content of a text file.
pub(crate) fn value(path: &Path) -> Result<String, String> {
    let file = open(path).map_err(|error| remedy(&error))?;
    if !file.metadata().map_err(|error| remedy(&error))?.is_file() {
        return Err("it is no file of text; replace or remove it".to_owned());
    }
    let mut bytes = vec![];
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| remedy(&error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes, the most that is read; shorten it"));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(format!("byte {at} is NUL; write it as plain text"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(format!("byte {at} is not UTF-8; write it as plain text"))
        }
    }
}

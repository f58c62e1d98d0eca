//! A folder of options as Kubernetes mounts a ConfigMap: the file's name is the key, its content the value.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::ConfigError;

/// A key in lower case, its value without surrounding white space, and the file.
pub(crate) type Entry = (String, String, PathBuf);

/// Reads all files of a folder in order of name. Folders and links to folders (`..data`) are left out, links to files
/// are followed.
pub(crate) fn read(dir: &Path, errors: &mut Vec<ConfigError>) -> Vec<Entry> {
    let unreadable = |path: &Path, error: io::Error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            errors.push(ConfigError::NoDirectory(dir.to_owned()));
            return vec![];
        }
        Err(error) => {
            errors.push(unreadable(dir, error));
            return vec![];
        }
    };
    let mut paths: Vec<PathBuf> = listing.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    let mut entries = vec![];
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => continue,
            Ok(_) => {}
            Err(error) => {
                errors.push(unreadable(&path, error));
                continue;
            }
        }
        match fs::read_to_string(&path) {
            Ok(text) => entries.push((name.to_ascii_lowercase(), text.trim().to_owned(), path.clone())),
            Err(error) => errors.push(unreadable(&path, error)),
        }
    }
    entries
}

//! One file: whether it has changed, and what is in it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::MAX_FILE;

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Signature {
    pub(crate) fn of(metadata: &Metadata) -> Signature {
        Signature {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a file holds, or why it cannot be read.
pub(crate) type Content = Result<Vec<u8>, String>;

/// The content of a file, and its state at that time. None if there is no such file.
pub(crate) fn read(path: &Path) -> Option<(Option<Signature>, Content)> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some((None, Err(unreadable(&error)))),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Some((None, Err(unreadable(&error)))),
    };
    let signature = Some(Signature::of(&metadata));
    if !metadata.is_file() {
        return Some((signature, Err("is no regular file; put a file here, or remove it".to_owned())));
    }
    let mut content = Vec::new();
    Some((
        signature,
        match file.take(MAX_FILE + 1).read_to_end(&mut content) {
            Ok(_) if content.len() as u64 > MAX_FILE => Err(format!(
                "has more than {} MiB; distribute its objects among several files",
                MAX_FILE >> 20
            )),
            Ok(_) => Ok(content),
            Err(error) => Err(unreadable(&error)),
        },
    ))
}

/// Does not wait for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

/// Whether a name is that of a file of manifests.
pub(crate) fn is_manifest(name: &str) -> bool {
    let suffix = name.rsplit_once('.').map(|(_, suffix)| suffix);
    !name.starts_with('.') && matches!(suffix, Some("yaml" | "yml" | "json"))
}

//! A file's signature and content.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The signature of a file's state, which changes with each write.
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

impl Signature {
    /// Returns the size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

/// The outcome of reading a file.
pub(crate) enum Found {
    /// The file does not exist.
    Nothing,
    /// The file was changed while it was read.
    Changing,
    /// Its signature and its content, or the reason why it cannot be read.
    File(Option<Signature>, Result<Vec<u8>, String>),
}

impl Found {
    /// Returns the size of the content in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Found::File(_, Ok(content)) => content.len() as u64,
            _ => 0,
        }
    }
}

/// Reads a file of at most `largest` bytes; a larger one is not read at all.
pub(crate) fn read(path: &Path, largest: u64) -> Found {
    match open(path) {
        Ok(file) => {
            read_open(file, largest).unwrap_or_else(|error| Found::File(None, Err(unreadable(&error))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
        Err(error) => Found::File(None, Err(unreadable(&error))),
    }
}

fn read_open(mut file: File, largest: u64) -> io::Result<Found> {
    let metadata = file.metadata()?;
    let signature = Signature::of(&metadata);
    if !metadata.is_file() {
        let reason = "is no regular file; put a file here, or remove it".to_owned();
        return Ok(Found::File(Some(signature), Err(reason)));
    }
    let mut content = Vec::new();
    if signature.size <= largest {
        (&mut file).take(largest + 1).read_to_end(&mut content)?;
    }
    if Signature::of(&file.metadata()?) != signature {
        return Ok(Found::Changing);
    }
    let content = match signature.size.max(content.len() as u64) > largest {
        true => {
            let largest = match largest {
                mib if mib.is_multiple_of(1 << 20) => format!("{} MiB", mib >> 20),
                odd => format!("{} KiB", odd >> 10),
            };
            Err(format!("has more than {largest}; distribute its objects among several files"))
        }
        false => Ok(content),
    };
    Ok(Found::File(Some(signature), content))
}

/// Opens a file without blocking, in case it is a pipe without a writer.
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

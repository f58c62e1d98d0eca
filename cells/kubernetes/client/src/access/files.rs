//! Files of credentials.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The maximum size of a kubeconfig, certificate, key or token file in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The files that were read, with hashes of their contents.
#[derive(Default)]
pub(super) struct Files {
    pub(super) names: Vec<PathBuf>,
    content: DefaultHasher,
}

impl Files {
    /// Reads a file. `remedy` describes the expected content.
    pub(super) fn read(&mut self, file: &Path, remedy: &'static str) -> Result<Vec<u8>, Error> {
        let wrong = |reason: String| Error::Read { file: file.to_owned(), reason, remedy };
        let kind = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
        if !kind.is_file() && !kind.is_dir() {
            // A pipe may block forever, a device may never end.
            return Err(wrong("it is a pipe, a socket or a device".to_owned()));
        }
        if kind.len() > MAX_FILE {
            return Err(wrong(format!("it has {} bytes, more than {MAX_FILE}", kind.len())));
        }
        let content = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
        content.hash(&mut self.content);
        self.names.push(file.to_owned());
        Ok(content)
    }

    /// Adds data that is in no file to the hash.
    pub(super) fn note(&mut self, content: &[u8]) {
        content.hash(&mut self.content);
    }

    /// Returns a hash of all contents.
    pub(super) fn content(&self) -> u64 {
        self.content.finish()
    }
}

//! Files of credentials.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Bytes of a kubeconfig, a certificate, a key or a token at most.
const MOST: u64 = 4 << 20;

/// The files that were read, and what distinguishes their contents from others.
#[derive(Default)]
pub(super) struct Files {
    pub(super) names: Vec<PathBuf>,
    content: DefaultHasher,
}

impl Files {
    /// What a file has. `remedy`: what it should be.
    pub(super) fn read(&mut self, file: &Path, remedy: &'static str) -> Result<Vec<u8>, Error> {
        let wrong = |reason: String| Error::Read { file: file.to_owned(), reason, remedy };
        let kind = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
        if !kind.is_file() && !kind.is_dir() {
            // A pipe may have nothing to say for ever, a device too much.
            return Err(wrong("it is a pipe, a socket or a device".to_owned()));
        }
        if kind.len() > MOST {
            return Err(wrong(format!("it has {} bytes, more than {MOST}", kind.len())));
        }
        let content = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
        content.hash(&mut self.content);
        self.names.push(file.to_owned());
        Ok(content)
    }

    /// Something that counts as content although it is in no file.
    pub(super) fn note(&mut self, content: &[u8]) {
        content.hash(&mut self.content);
    }

    /// Differs when the content of a file does.
    pub(super) fn content(&self) -> u64 {
        self.content.finish()
    }
}

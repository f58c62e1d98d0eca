//! The file of ids that may be in use.
//!
//! Entries of connection tracking and affinity refer to services and backends by id for hours after their deletion, and
//! the maps do not contain the ids that were released last. So the file contains an upper bound of the allocators'
//! positions: it is written before they reach it, many ids ahead, and exactly at a stop. It is not fsynced, as no
//! connection outlives the machine.

use std::path::PathBuf;
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use state_file::{Error, Rewrite, Schema, StateFile, Version, quarantine};

/// The name of the file in the folder of the agent's state.
pub(crate) const FILE: &str = "service-ids.json";

/// The number of frontend ids that one write reserves: after a crash up to this number is skipped.
pub(crate) const FRONTENDS_AHEAD: u32 = 256;

/// The number of backend ids that one write reserves.
pub(crate) const BACKENDS_AHEAD: u32 = 4096;

/// An upper bound of an allocator's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) next: u32,
    /// Whether all ids were assigned at least once: then ids before and after the position are equally old.
    pub(crate) wrapped: bool,
}

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Positions {
    pub(crate) frontends: Position,
    pub(crate) backends: Position,
}

impl Schema for Positions {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the ids of services and backends that may still be in use by connections";
}

/// Returns the version of the file.
pub(crate) fn version() -> Version {
    Version::of::<Positions>()
}

/// The file and its desired content.
#[derive(Debug)]
pub(crate) struct IdFile {
    file: StateFile,
    content: Mutex<Option<Positions>>,
    rewrite: OnceLock<Rewrite>,
}

impl IdFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> IdFile {
        IdFile { file: StateFile::new(path), content: Mutex::default(), rewrite: OnceLock::new() }
    }

    /// Sets the job that retries failed writes.
    pub(crate) fn rewrite_by(&self, rewrite: Rewrite) {
        // Set only once, by the cell.
        let _ = self.rewrite.set(rewrite);
    }

    /// Reads the file. A damaged one is quarantined and counts as missing.
    pub(crate) fn load(&self) -> Result<(), Error> {
        let loaded = match self.file.load::<Positions>() {
            Err(error @ Error::Damaged { .. }) => {
                let kept = quarantine(self.file.path())?;
                if let Some(rewrite) = self.rewrite.get() {
                    let consequence = "new services and backends get ids far from those in use";
                    rewrite.put_aside(&error, &kept, consequence);
                }
                None
            }
            loaded => loaded?,
        };
        *self.content.lock() = loaded;
        Ok(())
    }

    /// Returns the file's content, or the content about to be written.
    pub(crate) fn positions(&self) -> Option<Positions> {
        *self.content.lock()
    }

    /// Replaces the content. The job retries a failed write; the caller does not wait for it, because ids are assigned
    /// without the file as well.
    pub(crate) fn store(&self, positions: Positions) {
        let before = self.content.lock().replace(positions);
        if before != Some(positions) {
            let written = self.write();
            if let Some(rewrite) = self.rewrite.get() {
                rewrite.tried(&written);
            }
        }
    }

    /// Writes the content, if there is any.
    pub(crate) fn write(&self) -> Result<(), Error> {
        // The lock is held during the write: an older content must not replace a newer one.
        let content = self.content.lock();
        content.map_or(Ok(()), |positions| self.file.store(&positions))
    }
}

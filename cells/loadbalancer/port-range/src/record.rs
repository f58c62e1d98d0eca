//! The record of the ports that the agent has added, by which later runs release no others.

use std::path::Path;

use serde::{Deserialize, Serialize};
use state_file::StateFile;

use crate::ports::Ports;

const FILE: &str = "node-port-range.json";
/// More than the longest list of ports.
const MAX_SIZE: u64 = 512 * 1024;

#[derive(Serialize, Deserialize)]
struct Content {
    /// The boot in which they were added: the kernel forgets them at the next.
    boot: String,
    ports: String,
}

/// The file of the record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    file: StateFile,
}

impl Record {
    pub(crate) fn new(state: &Path) -> Record {
        Record { file: StateFile::new(state.join(FILE)).limit(MAX_SIZE) }
    }

    /// Returns the ports that were added in this boot. A damaged record has none: a reservation that stays is harmless,
    /// one of another process that is released is not.
    pub(crate) fn read(&self, boot: &str) -> Result<Ports, state_file::Error> {
        let text = match self.file.read_text() {
            Ok(text) => text.unwrap_or_default(),
            Err(state_file::Error::Damaged { .. }) => String::new(),
            Err(error) => return Err(error),
        };
        let content = serde_json::from_str(&text).ok().filter(|content: &Content| content.boot == boot);
        Ok(content.and_then(|content| content.ports.parse().ok()).unwrap_or_else(Ports::none))
    }

    /// Replaces the record; no ports remove it.
    pub(crate) fn write(&self, boot: &str, ports: &Ports) -> Result<(), state_file::Error> {
        if ports.is_empty() {
            return self.file.remove();
        }
        let content = Content { boot: boot.to_owned(), ports: ports.to_string() };
        let mut text = serde_json::to_vec(&content).unwrap_or_default();
        text.push(b'\n');
        self.file.write_changed(&text)
    }
}

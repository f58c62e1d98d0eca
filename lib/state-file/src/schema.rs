//! Files of our own form: JSON with a version.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::file::StateFile;

/// The content of a file of our own form: a JSON object, to which the file adds the member `version`.
pub trait Schema: Serialize + DeserializeOwned + 'static {
    /// The version that is written. Increment it with each change that an older agent would misread.
    const VERSION: u32;

    /// The data that is lost without the file, for the error about a newer one.
    const HOLDS: &'static str;

    /// Converts the content that an older agent has written; version 0 is a file without one. The default refuses every
    /// older version.
    fn migrate(version: u32, content: &[u8]) -> Result<Self, String> {
        let _ = content;
        Err(match version {
            0 => "it has no version".to_owned(),
            older => format!("version {older} is none that any agent has written"),
        })
    }
}

/// The version of files of one form. Each cell that keeps such files contributes it to the group that the agent's start
/// hands to [`check_versions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32);

impl Version {
    /// Returns the version that this agent writes.
    pub fn of<T: Schema>() -> Version {
        Version(T::VERSION)
    }
}

/// Returns an error if a file in the folder (not in its subfolders) has a newer version than all of these, so that a
/// start can fail before it changes anything. The owner of a file checks it again, and handles an unreadable one.
pub fn check_versions(folder: &Path, known: &[Version]) -> Result<(), Error> {
    let known = known.iter().max().map_or(0, |version| version.0);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io("read", folder))?,
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let Ok(Some(content)) = StateFile::new(&path).read() else { continue };
        let version = serde_json::from_slice::<Head>(&content).ok().and_then(|head| head.version);
        if let Some(found) = version.filter(|found| *found > u64::from(known)) {
            return Err(Error::Newer { path, found, known, holds: "what the agent before knew" });
        }
    }
    Ok(())
}

/// The version alone: the other members may have a form that only their own version knows.
#[derive(Deserialize)]
struct Head {
    version: Option<u64>,
}

#[derive(Serialize)]
struct Whole<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

impl StateFile {
    /// Returns the content, migrated to the current version; `None` if the file does not exist.
    pub fn load<T: Schema>(&self) -> Result<Option<T>, Error> {
        self.read()?.map(|content| self.parse(&content)).transpose()
    }

    /// Parses content of this file and migrates it.
    pub(crate) fn parse<T: Schema>(&self, content: &[u8]) -> Result<T, Error> {
        let damaged = |problem: String| Error::damaged(self.path(), problem);
        let version = match serde_json::from_slice::<Head>(content) {
            Ok(head) => head.version.unwrap_or(0),
            // The form of version 0 need not be a JSON object.
            Err(error) => {
                return T::migrate(0, content).map_err(|_| damaged(error.to_string()));
            }
        };
        if version > u64::from(T::VERSION) {
            let path = self.path().to_owned();
            return Err(Error::Newer { path, found: version, known: T::VERSION, holds: T::HOLDS });
        }
        match version as u32 {
            older if older < T::VERSION => T::migrate(older, content).map_err(damaged),
            _ => serde_json::from_slice(content).map_err(|error| damaged(error.to_string())),
        }
    }

    /// Returns the content of a file in Cilium's form, JSON without a version; `None` if the file does not exist.
    pub fn read_json<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(content) = self.read()? else { return Ok(None) };
        serde_json::from_slice(&content).map(Some).map_err(|error| Error::damaged(self.path(), error))
    }

    /// Replaces a file in Cilium's form.
    pub fn write_json<T: Serialize + ?Sized>(&self, content: &T) -> Result<(), Error> {
        self.write(&self.encode(content)?)
    }

    /// Replaces the file, with the version that this agent writes.
    pub fn store<T: Schema>(&self, content: &T) -> Result<(), Error> {
        self.write_json(&Whole { version: T::VERSION, content })
    }

    fn encode<T: Serialize + ?Sized>(&self, content: &T) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(content).map_err(|error| Error::io("encode", self.path())(error.into()))
    }
}

//! The configuration in force: every option with its value and where that came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use figment::Figment;
use figment::value::Value;

use super::error::{BadValue, ConfigError};
use super::kind::Kind;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A file of the configuration folder.
    Directory(PathBuf),
    /// The configuration file.
    File(PathBuf),
    /// An environment variable of this name.
    Environment(String),
    /// The command line.
    Flag,
    /// The program itself.
    Program,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Directory(path) | Source::File(path) => write!(f, "file {}", path.display()),
            Source::Environment(name) => write!(f, "environment variable {name}"),
            Source::Flag => f.write_str("command line"),
            Source::Program => f.write_str("set by the program"),
        }
    }
}

/// One option in force.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// Its value, as it may be written in a file.
    pub value: String,
    /// Its default, in the same form.
    pub default: String,
    /// Its type.
    pub kind: Kind,
    /// Where the value came from.
    pub source: Source,
    pub(crate) parsed: Value,
}

impl Setting {
    /// Whether the value is the default, whoever set it.
    pub fn is_default(&self) -> bool {
        self.value == self.default
    }

    pub(crate) fn bad_value(&self, detail: String) -> ConfigError {
        ConfigError::BadValue(Box::new(BadValue {
            from: self.source.clone(),
            key: self.key.clone(),
            value: self.value.clone(),
            expected: self.kind.expected(),
            detail: Some(detail).filter(|detail| !detail.is_empty()),
        }))
    }
}

/// A key that nobody declares. Cilium lets these pass in files and folders, so they are no errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The key.
    pub key: String,
    /// Where it was found.
    pub source: Source,
    /// The known option whose name is nearest, if one is near.
    pub nearest: Option<String>,
}

/// The configuration in force. Cells may take it as `Arc<Settings>`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) declared: BTreeMap<String, Setting>,
    pub(crate) unused: Vec<Setting>,
    pub(crate) unknown: Vec<Unknown>,
    pub(crate) figment: Figment,
}

impl Settings {
    /// Every declared option, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.declared.values()
    }

    /// A declared option by its name.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.declared.get(key)
    }

    /// Options that were set and that the hive was told to accept, but that no cell declares. Those that are not at their
    /// [default](Setting::is_default) ask for something that this program does not do.
    pub fn unused(&self) -> &[Setting] {
        &self.unused
    }

    /// Keys that were set and that nobody knows.
    pub fn unknown(&self) -> &[Unknown] {
        &self.unknown
    }

    /// The layers behind the values, for programs that extract structs of their own. Durations are nanoseconds, maps
    /// lists of `key=value`.
    pub fn figment(&self) -> &Figment {
        &self.figment
    }

    /// Writes unknown and unused options to the log: a warning where another name was probably meant, otherwise at level
    /// info, because configurations are shared with other programs (Cilium's chart sets 19 options of its operator).
    pub fn report(&self) {
        for Unknown { key, source, nearest } in &self.unknown {
            match nearest {
                Some(nearest) => {
                    tracing::warn!(option = key, %source, nearest, "Unknown option, was another one meant?")
                }
                None => tracing::info!(option = key, %source, "Unknown option"),
            }
        }
        for setting in self.unused.iter().filter(|setting| !setting.is_default()) {
            tracing::info!(option = setting.key, source = %setting.source, "Option has no effect in this agent");
        }
    }
}

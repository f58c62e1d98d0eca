//! The configuration in force: every option with its value and origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use figment::value::Value;

use super::error::{BadValue, ConfigError};
use super::flag::{Foreign, Known};
use super::kind::Kind;
use super::observed::{self, Observed, Said};

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// No source has set it.
    Default,
    /// A file of the configuration folder.
    Directory(PathBuf),
    /// The configuration file.
    File(PathBuf),
    /// A source that the program watches itself, such as an object of a cluster; the text names it.
    Supplied(String),
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
            Source::Supplied(name) => f.write_str(name),
            Source::Environment(name) => write!(f, "environment variable {name}"),
            Source::Flag => f.write_str("command line"),
            Source::Program => f.write_str("set by the program"),
        }
    }
}

/// The placeholder for the value of an option that is never shown.
pub(crate) const SECRET: &str = "(secret)";

/// One option in force.
#[derive(Clone)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// Its value, as it would be written in a file; `(secret)` for one that is never shown.
    pub value: String,
    /// Its default, in the same form.
    pub default: String,
    /// Its type.
    pub kind: Kind,
    /// Whether a change takes effect while the program runs, if a cell watches the option.
    pub live: bool,
    /// Where the value came from.
    pub source: Source,
    /// The replacement, if it is deprecated.
    pub deprecated: Option<&'static str>,
    pub(crate) is_default: bool,
    pub(crate) is_secret: bool,
    pub(crate) parsed: Value,
}

impl Setting {
    /// Whether the value equals the default, in whatever source it was set.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether the value is never shown.
    pub fn is_secret(&self) -> bool {
        self.is_secret
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

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting")
            .field("key", &self.key)
            .field("value", &self.value)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// A key that no cell declares. Files and folders are often shared with other programs, so it is no error unless the
/// program [refuses](crate::HiveBuilder::refuse_unknown) it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unknown {
    /// The key.
    pub key: String,
    /// Where it was found.
    pub source: Source,
    /// The known option with the most similar name, if one is similar enough.
    pub nearest: Option<String>,
    /// The reason for the warning, if there is more to report than the name.
    pub note: Option<&'static str>,
}

/// A former name of an option, by which it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renamed {
    /// The old name.
    pub key: String,
    /// The option's name.
    pub now: String,
    /// Where it was found.
    pub source: Source,
}

/// The configuration in force. Cells may take it as `Arc<Settings>`.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) declared: BTreeMap<String, Setting>,
    pub(crate) unused: Vec<Setting>,
    pub(crate) foreign: Arc<BTreeMap<String, Foreign>>,
    pub(crate) unknown: Vec<Unknown>,
    pub(crate) renamed: Vec<Renamed>,
    pub(crate) said: Vec<Said>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.declared.values()).entries(&self.unused).finish()
    }
}

impl Settings {
    /// Iterates over all declared options, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.declared.values()
    }

    /// Returns a declared option by its name.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.declared.get(key)
    }

    /// Returns options that were set and that the hive accepts, but that no cell declares. Those that are not at their
    /// [default](Setting::is_default) request a feature that this program does not have.
    pub fn unused(&self) -> &[Setting] {
        &self.unused
    }

    /// Returns the type and the value of an option that a cell declares, or of one that the hive accepts without a
    /// cell; the latter is at its default unless it was set. The value of a secret is not shown.
    pub fn value(&self, key: &str) -> Option<(Kind, String)> {
        let unused = || self.unused.iter().find(|setting| setting.key == key);
        match self.get(key).or_else(unused) {
            Some(setting) => Some((setting.kind, setting.value.clone())),
            None => self.foreign.get(key).map(|option| (option.kind, Known::Foreign(option).default())),
        }
    }

    /// Returns unknown keys that were set.
    pub fn unknown(&self) -> &[Unknown] {
        &self.unknown
    }

    /// Returns options that were set by a former name.
    pub fn renamed(&self) -> &[Renamed] {
        &self.renamed
    }

    /// Returns the value of each source for each option, by name, highest precedence first, without defaults.
    pub fn observed(&self) -> Vec<Observed> {
        observed::observe(&self.said, self, None)
    }

    /// Logs unknown, former and unused option names: as a warning where another name was probably meant or is to be
    /// used, otherwise at level info, because configurations are shared with other programs.
    pub fn report(&self) {
        for Unknown { key, source, nearest, note } in &self.unknown {
            match (note, nearest) {
                (Some(note), _) => tracing::warn!(option = key, %source, note, "Not read"),
                (None, Some(nearest)) => {
                    tracing::warn!(option = key, %source, nearest, "Unknown option, was another one meant?")
                }
                (None, None) => tracing::info!(option = key, %source, "Unknown option"),
            }
        }
        for Renamed { key, now, source } in &self.renamed {
            tracing::warn!(option = key, %source, now, "The option has another name now");
        }
        for setting in self.declared.values().filter(|setting| setting.source != Source::Default) {
            if let Some(instead) = setting.deprecated {
                tracing::warn!(option = setting.key, source = %setting.source, instead, "The option is deprecated");
            }
        }
        for setting in self.unused.iter().filter(|setting| !setting.is_default()) {
            tracing::info!(option = setting.key, source = %setting.source, "Option has no effect in this agent");
        }
    }
}

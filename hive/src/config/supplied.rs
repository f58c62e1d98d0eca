//! Values that a program supplies while it runs, and the drift of the running configuration from them.

use std::fmt;

use super::flag::Known;
use super::kind::Form;
use super::live::LiveConfig;
use super::observed::{Said, What};
use super::settings::{SECRET, Settings, Source};

/// A value of an option that comes from a source that the program itself watches, such as an object of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Supplied {
    /// The option.
    pub key: String,
    /// Its value, as it would be written in a file.
    pub value: String,
    /// The source of the values, as text.
    pub source: String,
}

impl Supplied {
    /// Returns a value of an option from this source.
    pub fn new(key: impl Into<String>, value: impl Into<String>, source: impl Into<String>) -> Self {
        Supplied { key: key.into(), value: value.into(), source: source.into() }
    }
}

/// A desired value that differs from the running one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// The option by its current name, or the key as it was found if it is unknown.
    pub key: String,
    /// The desired value.
    pub wanted: String,
    /// The value in force; none if the program has no such option and no other source sets the key.
    pub running: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drift { key, wanted, running } = self;
        match running {
            Some(running) => write!(f, "{key}: running with \"{running}\", wanted \"{wanted}\""),
            None => write!(f, "{key}: not set, wanted \"{wanted}\""),
        }
    }
}

impl LiveConfig {
    /// Replaces the supplied values; their precedence is above file and folder and below the environment. They take
    /// effect at the next [`reload`](LiveConfig::reload), as do those of files.
    pub fn supply(&self, values: Vec<Supplied>) {
        *self.supplied.lock() = values;
    }

    /// Compares the running value of an option with a desired one; returns the drift, if any. Values are compared by
    /// the option's type: `60s` equals `1m`. For a key that this program does not use, the running value is that of the
    /// sources that are not [supplied](LiveConfig::supply), or else its default.
    pub fn drift(&self, key: &str, value: &str) -> Option<Drift> {
        let (key, value) = (key.to_ascii_lowercase(), value.trim());
        let settings = self.settings();
        let Some(known) = self.schema.find_with_aliases(&key) else {
            let nearest = self.schema.nearest(&key);
            let secret = nearest.and_then(|name| self.schema.find(&name).map(|near| near.is_secret()));
            let wanted = if secret == Some(true) { SECRET } else { value };
            let running = elsewhere(&settings, &key);
            let same = running.as_deref() == Some(wanted);
            return (!same).then(|| Drift { key, wanted: wanted.to_owned(), running });
        };
        let parsed = known.parse(value, Form::Other).ok();
        let rendered = parsed.as_ref().map(|parsed| known.kind().render(parsed));
        let (same, running) = match known {
            Known::Declared(flag) => {
                let setting = settings.get(flag.name)?;
                (parsed.as_ref() == Some(&setting.parsed), setting.value.clone())
            }
            Known::Foreign(option) => {
                let running = elsewhere(&settings, &option.name).unwrap_or_else(|| known.default());
                (rendered.as_deref() == Some(running.as_str()), running)
            }
        };
        let wanted = match known.is_secret() {
            true => SECRET.to_owned(),
            false => rendered.unwrap_or_else(|| value.to_owned()),
        };
        (!same).then(|| Drift { key: known.name().to_owned(), wanted, running: Some(running) })
    }
}

/// Returns the value of a key in sources that are not supplied: the last one of the highest precedence.
fn elsewhere(settings: &Settings, key: &str) -> Option<String> {
    let said = settings.said.iter().filter(|said| said.key == key && is_value(said));
    let count = |said: &&Said| std::cmp::Reverse(said.source.priority());
    said.max_by_key(count).map(|said| said.text.clone())
}

fn is_value(said: &Said) -> bool {
    !matches!(said.source, Source::Supplied(_)) && !matches!(said.what, What::Wrong(_))
}

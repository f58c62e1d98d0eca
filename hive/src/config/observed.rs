//! The value of each source for an option, and its standing against the running value.

use std::collections::HashMap;
use std::fmt;

use figment::value::Value;

use super::settings::{SECRET, Setting, Settings, Source};

/// The value of one option in one source. The source with the lowest `priority` takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// The option, or the key as it was found if it is unknown.
    pub key: String,
    /// Where it was read; [`Source::Default`] for an option that was set at the start and is no longer.
    pub source: Source,
    /// 1 for the program itself, then the command line, the environment, values [supplied](crate::LiveConfig::supply)
    /// at run time, file or folder, the default.
    pub priority: u32,
    /// Its value in this source; `(secret)` for one that is never shown.
    pub value: String,
    /// The value that the program runs with; `None` if it has no such option.
    pub running: Option<String>,
    /// The outcome.
    pub standing: Standing,
}

/// The outcome of a value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The value takes effect.
    InForce,
    /// Another source has precedence.
    Overridden(Source),
    /// The value takes effect at the next start.
    NextStart,
    /// The configuration as a whole is refused, for this reason.
    Refused(String),
    /// The value is invalid for this option, for this reason.
    Wrong(String),
    /// The option is known, but this program does not use it.
    NoEffect,
    /// The option is unknown; this one may be meant.
    Unknown(Option<String>),
}

impl Standing {
    /// Whether the program runs with this value, or with one that has precedence over it.
    pub fn is_settled(&self) -> bool {
        matches!(self, Standing::InForce | Standing::Overridden(_))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::InForce => f.write_str("in force"),
            Standing::Overridden(source) => write!(f, "overridden by {source}"),
            Standing::NextStart => f.write_str("takes effect at the next start"),
            Standing::Refused(reason) => write!(f, "refused: {reason}"),
            Standing::Wrong(reason) => write!(f, "wrong: {reason}"),
            Standing::NoEffect => f.write_str("no effect in this program"),
            Standing::Unknown(Some(nearest)) => write!(f, "unknown, is {nearest} meant?"),
            Standing::Unknown(None) => f.write_str("unknown"),
        }
    }
}

impl Source {
    /// Returns the rank among the sources: the lowest takes effect.
    pub fn priority(&self) -> u32 {
        match self {
            Source::Program => 1,
            Source::Flag => 2,
            Source::Environment(_) => 3,
            Source::Supplied(_) => 4,
            Source::File(_) | Source::Directory(_) => 5,
            Source::Default => 6,
        }
    }
}

/// The value of a key in one source.
#[derive(Clone)]
pub(crate) struct Said {
    pub(crate) key: String,
    pub(crate) source: Source,
    /// The value as it may be shown: the placeholder for a secret.
    pub(crate) text: String,
    pub(crate) what: What,
}

#[derive(Clone)]
pub(crate) enum What {
    /// A value of a declared option.
    Declared(Value),
    /// The value of an accepted option that no cell declares; whether it differs from the default.
    Foreign(bool),
    Wrong(String),
    Unknown(Option<String>),
}

/// Compares the values of the sources with the running ones; `refusal` is the reason if the new configuration is
/// refused as a whole.
pub(crate) fn observe(said: &[Said], running: &Settings, refusal: Option<&str>) -> Vec<Observed> {
    let waiting = || refusal.map_or(Standing::NextStart, |reason| Standing::Refused(reason.to_owned()));
    let mut strongest: HashMap<&str, (usize, &Said)> = HashMap::new();
    for (at, one) in said.iter().enumerate() {
        let best = strongest.entry(&one.key).or_insert((at, one));
        // If two files set one option, the later one takes effect.
        if one.source.priority() <= best.1.source.priority() {
            *best = (at, one);
        }
    }
    let observed = |(at, one): (usize, &Said)| {
        let setting = running.get(&one.key);
        let standing = match (&one.what, strongest.get(one.key.as_str())) {
            (What::Wrong(reason), _) => Standing::Wrong(reason.clone()),
            (What::Unknown(nearest), _) => Standing::Unknown(nearest.clone()),
            (_, Some((other, stronger))) if *other != at => Standing::Overridden(stronger.source.clone()),
            (What::Foreign(true), _) => Standing::NoEffect,
            (What::Declared(value), _) if setting.is_some_and(|now| now.parsed != *value) => waiting(),
            _ => Standing::InForce,
        };
        Observed {
            key: one.key.clone(),
            source: one.source.clone(),
            priority: one.source.priority(),
            value: one.text.clone(),
            running: setting.map(|setting| setting.value.clone()),
            standing,
        }
    };
    // Running values that are no longer set in any source.
    let left = |setting: &&Setting| {
        setting.source != Source::Default
            && !setting.is_default()
            && !strongest.contains_key(setting.key.as_str())
    };
    let dropped = |setting: &Setting| Observed {
        key: setting.key.clone(),
        source: Source::Default,
        priority: Source::Default.priority(),
        value: if setting.is_secret() { SECRET.to_owned() } else { setting.default.clone() },
        running: Some(setting.value.clone()),
        standing: waiting(),
    };
    let mut all: Vec<Observed> = said.iter().enumerate().map(observed).collect();
    all.extend(running.iter().filter(left).map(dropped));
    all.sort_by(|a, b| (&a.key, a.priority).cmp(&(&b.key, b.priority)));
    all
}

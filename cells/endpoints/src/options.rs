//! The switches an endpoint carries, by the names of `PATCH /endpoint/{id}/config`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Values by name; kept as numbers, as in the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Options(pub BTreeMap<String, i32>);

/// Names with their defaults.
const DEFAULTS: [(&str, i32); 9] = [
    ("Debug", 0),
    ("DebugLB", 0),
    ("DebugPolicy", 0),
    ("DropNotification", 1),
    ("MonitorAggregationLevel", 0),
    (POLICY_AUDIT_MODE, 0),
    ("PolicyVerdictNotification", 1),
    (SOURCE_IP_VERIFICATION, 0),
    ("TraceNotification", 1),
];

/// Whether packets must carry the endpoint's own source address.
pub(crate) const SOURCE_IP_VERIFICATION: &str = "SourceIPVerification";
/// Whether policy only reports.
pub(crate) const POLICY_AUDIT_MODE: &str = "PolicyAuditMode";
const AGGREGATION: &str = "MonitorAggregationLevel";
const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Maximum"];

impl Default for Options {
    fn default() -> Options {
        Options(DEFAULTS.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    }
}

/// Why a change of options is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOption {
    /// There is no such option.
    #[error("unknown option {0:?}")]
    Unknown(String),
    /// The option exists, the value does not.
    #[error("invalid option value {value:?} of {name}")]
    Value {
        /// The option.
        name: String,
        /// The value.
        value: String,
    },
}

impl Options {
    /// Whether the option is on.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|&value| value != 0)
    }

    /// The options with one switched on or off.
    #[must_use]
    pub fn with(mut self, name: &str, on: bool) -> Options {
        self.0.insert(name.to_owned(), i32::from(on));
        self
    }

    /// Names and values as the API prints them.
    pub fn words(&self) -> BTreeMap<String, String> {
        let word = |name: &str, value: i32| match (name, value) {
            (AGGREGATION, level) => usize::try_from(level)
                .ok()
                .and_then(|level| LEVELS.get(level))
                .map_or_else(|| level.to_string(), |&word| word.to_owned()),
            (_, 0) => "Disabled".to_owned(),
            _ => "Enabled".to_owned(),
        };
        self.0.iter().map(|(name, &value)| (name.clone(), word(name, value))).collect()
    }

    /// The options after a change given in words; all or nothing.
    pub fn changed<'a>(
        &self,
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Options, BadOption> {
        let mut options = self.clone();
        for (name, word) in words {
            let known = DEFAULTS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let Some(&(name, _)) = known else {
                return Err(BadOption::Unknown(name.to_owned()));
            };
            let value = match name {
                AGGREGATION => level(word),
                _ => switch(word),
            };
            let Some(value) = value else {
                return Err(BadOption::Value { name: name.to_owned(), value: word.to_owned() });
            };
            options.0.insert(name.to_owned(), value);
        }
        Ok(options)
    }
}

fn switch(word: &str) -> Option<i32> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "on" | "enable" | "enabled" | "1" => Some(1),
        "false" | "off" | "disable" | "disabled" | "0" => Some(0),
        _ => None,
    }
}

fn level(word: &str) -> Option<i32> {
    match word.to_ascii_lowercase().as_str() {
        "" | "none" | "disabled" | "0" => Some(0),
        "lowest" | "1" => Some(1),
        "low" | "2" => Some(2),
        "medium" | "3" => Some(3),
        "max" | "maximum" | "4" => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_defaults() {
        let words = Options::default().words();
        assert_eq!(words["DropNotification"], "Enabled");
        assert_eq!(words["Debug"], "Disabled");
        assert_eq!(words["MonitorAggregationLevel"], "None");
        assert_eq!(words.len(), 9);
    }

    #[test]
    fn a_change_is_all_or_nothing() {
        let before = Options::default();
        let after = before.changed([("debug", "enabled"), ("MonitorAggregationLevel", "medium")]).unwrap();
        assert_eq!((after.0["Debug"], after.0["MonitorAggregationLevel"]), (1, 3));
        let unknown = before.changed([("Debug", "true"), ("Nonsense", "true")]).unwrap_err();
        assert_eq!(unknown.to_string(), "unknown option \"Nonsense\"");
        let value = before.changed([("Debug", "perhaps")]).unwrap_err();
        assert_eq!(value.to_string(), "invalid option value \"perhaps\" of Debug");
    }
}

//! The options of an endpoint, by the names of `PATCH /endpoint/{id}/config`.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath_abi::ep_flag;
use runtime_options::{
    DROP_NOTIFICATION, MONITOR_AGGREGATION_LEVEL, POLICY_AUDIT_MODE, POLICY_VERDICT_NOTIFICATION,
    RuntimeOption, SOURCE_IP_VERIFICATION, TRACE_NOTIFICATION, level, switch,
};
use serde::{Deserialize, Serialize};
use statedb::Table;

/// Values by name; kept as numbers, as in the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Options(pub BTreeMap<String, i32>);

/// Names with their defaults.
const DEFAULTS: [(&str, i32); 9] = [
    ("Debug", 0),
    ("DebugLB", 0),
    ("DebugPolicy", 0),
    (DROP_NOTIFICATION, 1),
    (MONITOR_AGGREGATION_LEVEL, 0),
    (POLICY_AUDIT_MODE, 0),
    (POLICY_VERDICT_NOTIFICATION, 1),
    (SOURCE_IP_VERIFICATION, 0),
    (TRACE_NOTIFICATION, 1),
];

const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Maximum"];

impl Default for Options {
    fn default() -> Options {
        Options(DEFAULTS.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    }
}

/// Options of new endpoints. They do not include the node's event options: programs check those in addition to the
/// endpoint's own, so that a change of a node option affects all endpoints at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    start: Options,
    node: Option<Arc<Table<RuntimeOption>>>,
}

impl Defaults {
    /// Returns defaults that start with `start`; rows of the node's table override them.
    pub(crate) fn new(start: Options, node: Option<Arc<Table<RuntimeOption>>>) -> Defaults {
        Defaults { start, node }
    }

    /// Returns the options of an endpoint that is created now.
    pub(crate) fn now(&self) -> Options {
        let Some(node) = &self.node else { return self.start.clone() };
        let snapshot = node.snapshot();
        let inherited = [SOURCE_IP_VERIFICATION, POLICY_AUDIT_MODE];
        inherited.into_iter().fold(self.start.clone(), |options, name| {
            match node.get(&snapshot, RuntimeOption::by_name(name)) {
                Some(row) => options.with(name, row.enabled()),
                None => options,
            }
        })
    }
}

/// An invalid change of options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOption {
    /// There is no such option.
    #[error("unknown option {0:?}")]
    Unknown(String),
    /// The option does not have this value.
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

    /// Returns the options with one switched on or off.
    #[must_use]
    pub fn with(mut self, name: &str, on: bool) -> Options {
        self.0.insert(name.to_owned(), i32::from(on));
        self
    }

    /// Returns the options as flags for the datapath: bits of [`ep_flag`].
    pub(crate) fn flags(&self) -> u32 {
        let bit = |on: bool, bit| if on { bit } else { 0 };
        let level = self.0.get(MONITOR_AGGREGATION_LEVEL).copied().unwrap_or(0);
        bit(self.enabled(SOURCE_IP_VERIFICATION), ep_flag::SOURCE_CHECK)
            | bit(self.0.get(DROP_NOTIFICATION) == Some(&0), ep_flag::NO_DROP_NOTIFY)
            | bit(self.0.get(TRACE_NOTIFICATION) == Some(&0), ep_flag::NO_TRACE_NOTIFY)
            | bit(self.0.get(POLICY_VERDICT_NOTIFICATION) == Some(&0), ep_flag::NO_POLICY_VERDICT_NOTIFY)
            | bit(self.enabled(POLICY_AUDIT_MODE), ep_flag::POLICY_AUDIT)
            | ep_flag::with_aggregation(level.clamp(0, 4) as u32)
    }

    /// Returns names and values as the API prints them.
    pub fn words(&self) -> BTreeMap<String, String> {
        let word = |name: &str, value: i32| match (name, value) {
            (MONITOR_AGGREGATION_LEVEL, level) => usize::try_from(level)
                .ok()
                .and_then(|level| LEVELS.get(level))
                .map_or_else(|| level.to_string(), |&word| word.to_owned()),
            (_, 0) => "Disabled".to_owned(),
            _ => "Enabled".to_owned(),
        };
        self.0.iter().map(|(name, &value)| (name.clone(), word(name, value))).collect()
    }

    /// Returns the options after changes by name and text; all or nothing.
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
                MONITOR_AGGREGATION_LEVEL => level(word).map(|level| level as i32),
                _ => switch(word).map(i32::from),
            };
            let Some(value) = value else {
                return Err(BadOption::Value { name: name.to_owned(), value: word.to_owned() });
            };
            options.0.insert(name.to_owned(), value);
        }
        Ok(options)
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

    #[test]
    fn the_datapath_gets_what_is_switched_off() {
        let flags =
            |words: &[(&str, &str)]| Options::default().changed(words.iter().copied()).unwrap().flags();
        assert_eq!(flags(&[]), 0);
        assert_eq!(flags(&[("SourceIPVerification", "on")]), ep_flag::SOURCE_CHECK);
        assert_eq!(flags(&[("DropNotification", "off")]), ep_flag::NO_DROP_NOTIFY);
        assert_eq!(flags(&[("TraceNotification", "off")]), ep_flag::NO_TRACE_NOTIFY);
        assert_eq!(flags(&[("PolicyVerdictNotification", "off")]), ep_flag::NO_POLICY_VERDICT_NOTIFY);
        assert_eq!(flags(&[("PolicyAuditMode", "on")]), ep_flag::POLICY_AUDIT);
        assert_eq!(ep_flag::aggregation(flags(&[("MonitorAggregationLevel", "medium")])), 3);
    }

    #[test]
    fn new_endpoints_check_sources_if_the_node_says_so_now() {
        let start = Options::default().with(SOURCE_IP_VERIFICATION, true);
        assert_eq!(Defaults::new(start.clone(), None).now(), start);
        let table: statedb::RwTable<RuntimeOption> = statedb::Db::new().table().unwrap();
        let defaults = Defaults::new(start.clone(), Some(Arc::new(table.reader())));
        assert_eq!(defaults.now(), start);
        let set = |name, value| drop(table.transact(|w| w.insert(RuntimeOption::new(name, value).unwrap())));
        set(SOURCE_IP_VERIFICATION, "off");
        set(TRACE_NOTIFICATION, "off");
        assert_eq!(defaults.now(), Options::default());
    }
}

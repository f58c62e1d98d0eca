//! The records of endpoints: their names, and the DNS rules that apply until policies are in force again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fqdn::History;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use state_file::{Records, Schema, Version};

/// The consequence of a damaged record.
const CONSEQUENCE: &str = "connections of that endpoint to DNS names are denied until it asks for them again";

/// A record, in the form of the fields of Cilium's endpoint records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct NamesRecord {
    #[serde(rename = "DNSHistory", default)]
    pub(crate) history: Vec<Value>,
    #[serde(rename = "DNSZombies", default)]
    pub(crate) zombies: BTreeMap<String, Value>,
    #[serde(rename = "DNSRulesV2", default)]
    pub(crate) rules: Value,
}

impl Schema for NamesRecord {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "the DNS names that an endpoint has looked up";
}

/// Returns the version of the records.
pub(crate) fn version() -> Version {
    Version::of::<NamesRecord>()
}

/// Returns the records in a folder, one per endpoint.
pub(crate) fn records(folder: PathBuf) -> Arc<Records<NamesRecord>> {
    Arc::new(Records::new(folder, CONSEQUENCE))
}

impl NamesRecord {
    /// Returns the record of an endpoint.
    pub(crate) fn new(history: &History, rules: Value) -> NamesRecord {
        let (history, zombies) = history.to_record();
        NamesRecord { history, zombies, rules }
    }

    /// Returns the names. Entries that cannot be read are logged and left out.
    pub(crate) fn history(&self, endpoint: u16) -> History {
        let (history, errors) = History::from_record(&self.history, &self.zombies);
        for error in errors {
            tracing::warn!(endpointID = endpoint, %error, "Ignoring a DNS name of the previous run");
        }
        history
    }
}

#[cfg(test)]
mod tests {
    use fqdn::{Limits, Lookup};

    use super::*;

    #[test]
    fn names_and_rules_survive_in_the_form_of_cilium() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        history.insert(Lookup::new("a.io", vec!["192.0.2.1".parse().unwrap()], 60, now), &Limits::default());
        let first = records(folder.path().to_owned());
        first.put("7", &NamesRecord::new(&history, serde_json::json!({"17891381": []})));
        first.write().unwrap();
        let second = records(folder.path().to_owned());
        second.restore().unwrap();
        let record = second.claim("7").unwrap();
        assert_eq!(record.history(7), history);
        assert_eq!(record.history[0]["fqdn"], "a.io.");
        assert_eq!(record.rules["17891381"], serde_json::json!([]));
    }
}

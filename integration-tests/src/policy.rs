//! Waiting until policies are in force.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use test_kit::try_wait_until;

use crate::Node;

/// How long policies may take; no promise, that is measured by the benchmarks.
const LIMIT: Duration = Duration::from_secs(120);
/// The label of a rule with its object's name.
const NAME: &str = "io.cilium.k8s.policy.name";

impl Node {
    /// Waits until exactly the policies of these names are there and every pod has them in its map; how long it took.
    ///
    /// # Panics
    /// When that takes too long; the message says what is missing and holds the agent's log.
    pub fn wait_policies(&self, names: &[impl AsRef<str>]) -> Duration {
        self.wait_rules(NAME, names)
    }

    /// Waits until the rules there are have exactly these values of a label, and every pod has them in its map; how long
    /// it took.
    ///
    /// # Panics
    /// When that takes too long; the message says what is missing and holds the agent's log.
    pub fn wait_rules(&self, label: &str, values: &[impl AsRef<str>]) -> Duration {
        let begin = Instant::now();
        let wanted: BTreeSet<&str> = values.iter().map(AsRef::as_ref).collect();
        let result = try_wait_until(LIMIT, || {
            let policy = self.get("/v1/policy");
            let rules: Value = serde_json::from_str(policy["policy"].as_str().unwrap_or("[]"))
                .map_err(|e| format!("{e}: {policy}"))?;
            let there: BTreeSet<&str> =
                rules.as_array().into_iter().flatten().filter_map(|rule| value(rule, label)).collect();
            if there != wanted {
                return Err(format!("there are {there:?}, wanted are {wanted:?}"));
            }
            let revision = policy["revision"].as_u64().unwrap_or(0);
            let endpoints = self.get("/v1/endpoint");
            let behind: Vec<&Value> = endpoints
                .as_array()
                .into_iter()
                .flatten()
                .filter(|e| e["status"]["identity"]["id"] != 1 && realized(e) < revision)
                .map(|e| &e["status"]["policy"])
                .collect();
            match behind.is_empty() {
                true => Ok(()),
                false => Err(format!("not at revision {revision}: {behind:?}")),
            }
        });
        if let Err(error) = result {
            panic!("{error}\nlog of the agent:\n{}", self.log());
        }
        begin.elapsed()
    }
}

/// Value of a label of a rule.
fn value<'a>(rule: &'a Value, key: &str) -> Option<&'a str> {
    let labels = rule["Labels"].as_array()?;
    labels.iter().find(|label| label["key"] == key)?["value"].as_str()
}

/// The revision of the policies that an endpoint has in its map.
fn realized(endpoint: &Value) -> u64 {
    endpoint["status"]["policy"]["realized"]["policy-revision"].as_u64().unwrap_or(0)
}

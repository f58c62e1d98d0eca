//! The rate of API server requests of an idle agent.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use cluster_stage::{Stage, StageOptions, User};
use integration_tests::Cluster;
use k8s_types::schema::custom_resource_definitions;
use test_kit::require_root;

/// Requests that are allowed in ten seconds.
const LIMIT: f64 = 1.0;

/// Duration of idleness: longer than the interval of the heartbeat.
const IDLE: Duration = Duration::from_secs(40);

/// Requests of the agent as the API server's audit log has them: verb and URI, oldest first.
fn requests(stage: &Stage) -> Vec<(String, String)> {
    let mut requests = BTreeMap::new();
    for (at, entry) in stage.audit().unwrap().into_iter().enumerate() {
        if entry["user"]["username"] == User::Agent.name() {
            let text = |name: &str| entry[name].as_str().unwrap().to_owned();
            // One that lasts is in the log when it begins and when it ends.
            requests.entry(text("auditID")).or_insert((at, (text("verb"), text("requestURI"))));
        }
    }
    let mut requests: Vec<_> = requests.into_values().collect();
    requests.sort();
    requests.into_iter().map(|(_, request)| request).collect()
}

/// Returns the duration after which the server ends a watch, in seconds.
fn lasts(uri: &str) -> f64 {
    let seconds = uri.split(['?', '&']).find_map(|part| part.strip_prefix("timeoutSeconds="));
    seconds.unwrap_or_else(|| panic!("{uri} has no end")).parse().unwrap()
}

/// The requests while nothing happens, and on top of them the watches that are open, each of which is asked for again when
/// its time is up: of those the few that end by chance within the test would say nothing.
#[test]
fn an_agent_that_is_left_alone_asks_less_than_once_in_ten_seconds() {
    require_root!();
    let options = StageOptions { audit: true, ..StageOptions::default() };
    let mut cluster = Cluster::with(&options, &custom_resource_definitions());
    cluster.start();
    cluster.until_equal();
    // The requests of the start are over.
    thread::sleep(Duration::from_secs(10));
    let before = requests(&cluster.stage);
    thread::sleep(IDLE);
    let all = requests(&cluster.stage);
    let idle = &all[before.len()..];

    let watches: Vec<&str> =
        before.iter().filter(|(verb, _)| verb == "watch").map(|(_, uri)| uri.as_str()).collect();
    assert!(watches.len() >= 10, "{before:?}");
    let again: f64 = watches.iter().map(|uri| 10.0 / lasts(uri)).sum();
    let asked = idle.len() as f64 * 10.0 / IDLE.as_secs_f64();
    assert!(asked + again < LIMIT, "{asked} + {again}: {idle:?}, {watches:?}");
}

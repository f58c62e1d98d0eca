//! Objects of this node without an endpoint: functions of objects alone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_tables::Key;
use k8s_writer::Step;
use serde_json::Value;

use crate::remote::Remote;

/// Returns the names whose node has one of these addresses and that are not among those of the local endpoints.
pub(crate) fn stale(
    endpoints: Vec<(Key, Remote<'_>)>,
    own: &[IpAddr],
    local: &BTreeSet<Key>,
) -> BTreeSet<Key> {
    let is_own = |remote: &Remote<'_>| remote.node().is_some_and(|node| own.contains(&node));
    let stale = endpoints.into_iter().filter(|(key, remote)| is_own(remote) && !local.contains(key));
    stale.map(|(key, _)| key).collect()
}

/// Returns the step to delete an object if its node has one of these addresses: a slice may be older than the object.
pub(crate) fn delete_own(own: &[IpAddr], present: Option<&Value>) -> Step {
    let Some(present) = present else { return Step::Done };
    let node = present.pointer("/status/networking/node").and_then(Value::as_str);
    let is_own = node.and_then(|node| node.parse().ok()).is_some_and(|node| own.contains(&node));
    match (is_own, present["metadata"]["uid"].as_str()) {
        (true, Some(uid)) => Step::delete(uid),
        _ => Step::Done,
    }
}

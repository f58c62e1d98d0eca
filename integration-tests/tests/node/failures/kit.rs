//! A node, with observation of repairs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use bpf::RawMap;
use integration_tests::Node;
use serde_json::json;
use test_kit::try_wait_until;

/// Limit of the wait for a repair or a report on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Creates a node with this interval of the datapath's watchdog; the agent is not started.
pub(crate) fn node(interval: &str) -> Node {
    let mut node = Node::new();
    let options =
        [("prometheus-serve-addr", "127.0.0.1:9962"), ("endpoint-bpf-prog-watchdog-interval", interval)];
    node.config.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    node
}

/// Waits for a condition; panics with the agent's health and log if it is not met.
pub(crate) fn until(node: &Node, what: &str, mut ready: impl FnMut() -> bool) {
    let probe = || if ready() { Ok(()) } else { Err(String::new()) };
    if try_wait_until(LIMIT, probe).is_err() {
        let repairs = node.metrics().into_iter().filter(|line| line.contains("repairs_total{"));
        panic!("{what}\n{}\n{:#?}\n{}", health(node), repairs.collect::<Vec<_>>(), node.log());
    }
}

/// Waits until a state equals the expected one; panics with the difference if it does not.
pub(crate) fn until_equal<T: PartialEq + std::fmt::Debug>(
    node: &Node,
    what: &str,
    expected: &T,
    mut probe: impl FnMut() -> T,
) {
    let found = try_wait_until(LIMIT, || match probe() {
        found if found == *expected => Ok(()),
        found => Err(format!("{found:#?}")),
    });
    if let Err(found) = found {
        panic!("{what}: {found}, not {expected:#?}\n{}\n{}", health(node), node.log());
    }
}

/// Returns the agent's modules that `apiary status` shows as degraded, with their errors.
pub(crate) fn health(node: &Node) -> String {
    let status = node.get("/v1/healthz");
    format!("{} {}", status["cilium"]["state"].as_str().unwrap(), status["cilium"]["msg"].as_str().unwrap())
}

/// Waits until nothing is degraded.
pub(crate) fn until_well(node: &Node) {
    until(node, "the agent is well again", || health(node).starts_with("Ok "));
}

/// Returns the value of the metric's line with this prefix.
pub(crate) fn metric(node: &Node, begin: &str) -> u64 {
    let lines = node.metrics();
    let line = lines.iter().find(|line| line.starts_with(begin));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{begin}: {lines:#?}"))
}

/// Returns the number of repairs of a kind.
pub(crate) fn repairs(node: &Node, kind: &str) -> u64 {
    metric(node, &format!("cilium_datapath_repairs_total{{kind=\"{kind}\"}}"))
}

/// Returns how many times the log has this text.
pub(crate) fn logged(node: &Node, text: &str) -> usize {
    node.log().lines().filter(|line| line.contains(text)).count()
}

/// Returns the kernel ids of all pinned maps by name.
pub(crate) fn pinned_maps(node: &Node) -> BTreeMap<String, u32> {
    let folder = node.pin("");
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Some((id(&folder.join(&name))?, name))).map(|(id, name)| (name, id)).collect()
}

fn id(path: &Path) -> Option<u32> {
    RawMap::open(path).and_then(|map| map.info()).ok().map(|info| info.id)
}

/// Rows of a table.
pub(crate) fn rows(node: &Node, table: &str) -> Vec<serde_json::Value> {
    let dump = node.get(&format!("/statedb/dump/{table}"));
    dump[table].as_array().cloned().unwrap_or_default()
}

/// Returns a policy that allows only the pod with this name to reach the pod `b`.
pub(crate) fn allows(from: &str) -> String {
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"name": "b"}},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"name": from}}]}],
        },
    })
    .to_string()
}

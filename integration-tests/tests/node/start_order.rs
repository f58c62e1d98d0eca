//! The order in which the agent starts, which `agent/src/lib.rs` compares with Cilium's.

use integration_tests::Node;
use test_kit::require_root;

/// Start hooks but those of jobs, which only begin to run.
const HOOKS: [(&str, &str); 21] = [
    ("pid-file", "agent.instance"),
    ("health-history", "agent.infra.health"),
    ("maps", "agent.datapath.maps"),
    ("state-of-cluster-folder", "agent.controlplane.k8s"),
    ("last-good-of-cluster-folder", "agent.controlplane.k8s"),
    ("devices", "agent.datapath.devices-controller"),
    ("node-addresses", "agent.datapath.node-address"),
    ("local-node", "agent.controlplane.local-node"),
    ("datapath", "agent.datapath.loader"),
    ("ports", "agent.datapath.proxy-ports"),
    ("last-good-policies", "agent.controlplane.policy"),
    ("identity-restore", "agent.controlplane.identity"),
    ("ipcache", "agent.controlplane.ipcache"),
    ("ipam", "agent.controlplane.ipam"),
    ("status-collector", "agent.infra.agent-healthz"),
    ("endpoint-restore", "agent.controlplane.endpoints"),
    ("restore-names", "agent.controlplane.fqdn-names"),
    ("api-server", "agent.infra.api-server"),
    ("agent-healthz", "agent.infra.agent-healthz"),
    ("health-history-file", "agent.infra.health"),
    ("service-ids", "agent.controlplane.loadbalancer-reconciler"),
];

#[test]
fn hooks_start_in_the_documented_order() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("debug".to_owned(), "true".to_owned());
    node.start();
    let log = node.log();
    let field = |line: &str, name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no field {name}: {line}")).to_owned()
    };
    let hooks: Vec<(String, String)> = (log.lines())
        .filter(|line| line.contains("Executing start hook"))
        .map(|line| (field(line, "hook"), field(line, "module")))
        .filter(|(hook, _)| !hook.contains("job-"))
        .collect();
    let hooks: Vec<(&str, &str)> =
        hooks.iter().map(|(hook, module)| (hook.as_str(), module.as_str())).collect();
    assert_eq!(hooks, HOOKS);
}

//! Metrics of services, with Cilium's names.

use hive::config::FlagValue as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::ServicesConfig;
use crate::lbmap::rows::LbMap;

/// The change of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Add,
    Update,
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Event {
    action: &'static str,
}

/// `cilium_services_events_total`, `cilium_k8s_terminating_endpoints_events_total`
#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    services: Family<Event, Counter>,
    terminating: Counter,
}

impl Events {
    pub(crate) fn count(&self, action: Action) {
        let action = match action {
            Action::Add => "add",
            Action::Update => "update",
            Action::Delete => "delete",
        };
        self.services.get_or_create(&Event { action }).inc();
    }

    /// Counts the terminating endpoints of a slice that was added or changed.
    pub(crate) fn count_terminating(&self, endpoints: usize) {
        self.terminating.inc_by(endpoints as u64);
    }

    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Number of services events labeled by action type";
        metrics.register("services_events_total", help, self.services.clone());
        let help = "Number of terminating endpoint events received from Kubernetes";
        metrics.register("k8s_terminating_endpoints_events_total", help, self.terminating.clone());
    }
}

/// Operations on the entries of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Update,
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMap {
    map_name: &'static str,
    operation: &'static str,
    outcome: &'static str,
}

/// `cilium_bpf_map_ops_total` of the load balancer maps: each written or deleted entry, and each call that the kernel
/// refused, as it does not report the entry that failed. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct MapOperations(Family<OfMap, Counter>);

impl MapOperations {
    /// Registers the counters.
    pub fn register(&self, metrics: &metrics::Metrics) {
        let help = "Total operations on map, tagged by map name";
        metrics.register("bpf_map_ops_total", help, self.0.clone());
    }

    /// Counts an operation on this number of entries by its result, and returns the result.
    pub(crate) fn count<E>(
        &self,
        map: LbMap,
        operation: Operation,
        rows: usize,
        result: Result<(), E>,
    ) -> Result<(), E> {
        if rows == 0 {
            return result;
        }
        let operation = match operation {
            Operation::Update => "update",
            Operation::Delete => "delete",
        };
        let (outcome, count) = match result {
            Ok(()) => ("success", rows as u64),
            Err(_) => ("fail", 1),
        };
        let map_name = map.name().trim_start_matches("cilium_");
        self.0.get_or_create(&OfMap { map_name, operation, outcome }).inc_by(count);
        result
    }
}

/// `cilium_feature_adv_connect_and_lb_*`: the features of load balancing in use.
pub(crate) fn register_features(metrics: &metrics::Metrics, config: &ServicesConfig) {
    let labels = [
        ("acceleration", config.bpf_lb_acceleration.render()),
        ("algorithm", config.bpf_lb_algorithm.render()),
        ("mode", config.bpf_lb_mode.render()),
    ];
    let configuration = Family::<Vec<(&'static str, String)>, Gauge>::default();
    configuration.get_or_create(&labels.to_vec()).set(1);
    let name = "feature_adv_connect_and_lb_node_port_configuration";
    metrics.register(name, "Node port configuration of the agent", configuration);
    let replaces = config.kube_proxy_replacement;
    let name = "adv_connect_and_lb_kube_proxy_replacement_enabled";
    metrics.register_feature(name, "Whether the agent serves all services of the node", move || replaces);
    for (feature, what) in ABSENT {
        let name = format!("adv_connect_and_lb_{feature}_enabled");
        metrics.register_feature(&name, &format!("Whether the agent has {what}"), || false);
    }
}

/// Features of Cilium's group that this agent does not have.
const ABSENT: [(&str, &str); 7] = [
    ("bandwidth_manager", "a bandwidth manager"),
    ("bgp", "a BGP control plane"),
    ("cilium_envoy_config", "CiliumEnvoyConfigs"),
    ("egress_gateway", "egress gateways"),
    ("l2_lb", "announcements of services on layer 2"),
    ("l2_pod_announcement", "announcements of pods on layer 2"),
    ("vtep", "VXLAN tunnel endpoints"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Acceleration;
    use crate::lbmap::rows::Family as Of;

    #[test]
    fn operations_are_counted_by_map_and_outcome() {
        let (metrics, operations) = (metrics::Metrics::default(), MapOperations::default());
        operations.register(&metrics);
        let count = |map, operation, rows, result| operations.clone().count(map, operation, rows, result);
        let services = LbMap::Services(Of::V4);
        assert_eq!(count(services, Operation::Update, 7, Ok::<(), &str>(())), Ok(()));
        assert_eq!(count(services, Operation::Update, 9, Err("full")), Err("full"));
        assert_eq!(count(LbMap::Maglev(Of::V6), Operation::Delete, 2, Ok(())), Ok(()));
        assert_eq!(count(LbMap::AffinityMatch, Operation::Delete, 0, Ok(())), Ok(()));
        let text = metrics.text();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        let name = "cilium_bpf_map_ops_total";
        let expected = [
            format!("{name}{{map_name=\"lb4_services_v2\",operation=\"update\",outcome=\"fail\"}} 1"),
            format!("{name}{{map_name=\"lb4_services_v2\",operation=\"update\",outcome=\"success\"}} 7"),
            format!("{name}{{map_name=\"lb6_maglev\",operation=\"delete\",outcome=\"success\"}} 2"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn how_services_are_served() {
        let metrics = metrics::Metrics::default();
        register_features(&metrics, &ServicesConfig::default());
        let expected = "cilium_feature_adv_connect_and_lb_node_port_configuration{acceleration=\"disabled\",\
                    algorithm=\"random\",mode=\"snat\"} 1\n";
        assert!(metrics.text().contains(expected), "{}", metrics.text());
        let replacement = "\ncilium_feature_adv_connect_and_lb_kube_proxy_replacement_enabled 1\n";
        assert!(!metrics.text().contains(replacement));
        let metrics = metrics::Metrics::default();
        let bpf_lb_acceleration = Acceleration::BestEffort;
        let config =
            ServicesConfig { kube_proxy_replacement: true, bpf_lb_acceleration, ..Default::default() };
        register_features(&metrics, &config);
        assert!(metrics.text().contains(replacement), "{}", metrics.text());
        assert!(metrics.text().contains("{acceleration=\"best-effort\","), "{}", metrics.text());
    }
}

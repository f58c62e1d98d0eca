//! Metrics of the features that policies use: `cilium_feature_network_policies_*_total`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use policy_engine::{Feature, Kind, Policy};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

const ADD: usize = 0;
const DEL: usize = 1;
/// The values of the label `action`.
const ACTIONS: [&str; 2] = ["add", "del"];

/// Policies of Cilium's two kinds, by their own names.
const KINDS: [(Kind, &str); 2] = [
    (Kind::CiliumNetworkPolicy, "cilium_network_policies"),
    (Kind::CiliumClusterwideNetworkPolicy, "cilium_clusterwide_network_policies"),
];

const OF_RULES: &str = "Number of rules with this feature that were added or deleted since the start.";
const OF_POLICIES: &str = "Number of policies of this kind that were added or deleted since the start.";

/// Added and deleted ones since the start.
type Count = [AtomicU64; ACTIONS.len()];

/// Counts of rules by the features that they use, and of policies by kind. A rule of a policy that changes is deleted and
/// added.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeatureCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    rules: [Count; Feature::ALL.len()],
    policies: [Count; KINDS.len()],
}

impl FeatureCounters {
    /// Counts a policy that takes another one's place; `None` if there is none before or after.
    pub(crate) fn replaced(&self, old: Option<&Policy>, new: Option<&Policy>) {
        if old == new {
            return;
        }
        for (action, policy) in [(DEL, old), (ADD, new)] {
            let Some(policy) = policy else { continue };
            for (feature, count) in Feature::ALL.into_iter().zip(&self.0.rules) {
                let users = policy.entries.iter().filter(|entry| feature.is_in(entry)).count();
                count[action].fetch_add(users as u64, Ordering::Relaxed);
            }
            if old.is_none() || new.is_none() {
                let counts = KINDS.into_iter().zip(&self.0.policies);
                for (_, count) in counts.filter(|((kind, _), _)| *kind == policy.resource.kind) {
                    count[action].fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Returns the name of a feature in metrics.
fn name(feature: Feature) -> &'static str {
    match feature {
        Feature::Layer3 => "l3_policies",
        Feature::Host => "host_network_policies",
        Feature::Dns => "dns_policies",
        Feature::Fqdn => "fqdn_policies",
        Feature::Http => "http_policies",
        Feature::HttpHeaderMatches => "http_header_matches_policies",
        Feature::Deny => "deny_policies",
        Feature::IngressCidrGroup => "ingress_cidr_group_policies",
        Feature::MutualAuth => "mutual_auth_policies",
        Feature::TlsInspection => "tls_inspection_policies",
        Feature::SniAllowList => "sni_allow_list_policies",
        Feature::NonDefaultDeny => "non_defaultdeny_policies",
    }
}

/// As in Cilium a feature that was never used has no series.
impl Collector for FeatureCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let rules = Feature::ALL.into_iter().map(name).zip(&self.0.rules);
        let policies = KINDS.into_iter().map(|(_, name)| name).zip(&self.0.policies);
        let rules = rules.map(|(name, count)| (name, OF_RULES, count));
        let policies = policies.map(|(name, count)| (name, OF_POLICIES, count));
        for (name, help, count) in rules.chain(policies) {
            let counts = count.each_ref().map(|count| count.load(Ordering::Relaxed));
            if counts == [0, 0] {
                continue;
            }
            let name = format!("feature_network_policies_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for (action, count) in ACTIONS.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
                ConstCounter::new(count).encode(family.encode_family(&[("action", action)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use metrics::Metrics;
    use policy_engine::{Settings, parse};
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: Value) -> Policy {
        let manifest = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec});
        parse(Kind::CiliumNetworkPolicy, &manifest, &Settings::default()).unwrap()
    }

    #[test]
    fn rules_are_counted_by_feature_when_a_policy_comes_changes_and_goes() {
        let counters = FeatureCounters::default();
        let metrics = Metrics::default();
        metrics.register_collector(counters.clone());
        assert_eq!(metrics.text(), "", "nothing is in use");
        let web = json!({"matchLabels": {"app": "web"}});
        let port = |rules: Value| json!([{"ports": [{"port": "80", "protocol": "TCP"}], "rules": rules}]);
        let first = policy(json!({
            "endpointSelector": web,
            "ingress": [
                {"fromCIDR": ["192.0.2.0/24"]},
                {"fromCIDRSet": [{"cidrGroupRef": "partners"}], "authentication": {"mode": "required"}},
                {"toPorts": port(json!({"http": [{"path": "/", "headerMatches": [{"name": "a", "mismatch": "LOG", "value": "b"}]}]}))},
            ],
            "egressDeny": [{"toEntities": ["world"]}],
        }));
        let second = policy(json!({
            "endpointSelector": web,
            "enableDefaultDeny": {"egress": false},
            "egress": [
                {"toFQDNs": [{"matchName": "a.test"}]},
                {"toPorts": [{"ports": [{"port": "53", "protocol": "UDP"}], "rules": {"dns": [{"matchPattern": "*"}]}}]},
                {"toPorts": [{"ports": [{"port": "443", "protocol": "TCP"}], "serverNames": ["a.test"]}]},
                {},
            ],
        }));
        let series = || {
            let text = metrics.text();
            let lines = text.lines().filter_map(|line| line.strip_prefix("cilium_feature_network_policies_"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        counters.replaced(None, Some(&first));
        counters.replaced(Some(&first), Some(&first));
        let added = [
            "cilium_network_policies_total{action=\"add\"} 1",
            "deny_policies_total{action=\"add\"} 1",
            "http_header_matches_policies_total{action=\"add\"} 1",
            "http_policies_total{action=\"add\"} 1",
            "ingress_cidr_group_policies_total{action=\"add\"} 1",
            "l3_policies_total{action=\"add\"} 4",
            "mutual_auth_policies_total{action=\"add\"} 1",
        ];
        assert_eq!(series(), added);
        counters.replaced(Some(&first), Some(&second));
        let text = series().join("\n");
        for line in [
            "cilium_network_policies_total{action=\"add\"} 1",
            "l3_policies_total{action=\"add\"} 7",
            "l3_policies_total{action=\"del\"} 4",
            "deny_policies_total{action=\"del\"} 1",
            "dns_policies_total{action=\"add\"} 1",
            "fqdn_policies_total{action=\"add\"} 1",
            "non_defaultdeny_policies_total{action=\"add\"} 4",
            "sni_allow_list_policies_total{action=\"add\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(!text.contains("cilium_network_policies_total{action=\"del\"}"), "it is there");
        counters.replaced(Some(&second), None);
        assert!(series().contains(&"cilium_network_policies_total{action=\"del\"} 1".to_owned()));
        assert!(series().contains(&"non_defaultdeny_policies_total{action=\"del\"} 4".to_owned()));
    }
}

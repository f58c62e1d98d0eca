//! Objects that come and go around the pods: manifests, policies, services.

use super::random::Random;
use crate::{Node, ServiceFixture, pod_manifest, state_file};

/// Labels that pods have: few sets, so that numbers of identities come again.
const APPS: [&str; 4] = ["web", "client", "db", "cache"];
const TIERS: [&str; 3] = ["a", "b", "c"];

/// Policies that come and go, as specs.
const POLICIES: [&str; 6] = [
    r#"{"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}, {"port": "8000", "endPort": 9000, "protocol": "TCP"}]}]}]}"#,
    r#"{"endpointSelector": {}, "ingress": [{"fromEntities": ["host", "world"]}], "egress": [{"toEntities": ["all"]}]}"#,
    r#"{"endpointSelector": {"matchLabels": {"tier": "a"}}, "egressDeny": [{"toCIDRSet": [{"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}]}]}"#,
    r#"{"endpointSelector": {"matchLabels": {"app": "db"}}, "egress": [{"toCIDR": ["192.0.2.0/24", "2001:db8::/64"]}]}"#,
    r#"{"endpointSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "c"]}]}, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "cache"}}]}]}"#,
    r#"{"endpointSelector": {"matchLabels": {"app": "cache"}}, "ingress": [{"icmps": [{"fields": [{"type": 8, "family": "IPv4"}]}]}]}"#,
];

/// Which policies and services there are.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    policies: [bool; POLICIES.len()],
}

fn policy_file(at: usize) -> String {
    format!("policy-{at}.yaml")
}

impl Cluster {
    /// Something around the pods changes, or nothing.
    pub(super) fn change(&mut self, node: &Node, random: &mut Random, addresses: &[String]) {
        if random.once_in(6) {
            let at = random.below(POLICIES.len());
            self.policies[at] = !self.policies[at];
            match self.policies[at] {
                true => drop(node.apply(&policy_file(at), &policy(at))),
                false => node.withdraw(&policy_file(at)),
            }
        }
        if random.once_in(8) {
            let service = |number: usize| {
                let backends: Vec<&str> =
                    addresses.iter().filter(|_| random.once_in(2)).map(String::as_str).collect();
                let (ipv4, ipv6) = (format!("10.96.0.{}", number + 1), format!("fd00:96::{:x}", number + 1));
                ServiceFixture::new(&format!("service{number}"), &[&ipv4, &ipv6], &backends)
            };
            let services: Vec<ServiceFixture> = (0..5).map(service).collect();
            let kept = random.below(services.len() + 1);
            node.write_services(&state_file(&services[..kept]));
        }
    }

    /// A pod's manifest with some labels.
    pub(super) fn describe(node: &Node, pod: &str, random: &mut Random) {
        let labels = [("app", *random.pick(&APPS)), ("tier", *random.pick(&TIERS))];
        node.apply(&pod_file(pod), &pod_manifest("default", pod, &labels));
    }

    /// A pod's manifest goes, if there is one.
    pub(super) fn forget(node: &Node, pod: &str) {
        let path = node.sandbox().dir().join("cluster").join(pod_file(pod));
        let _ = std::fs::remove_file(path);
    }

    /// No policies and services any more.
    pub(super) fn clear(&mut self, node: &Node) {
        for (at, there) in self.policies.iter_mut().enumerate() {
            if std::mem::take(there) {
                node.withdraw(&policy_file(at));
            }
        }
        node.write_services("");
    }
}

fn pod_file(pod: &str) -> String {
    format!("pod-{pod}.yaml")
}

fn policy(at: usize) -> String {
    let spec = POLICIES[at];
    format!(
        r#"{{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {{"name": "soak-{at}"}}, "spec": {spec}}}"#
    )
}

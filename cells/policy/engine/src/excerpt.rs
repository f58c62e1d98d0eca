//! A part of the engine that computes verdicts of its own, for what-if questions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::Engine;
use crate::model::{Policy, ResourceId};

impl Engine {
    /// Returns an engine with the options, CIDR groups and proxies of this one, the identities among `subjects` and
    /// `peers`, and the policies that apply to a subject: verdicts of the subjects on traffic with the peers are the
    /// same, and changes of it change nothing here. Costs what applies to the subjects.
    pub fn excerpt(&self, subjects: &BTreeSet<u32>, peers: &BTreeSet<u32>) -> Engine {
        let mut part = Engine::new(self.settings.clone());
        part.proxy_ports = self.proxy_ports.clone();
        part.groups = self.groups.clone();
        for id in subjects.union(peers) {
            if let Some(identity) = self.identities.get(*id) {
                part.replace_identity(*id, identity.clone());
            }
        }
        let rules = subjects.iter().flat_map(|subject| self.rules_about(*subject));
        let policies: BTreeMap<&ResourceId, &Arc<Policy>> =
            rules.filter_map(|rule| self.policy(&rule.rule.resource)).map(|p| (&p.resource, p)).collect();
        for policy in policies.into_values() {
            part.set(policy.clone());
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use labels::{Label, LabelArray};
    use serde_json::json;

    use super::*;
    use crate::{Decision, Direction, Kind, NamedPorts, Settings, parse};

    fn pod(app: &str) -> LabelArray {
        let texts = [&format!("k8s:app={app}"), "k8s:io.kubernetes.pod.namespace=shop"];
        texts.into_iter().map(Label::parse).collect()
    }

    fn policy(app: &str, from: &str) -> Policy {
        let manifest = json!({
            "metadata": {"name": app, "namespace": "shop"},
            "spec": {
                "endpointSelector": {"matchLabels": {"app": app}},
                "ingress": [{"fromEndpoints": [{"matchLabels": {"app": from}}]}],
            },
        });
        let settings = Settings { default_local_cluster: false, ..Settings::default() };
        parse(Kind::CiliumNetworkPolicy, &manifest, &settings).unwrap()
    }

    #[test]
    fn an_excerpt_decides_as_the_whole_and_is_independent() {
        let mut engine = Engine::new(Settings::default());
        for (id, app) in [(1000, "web"), (1001, "client"), (1002, "other"), (1003, "db")] {
            engine.add_identity(id, pod(app), NamedPorts::default());
        }
        engine.set(policy("web", "client"));
        engine.set(policy("db", "web"));
        let mut part = engine.excerpt(&[1000].into(), &[1001, 1002].into());
        assert_eq!(part.policies().count(), 1, "that of the subject");
        assert!(part.labels(1003).is_none());
        let allowed = |engine: &Engine, peer| {
            let web = engine.resolve(1000, &NamedPorts::default(), 100).unwrap();
            web.lookup(Direction::Ingress, peer, 6, 80).decision == Decision::Allow
        };
        let verdicts = |engine: &Engine| [1001, 1002].map(|peer| allowed(engine, peer));
        assert_eq!((verdicts(&part), verdicts(&engine)), ([true, false], [true, false]));
        part.set(policy("web", "other"));
        assert_eq!((verdicts(&part), verdicts(&engine)), ([false, true], [true, false]));
    }
}

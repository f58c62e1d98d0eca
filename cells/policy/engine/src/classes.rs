//! Classes of selectors of peers, by which metrics report how many identities they select.

use labels::{K8S, POLICY_CLUSTER};

use crate::listing::SelectorRow;
use crate::selector::{Requirement, Selector};
use crate::selector_text::SelectorText;

/// A class of selectors of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SelectorClass {
    /// All pods of this cluster: of the entity `cluster`.
    Cluster,
    /// DNS names and patterns.
    Fqdn,
    /// The entities `world`, `world-ipv4` and `world-ipv6`.
    World,
    /// All others.
    Other,
}

impl SelectorClass {
    /// The classes, by their names.
    pub const ALL: [SelectorClass; 4] =
        [SelectorClass::Cluster, SelectorClass::Fqdn, SelectorClass::Other, SelectorClass::World];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            SelectorClass::Cluster => "cluster",
            SelectorClass::Fqdn => "fqdn",
            SelectorClass::World => "world",
            SelectorClass::Other => "other",
        }
    }
}

/// The selectors that make up classes of their own.
#[derive(Debug)]
pub struct SelectorClasses {
    cluster: SelectorText,
    worlds: [SelectorText; 3],
}

impl SelectorClasses {
    /// Returns the classes in the cluster of this name.
    pub fn new(cluster: &str) -> SelectorClasses {
        let text = |selector: Selector| SelectorText::from(&*selector.key());
        let pods = Selector::Labels(vec![Requirement::equals(K8S, POLICY_CLUSTER, cluster)]);
        SelectorClasses {
            cluster: text(pods),
            worlds: ["world", "world-ipv4", "world-ipv6"].map(|world| text(Selector::reserved(world))),
        }
    }

    /// Returns the class of a selector.
    pub fn of(&self, row: &SelectorRow) -> SelectorClass {
        match &row.selector {
            _ if row.fqdn.is_some() => SelectorClass::Fqdn,
            text if *text == self.cluster => SelectorClass::Cluster,
            text if self.worlds.contains(text) => SelectorClass::World,
            _ => SelectorClass::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Engine, Kind, Settings, parse};

    #[test]
    fn selectors_are_classed_by_what_they_select() {
        let settings = Settings { cluster: "east".into(), ..Settings::default() };
        let manifest = json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {
                "endpointSelector": {},
                "egress": [
                    {"toEntities": ["cluster", "world"]},
                    {"toFQDNs": [{"matchName": "a.test"}]},
                    {"toCIDR": ["192.0.2.0/24"]},
                    {"toEndpoints": [{"matchLabels": {"app": "web"}}]},
                ],
            },
        });
        let mut engine = Engine::new(settings.clone());
        engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, &settings).unwrap());
        let (classes, rows) = (SelectorClasses::new("east"), engine.selectors());
        let count = |class| rows.iter().filter(|row| classes.of(row) == class).count();
        // The entity `cluster` has seven reserved labels beside the pods, and the world one for each family.
        assert_eq!(SelectorClass::ALL.map(count), [1, 1, 9, 3]);
        let others = SelectorClasses::new("west");
        assert!(rows.iter().all(|row| others.of(row) != SelectorClass::Cluster));
    }
}

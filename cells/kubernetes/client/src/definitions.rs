//! The kinds that CustomResourceDefinitions define in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_types::{Kind, SmolStr};
use tokio::sync::watch;

/// Whether a kind has a CustomResourceDefinition: without one, a server does not know it.
pub(crate) fn is_custom(kind: Kind) -> bool {
    matches!(kind.group(), "cilium.io" | "policy.networking.k8s.io")
}

/// Names of definitions with their resource versions.
pub(crate) type Versions = BTreeMap<SmolStr, SmolStr>;

/// The existing definitions, kept up to date.
#[derive(Clone, Debug)]
pub(crate) struct Definitions {
    known: Arc<watch::Sender<Option<Versions>>>,
    required: Arc<BTreeSet<Kind>>,
}

/// Whether a kind is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defined {
    Yes,
    No,
    /// The definitions have not been listed yet.
    Unknown,
}

impl Definitions {
    /// Creates an empty set that is not listed yet, with the kinds to wait for.
    pub(crate) fn new(required: BTreeSet<Kind>) -> Definitions {
        Definitions { known: Arc::new(watch::Sender::new(None)), required: Arc::new(required) }
    }

    /// Returns whether a kind is defined.
    pub(crate) fn of(&self, kind: Kind) -> Defined {
        match &*self.known.borrow() {
            _ if !is_custom(kind) => Defined::Yes,
            None => Defined::Unknown,
            Some(known) if known.contains_key(name(kind).as_str()) => Defined::Yes,
            Some(_) => Defined::No,
        }
    }

    /// Returns the version of a kind's definition, which changes when it is established: the server serves the kind from then on.
    pub(crate) fn version(&self, kind: Kind) -> Option<SmolStr> {
        self.known.borrow().as_ref()?.get(name(kind).as_str()).cloned()
    }

    /// Waits until the version of a kind's definition is another one.
    pub(crate) async fn changed(&self, kind: Kind, version: Option<&SmolStr>) {
        let name = name(kind);
        let is_other = |known: &Option<Versions>| {
            known.as_ref().is_some_and(|known| known.get(name.as_str()) != version)
        };
        // An error is impossible: the sender is in self.
        let mut changes = self.changes();
        drop(changes.wait_for(is_other).await);
    }

    /// Whether the agent waits for a kind, so that an undefined one is not an empty list.
    pub(crate) fn is_required(&self, kind: Kind) -> bool {
        self.required.contains(&kind)
    }

    /// Returns the required definitions that are missing.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.required.iter().filter(|kind| self.of(**kind) != Defined::Yes).map(|kind| name(*kind)).collect()
    }

    /// Returns a receiver that changes with the definitions.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Versions>> {
        self.known.subscribe()
    }

    /// Replaces the definitions.
    pub(crate) fn are(&self, versions: &Versions) {
        self.known.send_if_modified(|known| {
            let differs = known.as_ref() != Some(versions);
            if differs {
                *known = Some(versions.clone());
            }
            differs
        });
    }
}

/// Returns the definition's name, such as `ciliumnodes.cilium.io`.
pub(crate) fn name(kind: Kind) -> String {
    format!("{}.{}", kind.plural(), kind.group())
}

/// The condition under which a kind is required.
enum When {
    Always,
    /// Required unless an option is on.
    Unless(&'static str),
    /// Required if an option is on.
    If(&'static str),
}

/// The kinds that Cilium's agent waits for, with the conditions.
const REQUIRED: &[(Kind, When)] = &[
    (Kind::CiliumIdentity, When::Always),
    (Kind::CiliumPodIPPool, When::Always),
    (Kind::CiliumLoadBalancerIPPool, When::Always),
    (Kind::CiliumL2AnnouncementPolicy, When::Always),
    (Kind::CiliumCIDRGroup, When::Always),
    (Kind::CiliumEndpoint, When::Unless("disable-endpoint-crd")),
    (Kind::CiliumNode, When::If("enable-ciliumnode-crd")),
    (Kind::CiliumNetworkPolicy, When::If("enable-cilium-network-policy")),
    (Kind::CiliumClusterwideNetworkPolicy, When::If("enable-cilium-clusterwide-network-policy")),
    (Kind::CiliumEndpointSlice, When::If("enable-cilium-endpoint-slice")),
    (Kind::CiliumEgressGatewayPolicy, When::If("enable-egress-gateway")),
    (Kind::CiliumLocalRedirectPolicy, When::If("enable-local-redirect-policy")),
    (Kind::CiliumEnvoyConfig, When::If("enable-envoy-config")),
    (Kind::CiliumClusterwideEnvoyConfig, When::If("enable-envoy-config")),
    (Kind::CiliumBGPClusterConfig, When::If("enable-bgp-control-plane")),
    (Kind::CiliumBGPAdvertisement, When::If("enable-bgp-control-plane")),
    (Kind::CiliumBGPPeerConfig, When::If("enable-bgp-control-plane")),
    (Kind::CiliumBGPNodeConfig, When::If("enable-bgp-control-plane")),
    (Kind::CiliumBGPNodeConfigOverride, When::If("enable-bgp-control-plane")),
    (Kind::CiliumDatapathPlugin, When::If("enable-datapath-plugins")),
];

/// Returns the kinds that an agent with these options waits for.
pub fn required(is_on: impl Fn(&str) -> bool) -> BTreeSet<Kind> {
    let wanted = REQUIRED.iter().filter(|(_, when)| match when {
        When::Always => true,
        When::Unless(option) => !is_on(option),
        When::If(option) => is_on(option),
    });
    wanted.map(|(kind, _)| *kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_chart_requires_nine() {
        let on = |option: &str| {
            matches!(
                option,
                "enable-ciliumnode-crd"
                    | "enable-cilium-network-policy"
                    | "enable-cilium-clusterwide-network-policy"
            )
        };
        assert_eq!(required(on).len(), 9);
        assert!(required(|option| option == "enable-envoy-config").contains(&Kind::CiliumEnvoyConfig));
    }

    #[test]
    fn kinds_are_defined_and_removed() {
        let definitions = Definitions::new([Kind::CiliumNode, Kind::CiliumIdentity].into());
        assert_eq!(
            (definitions.of(Kind::Pod), definitions.of(Kind::CiliumNode)),
            (Defined::Yes, Defined::Unknown)
        );
        assert_eq!(definitions.of(Kind::ClusterNetworkPolicy), Defined::Unknown);
        let mut changes = definitions.changes();
        definitions.are(&[("ciliumnodes.cilium.io".into(), "1".into())].into());
        assert_eq!(definitions.of(Kind::ClusterNetworkPolicy), Defined::No);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(definitions.missing(), ["ciliumidentities.cilium.io"]);
        definitions.are(&[("ciliumnodes.cilium.io".into(), "1".into())].into());
        assert!(!changes.has_changed().unwrap());
        definitions.are(&[("ciliumnodes.cilium.io".into(), "2".into())].into());
        assert!(changes.has_changed().unwrap(), "established");
        assert_eq!(
            (definitions.version(Kind::CiliumNode).as_deref(), definitions.version(Kind::Pod)),
            (Some("2"), None)
        );
    }
}

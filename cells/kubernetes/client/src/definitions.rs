//! The kinds that CustomResourceDefinitions define in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_types::{Kind, SmolStr};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

/// An API server sleeps this long in the creation of an object whose kind was established less than this time before
/// (`justCreated` of `customresource_handler.go` in `k8s.io/apiextensions-apiserver`): other servers may not serve it yet.
const PAUSE: Duration = Duration::from_secs(2);

/// How much later than the end of its pause a creation is sent: the server's clock may be behind by that.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(200);

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
    /// By name of the definition: the end of the pause of creations.
    pauses: Arc<watch::Sender<BTreeMap<SmolStr, Instant>>>,
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
        Definitions {
            known: Arc::new(watch::Sender::new(None)),
            required: Arc::new(required),
            pauses: Arc::new(watch::Sender::new(BTreeMap::new())),
        }
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

    /// Records the age of a definition, by the times in its metadata.
    pub(crate) fn set_age(&self, name: &str, definition: &[u8], now: Timestamp) {
        let remaining = remaining_pause(definition, now);
        self.pauses.send_modify(|pauses| match remaining {
            Some(remaining) => drop(pauses.insert(name.into(), Instant::now() + remaining)),
            None => drop(pauses.remove(name)),
        });
    }

    /// Returns the time from which on the server does not pause creations, if it does now.
    pub(crate) fn paused_until(&self, kind: Kind) -> Option<Instant> {
        self.pauses.borrow().get(name(kind).as_str()).copied()
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

/// Returns the rest of the pause after the definition's last change, which is its establishment; none if there is no pause, or
/// nothing to be won by waiting. Clocks that differ make it useless, not long.
fn remaining_pause(definition: &[u8], now: Timestamp) -> Option<Duration> {
    let Object { metadata } = serde_json::from_slice(definition).ok()?;
    let updates = metadata.managed_fields.iter().map(|fields| fields.time);
    let changed = updates.chain([metadata.creation_timestamp]).flatten().max()?;
    let age = Duration::try_from(now.duration_since(changed)).unwrap_or_default();
    let remaining = (PAUSE + CLOCK_TOLERANCE).checked_sub(age)?;
    (remaining < PAUSE).then_some(remaining)
}

/// The times of a definition, in whole seconds.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Deserialize)]
struct ManagedFields {
    time: Option<Timestamp>,
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
    use serde_json::json;

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
    fn creations_wait_for_the_end_of_the_pause_where_that_is_sooner() {
        let at =
            |second: i64, ms: i64| Timestamp::from_millisecond((1_800_000_000 + second) * 1000 + ms).unwrap();
        let definition = |created: i64, changed: i64| {
            let fields =
                [json!({"manager": "operator"}), json!({"subresource": "status", "time": at(changed, 0)})];
            let metadata = json!({"creationTimestamp": at(created, 0), "managedFields": fields});
            json!({"kind": "PartialObjectMetadata", "metadata": metadata}).to_string()
        };
        let remaining = |now| remaining_pause(definition(0, 1).as_bytes(), now);
        // It changed at 1 s at the earliest, so that the pause of a creation that is sent from 3 s on has passed.
        assert_eq!(remaining(at(1, 150)), None, "a creation that is sent now is answered before 3.2 s");
        assert_eq!(remaining(at(1, 700)), Some(Duration::from_millis(1500)));
        assert_eq!(remaining(at(3, 190)), Some(Duration::from_millis(10)));
        assert_eq!(remaining(at(3, 201)), None);
        assert_eq!(remaining(at(0, 0)), None, "its clock is ahead");
        let untracked = json!({"metadata": {"creationTimestamp": at(1, 0)}}).to_string();
        assert_eq!(remaining_pause(untracked.as_bytes(), at(2, 0)), Some(Duration::from_millis(1200)));
        for text in ["{}", r#"{"metadata": {}}"#, r#"{"metadata": {"creationTimestamp": "soon"}}"#] {
            assert_eq!(remaining_pause(text.as_bytes(), at(1, 500)), None, "{text}");
        }
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

//! The claims of a node in the ipcache.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::identity;
use ipcache::{Change, Claim, Location, Mapping, Source};
use ipnetwork::IpNetwork;
use local_node::AddressType;
use maps::FamilyConfig;
use tunnel::{Family, Tunnel};

use crate::label_identities::OwnIdentities;
use crate::node::Node;
use crate::source::NodeSource;

/// The settings that mappings depend on.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) families: FamilyConfig,
}

impl Settings {
    /// Whether the family of an address is enabled.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(_) => self.families.enable_ipv4,
            IpAddr::V6(_) => self.families.enable_ipv6,
        }
    }

    /// The identity of addresses outside of the cluster.
    fn world(&self, ip: IpAddr) -> u32 {
        match (self.families.enable_ipv4 && self.families.enable_ipv6, ip) {
            (false, _) => identity::WORLD,
            (true, IpAddr::V4(_)) => identity::WORLD_IPV4,
            (true, IpAddr::V6(_)) => identity::WORLD_IPV6,
        }
    }
}

/// Returns the changes in the ipcache that follow from the change of a row. The local node's addresses are claims of the
/// ipcache itself; of a restored node the kernel's map has the entries.
/// `identities` are those of the node before and after.
pub(crate) fn changes(
    settings: &Settings,
    before: Option<&Node>,
    after: Option<&Node>,
    identities: &[OwnIdentities; 2],
) -> Vec<Change> {
    let of =
        |node: &Node, identities: &OwnIdentities| Some((source(node)?, mappings(settings, node, identities)));
    let old = before.and_then(|node| of(node, &identities[0]));
    let new = after.and_then(|node| of(node, &identities[1]));
    let Some(node) = after.or(before) else { return Vec::new() };
    let resource = resource(node);
    let mut changes = Vec::new();
    let keeps = |source: Source, prefix: &IpNetwork| {
        new.as_ref().is_some_and(|(after, mappings)| *after == source && mappings.contains_key(prefix))
    };
    if let Some((source, mappings)) = &old {
        let stale = mappings.keys().filter(|prefix| !keeps(*source, prefix));
        changes.extend(stale.map(|prefix| Change::Delete(*prefix, *source, resource.clone())));
    }
    let Some((source, mappings)) = new else { return changes };
    for (prefix, mapping) in mappings {
        let is_there =
            old.as_ref().is_some_and(|(before, old)| *before == source && old.get(&prefix) == Some(&mapping));
        if !is_there {
            changes.push(Change::Upsert(prefix, Claim { source, resource: resource.clone(), mapping }));
        }
    }
    changes
}

fn source(node: &Node) -> Option<Source> {
    match node.source {
        NodeSource::CustomResource | NodeSource::ClusterMesh => Some(Source::CustomResource),
        NodeSource::KvStore => Some(Source::KvStore),
        NodeSource::Kubernetes => Some(Source::Kubernetes),
        NodeSource::Api | NodeSource::Directory => Some(Source::LocalApi),
        NodeSource::Unspec
        | NodeSource::Restored
        | NodeSource::Generated
        | NodeSource::Local
        | NodeSource::KubeApiServer => None,
    }
}

fn resource(node: &Node) -> Arc<str> {
    format!("node//{}", node.full_name()).into()
}

fn mappings(settings: &Settings, node: &Node, own: &OwnIdentities) -> BTreeMap<IpNetwork, Mapping> {
    let endpoint = node.tunnel_endpoint(settings.tunnel.underlay);
    let other = match settings.tunnel.underlay {
        Family::Ipv4 => Family::Ipv6,
        Family::Ipv6 => Family::Ipv4,
    };
    let tunnel = endpoint.filter(|_| settings.tunnel.is_tunnel());
    let host_ip = endpoint.or_else(|| node.tunnel_endpoint(other));
    let behind = |identity| Mapping::identity(identity).at(Location { host_ip, tunnel, pod: None });
    let mut mappings = BTreeMap::new();
    for range in node.pod_cidrs.iter().filter(|range| settings.has(range.ip())) {
        let world = settings.world(range.ip());
        mappings.insert(*range, Mapping { is_fallback: true, ..behind(world) });
    }
    let mut add = |ip: Option<IpAddr>, mapping: Mapping| {
        if let Some(ip) = ip.filter(|ip| settings.has(*ip)) {
            mappings.insert(ip.into(), mapping);
        }
    };
    for (v4, v6, identity) in [
        (node.ingress_ipv4, node.ingress_ipv6, identity::INGRESS),
        (node.health_ipv4, node.health_ipv6, identity::HEALTH),
    ] {
        add(v4.map(IpAddr::V4), behind(identity));
        add(v6.map(IpAddr::V6), behind(identity));
    }
    // The node's own addresses come last: an object that names one of them twice means the node.
    for address in &node.addresses {
        let mapping = match address.kind {
            AddressType::CiliumInternalIP => behind(own.of(address.ip)),
            AddressType::InternalIP | AddressType::ExternalIP => Mapping::identity(own.of(address.ip)),
        };
        add(Some(address.ip), mapping);
    }
    mappings
}

#[cfg(test)]
mod tests {
    use tunnel::{Protocol, RoutingMode};

    use super::*;
    use crate::node::NodeAddress;
    use crate::testing::node;

    fn settings(mode: RoutingMode, underlay: Family, families: [bool; 2]) -> Settings {
        let tunnel = Tunnel {
            mode,
            protocol: Protocol::Vxlan,
            port: 8472,
            source_ports: (0, 0),
            underlay,
            is_ipv6_enabled: true,
        };
        let families = FamilyConfig { enable_ipv4: families[0], enable_ipv6: families[1] };
        Settings { tunnel: Arc::new(tunnel), families }
    }

    fn peer() -> Node {
        let mut peer = node("n2", &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112"]);
        let router = NodeAddress { kind: AddressType::CiliumInternalIP, ip: [10, 0, 2, 1].into() };
        peer.addresses.push(router);
        peer.health_ipv4 = Some([10, 0, 2, 4].into());
        peer.ingress_ipv4 = Some([10, 0, 2, 8].into());
        peer
    }

    fn flat(settings: &Settings, node: &Node) -> Vec<String> {
        let text = |(prefix, mapping): (IpNetwork, Mapping)| {
            let tunnel = mapping.tunnel().map(|ip| format!(" via {ip}")).unwrap_or_default();
            let fallback = if mapping.is_fallback { " fallback" } else { "" };
            format!("{prefix} {}{tunnel}{fallback}", mapping.identity)
        };
        mappings(settings, node, &OwnIdentities::default()).into_iter().map(text).collect()
    }

    #[test]
    fn addresses_have_the_identities_of_cilium() {
        assert_eq!(
            flat(&settings(RoutingMode::Tunnel, Family::Ipv4, [true, true]), &peer()),
            [
                "10.0.2.0/24 9 via 192.0.2.2 fallback",
                "10.0.2.1/32 6 via 192.0.2.2",
                "10.0.2.4/32 4 via 192.0.2.2",
                "10.0.2.8/32 8 via 192.0.2.2",
                "192.0.2.2/32 6",
                "2001:db8::2/128 6",
                "fd00:2::/112 10 via 192.0.2.2 fallback",
            ]
        );
        assert_eq!(
            flat(&settings(RoutingMode::Native, Family::Ipv4, [true, false]), &peer()),
            ["10.0.2.0/24 2 fallback", "10.0.2.1/32 6", "10.0.2.4/32 4", "10.0.2.8/32 8", "192.0.2.2/32 6"]
        );
        let v6 = flat(&settings(RoutingMode::Tunnel, Family::Ipv6, [true, true]), &peer());
        assert_eq!(v6[0], "10.0.2.0/24 9 via 2001:db8::2 fallback");
    }

    #[test]
    fn without_an_address_of_the_underlay_there_is_no_tunnel() {
        let settings = settings(RoutingMode::Tunnel, Family::Ipv6, [true, true]);
        let v4 = node("n2", &["192.0.2.2"], &["10.0.2.0/24"]);
        assert_eq!(flat(&settings, &v4), ["10.0.2.0/24 9 fallback", "192.0.2.2/32 6"]);
        let mapping = &mappings(&settings, &v4, &OwnIdentities::default())[&"10.0.2.0/24".parse().unwrap()];
        assert_eq!(mapping.host_ip(), Some([192, 0, 2, 2].into()));
    }

    #[test]
    fn a_change_of_a_node_changes_its_claims_only() {
        let settings = settings(RoutingMode::Tunnel, Family::Ipv4, [true, false]);
        let plain: &[OwnIdentities; 2] = &Default::default();
        let (before, mut after) = (peer(), peer());
        assert_eq!(changes(&settings, None, Some(&before), plain).len(), 5);
        assert_eq!(changes(&settings, Some(&before), Some(&after), plain), []);
        let labelled =
            changes(&settings, Some(&before), Some(&after), &[OwnIdentities::default(), (2 << 24).into()]);
        let identities = labelled.iter().map(|change| match change {
            Change::Upsert(prefix, claim) => (prefix.to_string(), claim.mapping.identity),
            Change::Delete(..) => panic!("{change:?}"),
        });
        assert_eq!(
            identities.collect::<Vec<_>>(),
            [("10.0.2.1/32".to_owned(), 2 << 24), ("192.0.2.2/32".to_owned(), 2 << 24)]
        );
        after.health_ipv4 = Some([10, 0, 2, 5].into());
        after.labels = [("zone", "a")].into_iter().collect();
        let resource: Arc<str> = "node//n2".into();
        let changed = changes(&settings, Some(&before), Some(&after), plain);
        assert_eq!(changed.len(), 2);
        assert_eq!(
            changed[0],
            Change::Delete("10.0.2.4/32".parse().unwrap(), Source::CustomResource, resource)
        );
        assert_eq!(changes(&settings, Some(&after), None, plain).len(), 5);
        let local = Node { source: NodeSource::Local, ..peer() };
        assert_eq!(changes(&settings, None, Some(&local), plain), []);
        let restored = Node { source: NodeSource::Restored, ..peer() };
        assert_eq!(changes(&settings, Some(&restored), None, plain), []);
        assert_eq!(changes(&settings, Some(&restored), Some(&before), plain).len(), 5);
    }
}

//! The claims of CiliumEndpoints: functions of objects alone.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use identity::{Range, Scope};
use ipcache::{Change, Claim, Entry, Location, Mapping, Pod, Source};
use k8s_tables::Key;
use k8s_types::cilium::{CiliumEndpoint, CoreCiliumEndpoint, EndpointNetworking};

/// The identity of pods that no agent has made an endpoint of.
const UNMANAGED: i64 = 3;

/// The reserved identities that pods may have: unmanaged, health, init, ingress.
const OF_PODS: [u32; 4] = [3, 4, 5, 8];

/// The first well-known identity.
const WELL_KNOWN: u32 = 100;

/// Why an object claims nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("networking.node: {0:?} is no address of a node")]
    Node(String),
    #[error("identity: {0} is no identity of a pod of this cluster, which has {1}")]
    Identity(i64, Range),
    #[error("networking.addressing: {0:?} is no address of a pod")]
    Address(String),
    #[error("encryption.key: {0} is no key")]
    Key(i64),
}

/// The fields of an endpoint that other nodes need, of an object of its own or of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote<'o> {
    networking: Option<&'o EndpointNetworking>,
    identity: Option<i64>,
    key: i64,
}

impl<'o> From<&'o CiliumEndpoint> for Remote<'o> {
    fn from(object: &'o CiliumEndpoint) -> Remote<'o> {
        let status = &object.status;
        let identity = status.identity.as_ref().map(|identity| identity.id);
        Remote { networking: status.networking.as_ref(), identity, key: status.encryption.key }
    }
}

impl<'o> From<&'o CoreCiliumEndpoint> for Remote<'o> {
    fn from(endpoint: &'o CoreCiliumEndpoint) -> Remote<'o> {
        let identity = Some(endpoint.identity_id).filter(|id| *id != 0);
        Remote { networking: endpoint.networking.as_ref(), identity, key: endpoint.encryption.key }
    }
}

impl Remote<'_> {
    /// Returns the address of its node.
    pub(crate) fn node(&self) -> Option<IpAddr> {
        self.networking?.node_ip.parse().ok()
    }
}

type Claims = BTreeMap<IpAddr, Mapping>;

/// Returns the addresses of an endpoint with their mappings; none of one of this node, whose addresses are `own`.
pub(crate) fn claims(
    name: &Key,
    endpoint: Remote<'_>,
    own: &[IpAddr],
    range: Range,
) -> Result<Claims, Fault> {
    let Some(networking) = endpoint.networking.filter(|n| !n.addressing.is_empty()) else {
        return Ok(Claims::new());
    };
    let unusable =
        |address: &IpAddr| address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let parse = |text: &str| text.parse::<IpAddr>().ok().filter(|address| !unusable(address));
    let node = parse(&networking.node_ip).ok_or_else(|| Fault::Node(networking.node_ip.to_string()))?;
    if own.contains(&node) {
        return Ok(Claims::new());
    }
    let number = endpoint.identity.unwrap_or(UNMANAGED);
    let identity = u32::try_from(number).ok().filter(|id| match Scope::of(*id) {
        Scope::Reserved => OF_PODS.contains(id) || *id >= WELL_KNOWN,
        Scope::Global => range.contains(*id),
        Scope::Local | Scope::RemoteNode => false,
    });
    let identity = identity.ok_or(Fault::Identity(number, range))?;
    let encrypt_key = u8::try_from(endpoint.key).map_err(|_| Fault::Key(endpoint.key))?;
    let pod = Pod { namespace: name.namespace.clone(), name: name.name.clone() };
    let mapping = Mapping { encrypt_key, ..Mapping::identity(identity) };
    let mapping = mapping.at(Location { host_ip: Some(node), tunnel: Some(node), pod: Some(pod) });
    let pairs = networking.addressing.iter().flat_map(|pair| [&pair.ipv4, &pair.ipv6]);
    let addresses = pairs.filter(|text| !text.is_empty());
    let claim = |text: &k8s_tables::SmolStr| {
        let address = parse(text).filter(|address| !own.contains(address) && *address != node);
        let address = address.ok_or_else(|| Fault::Address(text.to_string()))?;
        Ok((address, mapping.clone()))
    };
    addresses.map(claim).collect()
}

/// The prefix of resources that are CiliumEndpoints; their name follows.
const RESOURCE: &str = "cep/";

/// The addresses that were claimed, by resource. There is one for every pod of the cluster, which shares its text with the
/// claims.
#[derive(Debug, Default)]
pub(crate) struct Claimed(HashMap<Arc<str>, Addresses>);

/// The addresses of an object: nearly always at most one of each family.
#[derive(Debug)]
enum Addresses {
    Pair(Option<Ipv4Addr>, Option<Ipv6Addr>),
    Several(Box<[IpAddr]>),
}

const _: () = assert!(size_of::<Addresses>() == 24);

impl Addresses {
    fn new(addresses: &[IpAddr]) -> Addresses {
        match *addresses {
            [] => Addresses::Pair(None, None),
            [IpAddr::V4(v4)] => Addresses::Pair(Some(v4), None),
            [IpAddr::V6(v6)] => Addresses::Pair(None, Some(v6)),
            [IpAddr::V4(v4), IpAddr::V6(v6)] => Addresses::Pair(Some(v4), Some(v6)),
            _ => Addresses::Several(addresses.into()),
        }
    }

    fn list(&self) -> Vec<IpAddr> {
        match self {
            Addresses::Pair(v4, v6) => v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6)).collect(),
            Addresses::Several(all) => all.to_vec(),
        }
    }
}

impl Claimed {
    /// Returns the changes that make these the object's claims.
    pub(crate) fn replace(&mut self, object: &Key, claims: Claims) -> Vec<Change> {
        let resource = format!("{RESOURCE}{object}");
        let known = self.0.remove_entry(resource.as_str());
        let (resource, before) = known.unwrap_or_else(|| (resource.into(), Addresses::new(&[])));
        let stale = before.list().into_iter().filter(|address| !claims.contains_key(address));
        let delete =
            |address: IpAddr| Change::Delete(address.into(), Source::CustomResource, resource.clone());
        let mut changes: Vec<Change> = stale.map(delete).collect();
        if !claims.is_empty() {
            let addresses: Vec<IpAddr> = claims.keys().copied().collect();
            self.0.insert(resource.clone(), Addresses::new(&addresses));
        }
        changes.extend(claims.into_iter().map(|(address, mapping)| {
            let claim = Claim { source: Source::CustomResource, resource: resource.clone(), mapping };
            Change::Upsert(address.into(), claim)
        }));
        changes
    }
}

/// Returns the names of the objects that claim an address, in order.
pub(crate) fn owners(entry: &Entry) -> Vec<&str> {
    let claims = entry.claims().iter().filter(|claim| claim.source == Source::CustomResource);
    let mut names: Vec<&str> = claims.filter_map(|claim| claim.resource.strip_prefix(RESOURCE)).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use ipcache::testing::{FakeMap, ipcache};
    use ipcache::{Entry, IpcacheWriter};
    use serde_json::{Value, json};
    use statedb::{Db, Table};

    use super::*;

    fn object(name: &str, identity: Value, address: &str, node: &str) -> CiliumEndpoint {
        let object = json!({"metadata": {"namespace": "shop", "name": name}, "status": {
            "identity": {"id": identity}, "encryption": {"key": 7},
            "networking": {"node": node, "addressing": [{"ipv4": address}]},
        }});
        k8s_tables::decode(object.to_string().as_bytes()).unwrap()
    }

    fn claims_of(object: &CiliumEndpoint) -> Result<Claims, Fault> {
        let key = Key::new(object.metadata.namespace.clone(), object.metadata.name.clone());
        claims(&key, object.into(), &["10.99.0.1".parse().unwrap()], Range::of_cluster(0, 255))
    }

    fn key(name: &str) -> Key {
        Key::new("shop", name)
    }

    struct Ipcache(IpcacheWriter, Table<Entry>, Claimed);

    impl Ipcache {
        fn new() -> Ipcache {
            let (writer, table, _) = ipcache(Db::new().table().unwrap(), Arc::new(FakeMap::default()));
            Ipcache(writer, table, Claimed::default())
        }

        fn put(&mut self, name: &str, identity: u32, address: &str) {
            let claims = claims_of(&object(name, identity.into(), address, "10.99.0.2")).unwrap();
            self.0.apply(self.2.replace(&key(name), claims));
        }

        fn delete(&mut self, name: &str) {
            self.0.apply(self.2.replace(&key(name), Claims::new()));
        }

        fn identity(&self, address: &str) -> Option<u32> {
            let snapshot = self.1.snapshot();
            let entry = self.1.get(&snapshot, Entry::by_prefix(address.parse().unwrap()));
            entry.map(|entry| entry.winner().mapping.identity)
        }

        fn owners(&self, address: &str) -> Vec<String> {
            let snapshot = self.1.snapshot();
            let entry = self.1.get(&snapshot, Entry::by_prefix(address.parse().unwrap()));
            entry.map(|entry| owners(entry)).unwrap_or_default().into_iter().map(str::to_owned).collect()
        }
    }

    #[test]
    fn a_pod_of_another_node_is_claimed_with_its_host_and_key() {
        let claims = claims_of(&object("web", 7000.into(), "10.0.0.5", "10.99.0.2")).unwrap();
        let (address, mapping) = claims.first_key_value().unwrap();
        assert_eq!(address.to_string(), "10.0.0.5");
        let node = Some("10.99.0.2".parse().unwrap());
        assert_eq!((mapping.identity, mapping.host_ip(), mapping.tunnel()), (7000, node, node));
        assert_eq!(mapping.encrypt_key, 7);
        let pod = mapping.pod().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("shop", "web"));
        assert!(claims_of(&object("own", 7000.into(), "10.0.0.5", "10.99.0.1")).unwrap().is_empty());
        let unmanaged = json!({"metadata": {"name": "x", "namespace": "shop"}, "status": {
            "networking": {"node": "10.99.0.2", "addressing": [{"ipv4": "10.0.0.5", "ipv6": "fd00::5"}]}}});
        let unmanaged = k8s_tables::decode(unmanaged.to_string().as_bytes()).unwrap();
        let identities: Vec<u32> = claims_of(&unmanaged).unwrap().values().map(|m| m.identity).collect();
        assert_eq!(identities, [3, 3]);
    }

    #[test]
    fn an_endpoint_of_a_slice_claims_as_its_object_does() {
        let object = object("web", 7000.into(), "10.0.0.5", "10.99.0.2");
        let core = CoreCiliumEndpoint {
            name: "web".into(),
            identity_id: 7000,
            networking: object.status.networking.clone(),
            encryption: object.status.encryption.clone(),
            ..CoreCiliumEndpoint::default()
        };
        let claims = |core: &CoreCiliumEndpoint| {
            claims(&key("web"), core.into(), &["10.99.0.1".parse().unwrap()], Range::of_cluster(0, 255))
        };
        assert_eq!(claims(&core), claims_of(&object));
        let unmanaged = claims(&CoreCiliumEndpoint { identity_id: 0, ..core }).unwrap();
        assert_eq!(unmanaged.values().map(|mapping| mapping.identity).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn what_no_pod_can_have_claims_nothing() {
        let range = Range::of_cluster(0, 255);
        for id in [-1, 0, 1, 2, 6, 7, 9, 65_536, 16_777_217, 33_554_432, 4_294_967_297] {
            let object = object("web", id.into(), "10.0.0.5", "10.99.0.2");
            assert_eq!(claims_of(&object), Err(Fault::Identity(id, range)));
        }
        for address in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "10.0.0", "10.99.0.1", "10.99.0.2"] {
            let object = object("web", 7000.into(), address, "10.99.0.2");
            assert_eq!(claims_of(&object), Err(Fault::Address(address.to_owned())));
        }
        for node in ["", "::", "n2"] {
            let object = object("web", 7000.into(), "10.0.0.5", node);
            assert_eq!(claims_of(&object), Err(Fault::Node(node.to_owned())));
        }
        for id in [4, 5, 8, 104, 256, 65_535] {
            assert!(claims_of(&object("web", id.into(), "10.0.0.5", "10.99.0.2")).is_ok(), "{id}");
        }
    }

    #[test]
    fn the_reuse_of_an_address_is_not_undone_by_a_late_delete() {
        let mut ipcache = Ipcache::new();
        ipcache.put("old", 7000, "10.0.0.5");
        ipcache.put("new", 7001, "10.0.0.5");
        assert_eq!(ipcache.identity("10.0.0.5/32"), Some(7001));
        assert_eq!(ipcache.owners("10.0.0.5/32"), ["shop/new", "shop/old"]);
        ipcache.delete("old");
        assert_eq!(ipcache.identity("10.0.0.5/32"), Some(7001));
        ipcache.put("new", 7001, "10.0.0.6");
        assert_eq!((ipcache.identity("10.0.0.5/32"), ipcache.identity("10.0.0.6/32")), (None, Some(7001)));
        ipcache.delete("new");
        assert_eq!(ipcache.identity("10.0.0.6/32"), None);
        assert!(ipcache.2.0.is_empty());
    }

    #[test]
    fn all_addresses_of_an_object_are_released_with_it() {
        for addresses in
            [&["10.0.0.5", "fd00::5"][..], &["fd00::5"], &["10.0.0.5", "10.0.0.6", "fd00::5"], &[]]
        {
            let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let mut claimed = Claimed::default();
            let claims = addresses.iter().map(|address| (*address, Mapping::identity(7000))).collect();
            assert_eq!(claimed.replace(&key("web"), claims).len(), addresses.len());
            let released = claimed.replace(&key("web"), Claims::new());
            let delete = |address: &IpAddr| {
                Change::Delete((*address).into(), Source::CustomResource, "cep/shop/web".into())
            };
            assert_eq!(released, addresses.iter().map(delete).collect::<Vec<_>>());
            assert!(claimed.0.is_empty());
        }
    }

    #[test]
    fn an_address_of_an_endpoint_of_this_node_stays_its_own() {
        let mut ipcache = Ipcache::new();
        let own = "10.0.0.5/32".parse().unwrap();
        ipcache.0.upsert(own, Source::Local, "endpoint/7", Mapping::identity(5));
        ipcache.put("liar", 7000, "10.0.0.5");
        assert_eq!(ipcache.identity("10.0.0.5/32"), Some(5));
        assert_eq!(ipcache.owners("10.0.0.5/32"), ["shop/liar"]);
        ipcache.delete("liar");
        assert_eq!(ipcache.identity("10.0.0.5/32"), Some(5));
    }
}

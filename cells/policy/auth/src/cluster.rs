//! Nodes, identities and policies, as authentications depend on them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::signal::AuthKey;
use datapath_abi::{NodeKey, NodeValue, policy_flag};
use datapath_api::Datapath;
use endpoints::Endpoint;
use identity::Identity;
use maps::Maps;
use node_manager::Node;
use statedb::Table;

/// The map of node ids.
const NODE_MAP: &str = "cilium_node_map_v2";
/// The time for which node ids that were read are used: ids are not reused soon.
const NODE_IDS_AGE: Duration = Duration::from_secs(1);

/// The facts that authentications depend on; of tests in their place.
pub(crate) trait Cluster: Send + Sync + 'static {
    /// Returns the address of handshakes on a node, by its id.
    fn peer(&mut self, node: u16) -> Option<SocketAddr>;

    /// Returns which authentications are needed. Blocks.
    fn needs(&self) -> Needs;
}

/// Which authentications are needed; what is not known yet is `None`.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Ids of nodes.
    pub(crate) nodes: Option<HashSet<u16>>,
    /// Identities of the cluster.
    pub(crate) identities: Option<HashSet<u32>>,
    /// The peers of policies by identity of an endpoint and type; peer 0 is any.
    pub(crate) required: Option<HashMap<(u32, u8), HashSet<u32>>>,
}

impl Needs {
    /// Whether an authentication is needed, or may be.
    pub(crate) fn has(&self, key: &AuthKey) -> bool {
        let has_node = |ids: &HashSet<u16>| key.remote_node == 0 || ids.contains(&key.remote_node);
        let has_both = |known: &HashSet<u32>| {
            known.contains(&key.local_identity) && known.contains(&key.remote_identity)
        };
        let is_required = |required: &HashMap<(u32, u8), HashSet<u32>>| {
            let peers = required.get(&(key.local_identity, key.auth_type));
            peers.is_some_and(|peers| peers.contains(&key.remote_identity) || peers.contains(&0))
        };
        self.nodes.as_ref().is_none_or(has_node)
            && self.identities.as_ref().is_none_or(has_both)
            && self.required.as_ref().is_none_or(is_required)
    }
}

/// The agent's tables.
pub(crate) struct Tables {
    pub(crate) maps: Arc<Maps>,
    pub(crate) nodes: Arc<Table<Node>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) port: u16,
    pub(crate) addresses: Option<(Instant, HashMap<u16, IpAddr>)>,
}

impl Tables {
    /// Returns the ids in the kernel by address. They are written a little later than rows of nodes.
    fn node_ids(&self) -> bpf::Result<HashMap<IpAddr, u16>> {
        let map = bpf::Map::<NodeKey, NodeValue>::open(&self.maps.path(NODE_MAP))?;
        Ok(map.entries()?.into_iter().filter_map(|(key, value)| Some((key.ip()?, value.id))).collect())
    }

    /// Returns the address of each node by its id: its own address, not that of its router.
    fn addresses(&self) -> HashMap<u16, IpAddr> {
        let ids = self.node_ids().unwrap_or_default();
        let (snapshot, mut addresses) = (self.nodes.snapshot(), HashMap::new());
        for node in self.nodes.all(&snapshot) {
            for ip in own_addresses(node) {
                let id = if node.is_local() { Some(&0) } else { ids.get(&ip) };
                if let Some(id) = id {
                    addresses.entry(*id).or_insert(ip);
                }
            }
        }
        addresses
    }
}

fn own_addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let addresses = [node.ipv4().map(IpAddr::V4), node.ipv6().map(IpAddr::V6)];
    addresses.into_iter().flatten()
}

impl Cluster for Tables {
    fn peer(&mut self, node: u16) -> Option<SocketAddr> {
        let known = self.addresses.take().filter(|(read, _)| read.elapsed() < NODE_IDS_AGE);
        let known = known.unwrap_or_else(|| (Instant::now(), self.addresses()));
        let address = known.1.get(&node).map(|ip| SocketAddr::new(*ip, self.port));
        self.addresses = Some(known);
        address
    }

    fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        let snapshot = self.nodes.snapshot();
        if self.nodes.initialized(&snapshot)
            && let Ok(ids) = self.node_ids()
        {
            needs.nodes = Some(ids.into_values().collect());
        }
        let snapshot = self.identities.snapshot();
        if self.identities.initialized(&snapshot) {
            needs.identities = Some(self.identities.all(&snapshot).map(|row| row.id).collect());
        }
        let snapshot = self.endpoints.snapshot();
        if self.endpoints.initialized(&snapshot) {
            needs.required = required(&*self.datapath, self.endpoints.all(&snapshot).map(|row| &**row));
        }
        needs
    }
}

/// Returns whether an identity has an endpoint on this node.
pub(crate) fn has_endpoint(endpoints: &Table<Endpoint>, identity: u32) -> bool {
    let snapshot = endpoints.snapshot();
    endpoints.all(&snapshot).any(|endpoint| endpoint.applied_identity == identity)
}

/// Returns the peers that policies in the kernel require to authenticate; `None` if a policy cannot be read.
fn required<'a>(
    datapath: &dyn Datapath,
    endpoints: impl Iterator<Item = &'a Endpoint>,
) -> Option<HashMap<(u32, u8), HashSet<u32>>> {
    let mut required: HashMap<_, HashSet<u32>> = HashMap::new();
    for endpoint in endpoints.filter(|endpoint| endpoint.applied_identity != 0) {
        for (key, entry) in datapath.policy_rows(endpoint.record.id).ok()? {
            let auth_type = entry.auth_type & !policy_flag::EXPLICIT_AUTH;
            if auth_type != 0 && !entry.deny() {
                let peers = required.entry((endpoint.applied_identity, auth_type)).or_default();
                peers.insert(key.sec_label);
            }
        }
    }
    Some(required)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// proxy.md, scenario 76, and what else makes an authentication superfluous: each key differs in one field.
    #[test]
    fn what_is_not_known_is_needed() {
        let key =
            AuthKey { local_identity: 1000, remote_identity: 2000, remote_node: 7, auth_type: 1, pad: 0 };
        assert!(Needs::default().has(&key));
        let needs = || Needs {
            nodes: Some(HashSet::from([7])),
            identities: Some(HashSet::from([1000, 2000, 3000])),
            required: Some(HashMap::from([((1000, 1), HashSet::from([2000]))])),
        };
        assert!(needs().has(&key) && needs().has(&AuthKey { remote_node: 0, ..key }));
        for other in [
            AuthKey { remote_node: 8, ..key },
            AuthKey { local_identity: 3000, ..key },
            AuthKey { remote_identity: 3000, ..key },
            AuthKey { auth_type: 2, ..key },
        ] {
            assert!(!needs().has(&other), "{other:?}");
        }
        let gone = Needs { identities: Some(HashSet::from([1000])), ..needs() };
        assert!(!gone.has(&key));
        let any = Needs { required: Some(HashMap::from([((1000, 1), HashSet::from([0]))])), ..needs() };
        assert!(any.has(&AuthKey { remote_identity: 3000, ..key }));
    }
}

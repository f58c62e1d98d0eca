//! The job: from the tables of nodes and devices to desired routes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use devices::{Device, HOST_DEVICE, Netlink, Route, TABLE_LOCAL, TABLE_MAIN};
use hive::JobCx;
use local_node::LocalNode;
use node_manager::Node;
use routes::{DesiredRoute, FibKey, Routes};
use statedb::{Initializer, Obj, Snapshot, Table};
use subnet::SubnetIdentity;
use tokio::time::sleep;
use tunnel::{MtuConfig, Tunnel};

use crate::plan::{Settings, Way, Ways};

/// The owner of the routes to the router and to the pods of this node.
const LOCAL_OWNER: &str = "local-node";
/// Minimum interval of lookups for all nodes, which each change of the host's routes leads to.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which lookups that have failed are repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Nodes of one transaction.
const BATCH: usize = 1000;
/// Errors in the health report.
const MAX_REPORTED_ERRORS: usize = 5;

/// The inputs of the job.
pub(crate) struct Follower {
    pub(crate) nodes: Arc<Table<Node>>,
    pub(crate) subnets: Arc<Table<SubnetIdentity>>,
    pub(crate) local: Arc<Table<LocalNode>>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) live: Arc<Table<Route>>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) settings: Settings,
    pub(crate) mtu: MtuConfig,
    pub(crate) tunnel: Arc<Tunnel>,
}

/// The inputs of the routes to all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    /// The routes of this node: they change with its ranges and its router.
    own: (Option<IpAddr>, Option<IpAddr>, Vec<ipnetwork::IpNetwork>),
    /// MTU of routes by the tunnel.
    mtu: u32,
    /// Digest of the host's routes and devices, by which other nodes are reached directly.
    uplinks: u64,
    /// The last change of the groups of subnets.
    subnets: u64,
}

impl Follower {
    /// Follows the tables as long as the hive runs.
    pub(crate) async fn run(self, cx: JobCx, initializer: Initializer<DesiredRoute>) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx, initializer)).await;
    }

    async fn follow(self, cx: &JobCx, initializer: Initializer<DesiredRoute>) {
        let is_direct = self.settings.mode.is_direct();
        let mut initializer = Some(initializer);
        let mut changes = self.nodes.changes();
        let mut basis: Option<Basis> = None;
        // Reasons for missing routes by node.
        let mut problems: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut failed: BTreeSet<(Arc<str>, Arc<str>)> = BTreeSet::new();
        loop {
            let snapshot = self.nodes.snapshot();
            let (batch, nodes_changed) = changes.read(&snapshot, usize::MAX);
            let (local, local_changed) = self.local.get_watch(&snapshot, LocalNode::query());
            let (_, devices_changed) = self.devices.all_watch(&snapshot);
            let (_, subnets_changed) = self.subnets.all_watch(&snapshot);
            let (_, routes_changed) = self.live.all_watch(&snapshot);
            let (is_complete, completed) = self.nodes.initialized_watch(&snapshot);
            let Some(local) = local else {
                // Changes that were read are those of nodes, which all follow when this node is known.
                tokio::select! {
                    () = local_changed.changed() => {}
                    () = nodes_changed.changed() => {}
                }
                continue;
            };
            let local = &self.addressed(&snapshot, local);
            let gone = batch.iter().filter(|change| change.deleted || change.object.is_local());
            let gone: Vec<String> = gone.map(|change| owner(&change.object)).collect();
            gone.iter().for_each(|owner| _ = problems.remove(owner));
            if !gone.is_empty() {
                self.routes.replace(gone.iter().map(|owner| (owner.as_str(), Vec::new())));
            }

            let now = self.basis(&snapshot, local);
            let all = basis.as_ref() != Some(&now);
            if all {
                self.routes.replace([(LOCAL_OWNER, self.settings.local_routes(local))]);
            }
            let retried = std::mem::take(&mut failed);
            let affected: Vec<Obj<Node>> = if all {
                self.nodes.all(&snapshot).cloned().collect()
            } else {
                let changed = batch.iter().filter(|change| !change.deleted).map(|change| &change.object);
                let retried = retried
                    .iter()
                    .filter_map(|(cluster, name)| self.nodes.get(&snapshot, Node::by_name(cluster, name)));
                retried.chain(changed).cloned().collect()
            };
            for nodes in affected.chunks(BATCH) {
                let nodes: Vec<&Node> =
                    nodes.iter().map(|node| &**node).filter(|node| !node.is_local()).collect();
                let ways = self.ways(&snapshot, &nodes).await;
                let groups = |range| SubnetIdentity::group_of(&self.subnets, &snapshot, range);
                let plans: Vec<(String, Vec<DesiredRoute>)> = nodes
                    .iter()
                    .map(|node| {
                        let owner = owner(node);
                        let (routes, errors) =
                            self.settings.node_routes(node, local, now.mtu, &ways, &groups);
                        let has_failed =
                            self.settings.lookups(node).iter().any(|ip| matches!(ways.get(ip), Some(Err(_))));
                        if has_failed {
                            failed.insert((node.cluster.clone(), node.name.clone()));
                        }
                        if errors.is_empty() {
                            problems.remove(&owner);
                        } else {
                            let name = node.full_name();
                            problems.insert(
                                owner.clone(),
                                errors.iter().map(|error| format!("{name}: {error}")).collect(),
                            );
                        }
                        (owner, routes)
                    })
                    .collect();
                self.routes.replace(plans.iter().map(|(owner, routes)| (owner.as_str(), routes.clone())));
            }
            basis = Some(now);
            self.report(cx, &snapshot, local, &problems);
            if is_complete
                && self.settings.is_routable(local)
                && let Some(initializer) = initializer.take()
            {
                self.routes.finish(initializer);
            }
            drop(snapshot);
            if is_direct && all {
                sleep(LOOKUP_INTERVAL).await;
            }
            tokio::select! {
                () = nodes_changed.changed() => {}
                () = local_changed.changed() => {}
                () = devices_changed.changed() => {}
                () = subnets_changed.changed() => {}
                () = routes_changed.changed(), if is_direct => {}
                () = completed.changed(), if !is_complete => {}
                () = sleep(RETRY_INTERVAL), if !failed.is_empty() => {}
            }
        }
    }

    /// Returns the row with those of the router's addresses that its device has: the kernel refuses routes with another
    /// source.
    fn addressed(&self, snapshot: &Snapshot, local: &LocalNode) -> LocalNode {
        let host = self.devices.get(snapshot, Device::by_name(HOST_DEVICE));
        let is_there =
            |ip: IpAddr| host.is_some_and(|host| host.addrs.iter().any(|address| address.addr == ip));
        let mut local = local.clone();
        local.router_ipv4 = local.router_ipv4.filter(|ip| is_there((*ip).into()));
        local.router_ipv6 = local.router_ipv6.filter(|ip| is_there((*ip).into()));
        local
    }

    fn basis(&self, snapshot: &Snapshot, local: &LocalNode) -> Basis {
        let routers = (local.router_ipv4.map(IpAddr::from), local.router_ipv6.map(IpAddr::from));
        Basis {
            own: (routers.0, routers.1, local.routed_cidrs().collect()),
            mtu: self.route_mtu(snapshot),
            uplinks: self.uplinks(snapshot),
            subnets: self.subnets.revision(snapshot),
        }
    }

    /// Returns the MTU of routes by the tunnel: that of the devices without the tunnel's headers.
    fn route_mtu(&self, snapshot: &Snapshot) -> u32 {
        let selected = self.devices.list(snapshot, Device::by_selected(true));
        self.tunnel.route_mtu(self.mtu.device_mtu(&self.tunnel, selected.map(|device| &**device)))
    }

    /// Returns a digest of the routes that lookups for nodes may depend on: without those of this agent, and without
    /// those of single links that come with each pod.
    fn uplinks(&self, snapshot: &Snapshot) -> u64 {
        let mut digest = DefaultHasher::new();
        if !self.settings.mode.is_direct() {
            return 0;
        }
        let desired = self.routes.table();
        for route in self.live.all(snapshot) {
            let key = FibKey { table: route.key.table, prefix: route.key.dst, priority: route.key.priority };
            let is_own = desired.get(snapshot, DesiredRoute::by_key(key)).is_some();
            let is_of_link = match key.prefix.ip() {
                IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
                IpAddr::V4(ip) => ip.is_loopback() || ip.is_multicast(),
            };
            if is_own || is_of_link || (key.table == TABLE_LOCAL && route.kind != 2) {
                continue;
            }
            (route.key, route.gateway, route.kind, key.table == TABLE_MAIN).hash(&mut digest);
        }
        // A route may be over a device that is created again with the same name.
        for device in self.devices.list(snapshot, Device::by_selected(true)) {
            (&device.name, device.index, device.is_up()).hash(&mut digest);
        }
        digest.finish()
    }

    /// Looks up the kernel's ways to nodes.
    async fn ways(&self, snapshot: &Snapshot, nodes: &[&Node]) -> Ways {
        let addresses: BTreeSet<IpAddr> = nodes.iter().flat_map(|node| self.settings.lookups(node)).collect();
        if addresses.is_empty() {
            return Ways::new();
        }
        let found = hive::blocking(move || {
            let mut netlink = Netlink::open();
            let mut ask = |ip: IpAddr| match &mut netlink {
                Ok(netlink) => netlink.route_to(ip).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            addresses.into_iter().map(|ip| (ip, ask(ip))).collect::<Vec<_>>()
        })
        .await;
        let name =
            |index| self.devices.get(snapshot, Device::by_index(index)).map(|device| device.name.clone());
        let way = |route: Route| Way { device: name(route.key.link_index), gateway: route.gateway };
        found.into_iter().map(|(ip, result)| (ip, result.map(|route| route.map(way)))).collect()
    }

    fn report(
        &self,
        cx: &JobCx,
        snapshot: &Snapshot,
        local: &LocalNode,
        problems: &BTreeMap<String, Vec<String>>,
    ) {
        let has_local = self.nodes.get(snapshot, Node::by_name(&local.cluster, &local.name)).is_some();
        let errors: Vec<&String> = problems.values().flatten().collect();
        if errors.is_empty() {
            let others = self.nodes.len(snapshot) - usize::from(has_local);
            cx.health.ok(format_args!("Routes to {others} other node(s)"));
            return;
        }
        let mut text: Vec<&str> =
            errors.iter().take(MAX_REPORTED_ERRORS).map(|error| error.as_str()).collect();
        let more = errors.len().saturating_sub(MAX_REPORTED_ERRORS);
        let more = (more > 0).then(|| format!("and {more} more"));
        text.extend(more.as_deref());
        let text = text.join("; ");
        if cx.health.degraded_anew("Pods of some nodes are not reachable", &text) {
            tracing::warn!(error = %text, "No routes to the pods of some nodes");
        }
    }
}

/// Returns the owner of a node's routes.
fn owner(node: &Node) -> String {
    format!("node/{}/{}", node.cluster, node.name)
}

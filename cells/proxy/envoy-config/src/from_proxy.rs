//! The way of packets from Envoy with native routing: by the programs at `cilium_host`, as with a tunnel.
//!
//! Envoy in front of a pod sends with the identity of the client in the mark. By the routes to pods of other nodes such
//! packets would leave without a program that knows the mark; the rule and the table of this module lead them through
//! `cilium_host` first, after which the programs have cleared it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use devices::{Device, HOST_DEVICE, SCOPE_LINK};
use hive::JobCx;
use ipnetwork::IpNetwork;
use local_node::LocalNode;
use maps::FamilyConfig;
use proxy_ports::FROM_PROXY_TABLE;
use routes::{DesiredRoute, DesiredRule, Routes};
use statedb::{Initializer, Table};

/// The owner of the rules and routes.
pub(crate) const OWNER: &str = "envoy-config";
/// The other end of `cilium_host`.
const NET_DEVICE: &str = "cilium_net";

/// Returns the rules of the enabled families.
pub(crate) fn rules(families: &FamilyConfig) -> Vec<DesiredRule> {
    enabled(families).map(proxy_ports::from_ingress_proxy).collect()
}

fn enabled(families: &FamilyConfig) -> impl Iterator<Item = bool> {
    [(false, families.enable_ipv4), (true, families.enable_ipv6)]
        .into_iter()
        .filter_map(|(ipv6, is_on)| is_on.then_some(ipv6))
}

/// Keeps the routes of the table in step with the addresses of the node.
pub(crate) struct FromProxy {
    pub(crate) families: FamilyConfig,
    pub(crate) node: Table<LocalNode>,
    pub(crate) devices: Table<Device>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) initializer: Initializer<DesiredRoute>,
}

impl FromProxy {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let mut initializer = Some(self.initializer);
        loop {
            let snapshot = self.node.snapshot();
            let (node, node_watch) = self.node.get_watch(&snapshot, LocalNode::query());
            let router = node.and_then(|node| node.router_ipv4);
            let (net, net_watch) = self.devices.get_watch(&snapshot, Device::by_name(NET_DEVICE));
            let peer = net.and_then(|net| link_local(net));
            let hops: Vec<Option<IpAddr>> = enabled(&self.families)
                .map(|ipv6| if ipv6 { peer.map(IpAddr::V6) } else { router.map(IpAddr::V4) })
                .collect();
            self.routes.replace([(OWNER, hops.iter().flatten().flat_map(|hop| by_host(*hop)).collect())]);
            if hops.iter().all(Option::is_some)
                && let Some(initializer) = initializer.take()
            {
                self.routes.finish(initializer);
            }
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                _ = node_watch.changed() => {}
                _ = net_watch.changed() => {}
            }
        }
    }
}

/// Returns the link-local address of a device.
fn link_local(device: &Device) -> Option<Ipv6Addr> {
    device.addrs.iter().find_map(|address| match address.addr {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
        _ => None,
    })
}

/// Returns the routes that lead everything through `cilium_host`.
fn by_host(hop: IpAddr) -> [DesiredRoute; 2] {
    let any: IpAddr = if hop.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A prefix of no bits is valid.
    let all = IpNetwork::new(any, 0).unwrap_or_else(|_| unreachable!());
    [
        DesiredRoute::new(hop.into()).table(FROM_PROXY_TABLE).device(HOST_DEVICE).scope(SCOPE_LINK),
        DesiredRoute::new(all).table(FROM_PROXY_TABLE).via(hop, HOST_DEVICE),
    ]
}

#[cfg(test)]
mod tests {
    use hive::prelude::*;
    use routes::Rules;
    use statedb::RwTable;
    use test_kit::{Sandbox, require_root};

    use super::*;

    struct FromProxyParams {
        routes: Arc<Routes>,
        rules: Arc<Rules>,
        node: Arc<RwTable<LocalNode>>,
        devices: Arc<Table<Device>>,
    }

    /// Starts the job with routes and rules in the sandbox's namespace; returns the node's table.
    fn follow(p: FromProxyParams, jobs: &JobGroup) -> Arc<RwTable<LocalNode>> {
        let families = FamilyConfig { enable_ipv4: true, enable_ipv6: true };
        p.rules.replace(OWNER, rules(&families));
        let initializer = p.routes.register_initializer(OWNER);
        let (node, devices) = (p.node.reader(), (*p.devices).clone());
        let job = FromProxy { families, node, devices, routes: p.routes, initializer };
        jobs.one_shot("routes-from-proxy", move |cx: JobCx| job.run(cx)).add();
        p.node
    }

    struct Node(Arc<RwTable<LocalNode>>);

    #[test]
    fn packets_of_proxies_go_by_cilium_host_and_others_by_their_routes() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let host = sandbox.host();
        host.ip_batch(
            "link add cilium_host type veth peer name cilium_net\nlink set cilium_host up\n\
             link set cilium_net up\naddr add 10.0.0.9/32 dev cilium_host\n\
             link add eth0 type veth peer name peer\nlink set eth0 up\nlink set peer up\n\
             addr add 192.0.2.1/24 dev eth0\naddr add fd00::1/64 dev eth0 nodad\n\
             route add 10.9.0.0/16 via 192.0.2.2\nroute add fd09::/64 via fd00::2\n",
        )
        .unwrap();
        let device = |target: &str, mark: &str| {
            let text = host.ip(&format!("route get {target} mark {mark}")).unwrap_or_default();
            text.split_once(" dev ").and_then(|(_, rest)| rest.split(' ').next().map(str::to_owned))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let state = config::<local_node::StateConfig>();
            let start = |routes: Arc<Routes>,
                         rules: Arc<Rules>,
                         node: Arc<RwTable<LocalNode>>,
                         devices: Arc<Table<Device>>,
                         jobs: JobGroup| {
                Arc::new(Node(follow(FromProxyParams { routes, rules, node, devices }, &jobs)))
            };
            let own = module("test", "Routes of proxies", [statedb::table::<LocalNode>(), provide(start)]);
            let cells = [statedb::cell(), devices::cell(), state, routes::cell(), own];
            let mut hive = TestHive::needing::<Node>(cells).set("state-dir", sandbox.state_dir().display());
            hive.start().await;
            let eth0 = Some("eth0".to_owned());
            assert_eq!(device("10.9.0.1", "0xa00"), eth0, "the router has no address yet");
            let row =
                |last: u8| LocalNode { router_ipv4: Some([10, 0, 0, last].into()), ..LocalNode::default() };
            hive.get::<Node>().0.transact(|txn| drop(txn.insert(row(9))));
            let host_device = Some("cilium_host".to_owned());
            for target in ["10.9.0.1", "fd09::1"] {
                hive.until("the way of proxies", || device(target, "0x12340a00") == host_device).await;
                assert_eq!(device(target, "0"), eth0, "{target}");
                assert_eq!(device(target, "0xb00"), eth0, "{target}");
            }
            // A new address of the router replaces the old one.
            host.ip_batch("addr add 10.0.0.8/32 dev cilium_host\naddr del 10.0.0.9/32 dev cilium_host\n")
                .unwrap();
            hive.get::<Node>().0.transact(|txn| drop(txn.insert(row(8))));
            let table = || host.ip("route show table 2005").unwrap_or_default();
            hive.until("the new address", || {
                table().contains("via 10.0.0.8") && !table().contains("10.0.0.9")
            })
            .await;
            hive.stop().await;
        });
    }
}

//! The cell in network namespaces, with the programs of iptables and both backends.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath_api::HostMark;
use hive::prelude::*;
use iptables::ipset::NODE_SETS;
use iptables::ipset::kernel::Sets;
use iptables::saved::Saved;
use iptables::{NoTrackRules, Traffic};
use local_node::{LocalNode, LocalNodeStore, StateConfig};
use maps::FamilyConfig;
use node_manager::Node;
use node_manager::testing::Nodes;
use policy_engine::Parser;
use proxy_ports::{DNS_PROXY, PortState, Proxies, Proxy, ProxyPort};
use socket2::{Domain, Socket, Type};
use test_kit::{NetNs, Sandbox, require_command, require_root, wait_until};
use tracing::Level as LogLevel;

const PODS: &str = "10.244.0.0/24";
const WRITTEN: &str = "Wrote rules of iptables";
const REPAIRED: &str = "Another program has changed rules of iptables";
/// Longer than any pass takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn node() -> LocalNode {
    LocalNode {
        name: "n".into(),
        ipv4_alloc_cidr: Some(PODS.parse().unwrap()),
        ipv6_alloc_cidr: Some("fd00:10:244::/112".parse().unwrap()),
        router_ipv4: Some([10, 244, 0, 1].into()),
        router_ipv6: Some("fd00:10:244::1".parse().unwrap()),
        ..LocalNode::default()
    }
}

/// Another node: the host outside.
fn peer() -> Node {
    node_manager::testing::node("peer", &["192.0.2.2", "2001:db8::2"], &[])
}

/// A hive with the cell, not started.
fn hive(options: &[(&str, &str)]) -> TestHive {
    options.iter().fold(hive_with([]), |hive, (key, value)| hive.set(key, value))
}

/// The same with other cells beside it.
fn hive_with<const N: usize>(others: [Cell; N]) -> TestHive {
    let cells = [
        statedb::cell(),
        config::<FamilyConfig>(),
        devices::cell(),
        local_node::testing::given(node()),
        invoke(|_: Arc<LocalNodeStore>, _: Arc<Nodes>, _: Arc<NoTrackRules>| {}),
        node_manager::testing::given(vec![peer()]),
        tunnel::cell(),
        masquerade::cell(),
        iptables::cell(),
    ];
    TestHive::needing::<HostMark>(cells.into_iter().chain(others).collect::<Vec<_>>())
}

/// Returns message and error of the job's report; empty before the first.
fn report(hive: &TestHive) -> (String, String) {
    let rows = hive.hive().health().snapshot();
    let row = rows.into_iter().find(|row| row.path() == "iptables.job-rules" && row.level != Level::Stopped);
    row.map(|row| (row.message, row.error)).unwrap_or_default()
}

/// Runs an agent until its rules are in force, and something with it.
fn with_rules(options: &[(&str, &str)], work: impl AsyncFnOnce(&TestHive)) {
    block_on(async {
        let mut hive = hive(options);
        hive.start().await;
        hive.until("rules are in force", || report(&hive).0.contains("in force (")).await;
        work(&hive).await;
        hive.stop().await;
    });
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// The rules of a family without counters and comments.
fn saved(host: &NetNs, tool: &str) -> Saved {
    Saved::parse(&host.exec(&format!("{tool}-save")).unwrap())
}

fn restore(sandbox: &Sandbox, tool: &str, script: &str) {
    let path = sandbox.dir().join("script");
    fs::write(&path, script).unwrap();
    sandbox.host().exec(&format!("{tool}-restore --noflush --wait=60 {}", path.display())).unwrap();
}

fn own_chains(saved: &Saved) -> usize {
    saved.chains().filter(|(_, chain)| chain.starts_with("CILIUM_")).count()
}

/// A sandbox whose lock of iptables is its own. In a sandbox with a chain of kube-proxy in the older backend, the agent
/// uses that one.
fn sandbox(backend: &str) -> Sandbox {
    let sandbox = Sandbox::new().unwrap();
    sandbox.host().exec("mount -t tmpfs tmpfs /run").unwrap();
    if backend == "legacy" {
        restore(
            &sandbox,
            "iptables-legacy",
            "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n",
        );
    }
    sandbox
}

/// The default backend is that of nf_tables on the systems that tests run on.
const BACKENDS: [&str; 2] = ["nft", "legacy"];

fn tools(backend: &str) -> [String; 2] {
    [format!("iptables-{backend}"), format!("ip6tables-{backend}")]
}

/// Connects a pod and the world by a host that forwards.
fn connect(host: &NetNs, pod: &NetNs, world: &NetNs) {
    host.veth("lxc0123456789ab", pod, "eth0").unwrap();
    host.veth("eth0", world, "eth0").unwrap();
    host.ip_batch(
        "addr add 192.0.2.1/24 dev eth0\naddr add 2001:db8::1/64 dev eth0 nodad\n\
         addr add 10.244.0.1/24 dev lxc0123456789ab\naddr add fd00:10:244::1/112 dev lxc0123456789ab nodad\n",
    )
    .unwrap();
    pod.ip_batch(
        "addr add 10.244.0.9/24 dev eth0\naddr add fd00:10:244::9/112 dev eth0 nodad\n\
         route add default via 10.244.0.1\nroute add default via fd00:10:244::1\n",
    )
    .unwrap();
    world
        .ip_batch(
            "addr add 192.0.2.2/24 dev eth0\naddr add 2001:db8::2/64 dev eth0 nodad\n\
             addr add 198.51.100.2/32 dev eth0\n\
             route add 10.244.0.0/24 via 192.0.2.1\nroute add fd00:10:244::/112 via 2001:db8::1\n",
        )
        .unwrap();
    host.ip("route add 198.51.100.0/24 via 192.0.2.2").unwrap();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        host.set_sysctl(key, "1").unwrap();
    }
}

macro_rules! require_programs {
    () => {
        require_root!();
        require_command!("iptables-nft-save");
        require_command!("iptables-legacy-save");
    };
}

mod masquerading;
mod not_tracked;
mod proxies;
mod writes;

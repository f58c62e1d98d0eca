//! A node in a sandbox, as tests and benchmarks of the loader need it.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use datapath_abi::{NodeConfig, PolicyEntry, PolicyKey, ipv4_word, ipv6_words};
use datapath_api::{Datapath, EndpointDatapath};
use devices::Netlink;
use loader::{KernelDatapath, KernelOptions, ProgramSet};
use maps::{FamilyConfig, Maps, MapsConfig};
use test_kit::{NetNs, Sandbox};

pub const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xfe);

fn mac(id: u16) -> [u8; 6] {
    let [high, low] = id.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

fn mac_text(id: u16) -> String {
    mac(id).map(|byte| format!("{byte:02x}")).join(":")
}

pub const OPTIONS: KernelOptions =
    KernelOptions { filter_priority: 1, icmp_rules: true, host_firewall: false };

pub fn maps(sandbox: &Sandbox) -> Arc<Maps> {
    let config = MapsConfig {
        bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
        preallocate_bpf_maps: false,
        ..MapsConfig::default()
    };
    let maps = Maps::new(config, FamilyConfig::default());
    maps.open().unwrap();
    Arc::new(maps)
}

pub fn node_config() -> NodeConfig {
    NodeConfig {
        router_ipv4: ipv4_word(ROUTER_V4),
        router_ipv6: ipv6_words(ROUTER_V6),
        enable_ipv4: 1,
        enable_ipv6: 1,
        source_ip_verification: 1,
        arp_responder: 1,
        redirect_peer: 1,
        ..NodeConfig::default()
    }
}

/// Performs the steps of an agent's start, in order.
pub fn start(maps: &Arc<Maps>) -> KernelDatapath {
    let datapath = KernelDatapath::new(maps.clone(), OPTIONS);
    loader::restore(&datapath).unwrap();
    datapath.pool().tend().unwrap();
    let programs = Arc::new(ProgramSet::load(maps, node_config()).unwrap());
    datapath.switch(programs.clone(), &mut Netlink::open().unwrap()).unwrap();
    programs.remove_others(maps.fs()).unwrap();
    datapath.set_ready();
    datapath
}

/// An endpoint with its interface, the host's side down, the pod's namespace empty.
pub fn pod(sandbox: &Sandbox, id: u16) -> EndpointDatapath {
    pod_with_namespace(sandbox, id).0
}

/// The same with the pod's namespace, with addresses and routes as the CNI plugin creates them.
pub fn pod_with_namespace(sandbox: &Sandbox, id: u16) -> (EndpointDatapath, NetNs) {
    let ns = sandbox.netns(&format!("pod{id}")).unwrap();
    let ifname = format!("lxc{id:05}");
    let peer = format!("peer name eth0 address {} netns {}", mac_text(id), ns.path().display());
    sandbox.host().ip(&format!("link add {ifname} type veth {peer}")).unwrap();
    let link = Netlink::open().unwrap().link_by_name(&ifname).unwrap();
    let (ipv4, ipv6) = (Ipv4Addr::new(10, 0, 0, id as u8), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, id));
    let endpoint = EndpointDatapath {
        id,
        identity: 5,
        ifindex: link.index,
        ifname,
        mac: mac(id),
        node_mac: link.hardware_addr.ethernet().unwrap(),
        ipv4: Some(ipv4),
        ipv6: Some(ipv6),
        ..EndpointDatapath::default()
    };
    (endpoint, ns)
}

/// Configures addresses and routes in a pod after its host side is up.
pub fn furnish(endpoint: &EndpointDatapath, ns: &NetNs) {
    let (ipv4, ipv6) = (endpoint.ipv4.unwrap(), endpoint.ipv6.unwrap());
    ns.ip_batch(&format!(
        "link set eth0 up\naddr add {ipv4}/32 dev eth0\naddr add {ipv6}/128 dev eth0 nodad\n\
         route add {ROUTER_V4} dev eth0 scope link\nroute add default via {ROUTER_V4}\n\
         route add {ROUTER_V6} dev eth0\nroute add default via {ROUTER_V6}\n"
    ))
    .unwrap();
}

/// The rows of an endpoint without policy: everything is allowed, both directions.
pub fn allow_all(datapath: &dyn Datapath, id: u16) {
    let rows = [false, true].map(|egress| (PolicyKey::any(egress), PolicyEntry::allow(0)));
    datapath.swap_policy(id, &rows).unwrap();
}

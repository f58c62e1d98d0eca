//! Packets of pods to a network that has no route back to them, while programs are replaced.

mod kit;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bpf::Direction;
use bpf::tc::Tc;
use datapath_abi::{
    EndpointInfo, EndpointKey, MasqueradeAddresses, NodeConfig, ipv4_word, ipv6_words, lxc_flag,
};
use datapath_api::Datapath;
use devices::Netlink;
use kit::{OPTIONS, allow_all, furnish, node_config, pod_with_namespace};
use loader::{KernelDatapath, ProgramSet};
use maps::{FamilyConfig, Maps, MapsConfig, NatSwitches, Specs};
use test_kit::{Sandbox, TcpFlow, UdpFlow, require_root, wait_until};

fn config() -> NodeConfig {
    NodeConfig {
        masquerade_ipv4: 1,
        masquerade_ipv6: 1,
        snat_min_port: 32768,
        ipv4_fragments: 1,
        ipv6_fragments: 1,
        identity_mark: 1,
        ct_tcp_lifetime: 8000,
        ct_any_lifetime: 60,
        ct_syn_timeout: 60,
        ct_close_timeout: 10,
        ..node_config()
    }
}

fn maps(sandbox: &Sandbox) -> Arc<Maps> {
    let options = MapsConfig {
        bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
        preallocate_bpf_maps: false,
        ..MapsConfig::default()
    };
    let nat = NatSwitches { ipv4: true, ipv6: true, ..NatSwitches::default() };
    let maps = Maps::of(Specs::new(options, FamilyConfig::default()).with_nat(nat));
    maps.open().unwrap();
    Arc::new(maps)
}

/// Loads the programs, and attaches those of devices to an interface: a start of the agent.
fn start(maps: &Arc<Maps>, datapath: &KernelDatapath, ifindex: u32) {
    let programs = Arc::new(ProgramSet::load(maps, config()).unwrap());
    datapath.switch(programs.clone(), &mut Netlink::open().unwrap()).unwrap();
    for (name, direction) in
        [(datapath_object::FROM_NETDEV, Direction::Ingress), (datapath_object::TO_NETDEV, Direction::Egress)]
    {
        let program = programs.program(name).unwrap();
        Tc::new().unwrap().attach_with_clsact(ifindex, direction, 1, name, program).unwrap();
    }
}

#[test]
fn a_pod_reaches_a_network_without_a_route_back() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    sandbox.host().ip_batch("addr add 10.99.0.1/24 dev eth0\naddr add fd99::1/64 dev eth0 nodad\n").unwrap();
    world.ip_batch("link set lo up\nlink set eth0 up\naddr add 10.99.0.2/24 dev eth0\naddr add fd99::2/64 dev eth0 nodad\n").unwrap();
    sandbox.host().ip("link set eth0 up").unwrap();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        sandbox.host().set_sysctl(key, "1").unwrap();
    }
    let maps = maps(&sandbox);
    let datapath = KernelDatapath::new(maps.clone(), OPTIONS);
    loader::restore(&datapath).unwrap();
    datapath.pool().tend().unwrap();
    let eth0 = Netlink::open().unwrap().link_by_name("eth0").unwrap().index;
    start(&maps, &datapath, eth0);
    datapath.set_ready();
    let (pod, ns) = pod_with_namespace(&sandbox, 1);
    datapath.attach(&pod).unwrap();
    allow_all(&datapath, pod.id);
    datapath.up(&pod).unwrap();
    furnish(&pod, &ns);
    let routes = [IpAddr::from(pod.ipv4.unwrap()), pod.ipv6.unwrap().into()];
    for ip in routes {
        sandbox.host().ip(&format!("route add {ip} dev {}", pod.ifname)).unwrap();
    }
    let (ipv4, ipv6) = ([10, 99, 0, 1].into(), "fd99::1".parse().unwrap());
    for ip in [IpAddr::V4(ipv4), IpAddr::V6(ipv6)] {
        let host = EndpointInfo { flags: lxc_flag::HOST, ..EndpointInfo::default() };
        maps.lxc().update(&EndpointKey::from(ip), &host).unwrap();
    }
    let targets: [IpAddr; 2] = [[10, 99, 0, 2].into(), "fd99::2".parse().unwrap()];
    for target in targets {
        let reachable = || sandbox.host().exec(&format!("ping -c 1 -W 1 {target}")).is_ok();
        wait_until("the host to reach the network", Duration::from_secs(20), reachable);
        // The control: without a row of the device the pod's address leaves the node, and no answer finds it.
        assert!(ns.exec(&format!("ping -c 1 -W 1 {target}")).is_err(), "{target}");
    }
    let row = MasqueradeAddresses {
        ipv4: ipv4_word(ipv4),
        ipv6: ipv6_words(ipv6),
        excluded_ipv4: u32::MAX,
        excluded_ipv6: [u32::MAX; 4],
        ..MasqueradeAddresses::default()
    };
    maps.masquerade().unwrap().unwrap().update(&eth0, &row).unwrap();
    for target in targets {
        let reachable = |size: u32| ns.exec(&format!("ping -c 1 -W 1 -s {size} {target}")).is_ok();
        wait_until("the pod to reach the network", Duration::from_secs(20), || reachable(56));
        wait_until("a ping in pieces", Duration::from_secs(20), || reachable(4000));
    }
    let udp = targets.map(|target| UdpFlow::start(&ns, &world, target).unwrap());
    let tcp = targets.map(|target| TcpFlow::start(&ns, &world, target).unwrap());
    // Starts of the agent in the middle of the streams.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(100));
        start(&maps, &datapath, eth0);
    }
    std::thread::sleep(Duration::from_millis(100));
    for flow in udp {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}");
    }
    for flow in tcp {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}");
    }
    // Nothing of the pod's address was seen outside.
    let neighbours = world.ip("neigh show").unwrap() + &world.ip("-6 neigh show").unwrap();
    assert!(!neighbours.contains("10.0.0.1 ") && !neighbours.contains("fd00::1 "), "{neighbours}");
}

//! Packets between pods while programs are replaced, endpoints are removed, and source addresses are spoofed.

mod kit;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::NodeConfig;
use datapath_api::Datapath;
use devices::Netlink;
use kit::{allow_all, furnish, maps, node_config, pod_with_namespace, start};
use loader::ProgramSet;
use maps::Maps;
use test_kit::{Sandbox, UdpFlow, require_root, wait_until};

fn drops(maps: &Maps, reason: u8) -> u64 {
    let rows = maps.metrics().entries().unwrap();
    rows.iter()
        .filter(|(key, _)| key.reason == reason)
        .flat_map(|(_, cpus)| cpus)
        .map(|value| value.count)
        .sum()
}

#[test]
fn no_packet_is_lost_while_programs_are_replaced_and_all_are_once_the_endpoint_is_gone() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let (a, a_ns) = pod_with_namespace(&sandbox, 1);
    let (b, b_ns) = pod_with_namespace(&sandbox, 2);
    for (endpoint, ns) in [(&a, &a_ns), (&b, &b_ns)] {
        datapath.attach(endpoint).unwrap();
        allow_all(&datapath, endpoint.id);
        datapath.up(endpoint).unwrap();
        furnish(endpoint, ns);
    }
    let targets = [IpAddr::V4(b.ipv4.unwrap()), IpAddr::V6(b.ipv6.unwrap())];
    for target in targets {
        let reachable = || a_ns.exec(&format!("ping -c 1 -W 1 {target}")).is_ok();
        wait_until("the pods to reach each other", Duration::from_secs(10), reachable);
    }

    // A reload, and starts from pinned state, as after a stop or kill -9.
    let flows = targets.map(|target| UdpFlow::start(&a_ns, &b_ns, target).unwrap());
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(50));
        let programs = Arc::new(ProgramSet::load(&maps, node_config()).unwrap());
        datapath.switch(programs, &mut Netlink::open().unwrap()).unwrap();
    }
    drop(datapath);
    let datapath = start(&maps);
    std::thread::sleep(Duration::from_millis(100));
    for flow in flows {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}");
    }

    // The control: without map entries packets are dropped, although programs and interfaces exist.
    let before = drops(&maps, 203);
    datapath.detach(a.id).unwrap();
    let flow = UdpFlow::start(&a_ns, &b_ns, targets[0]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let report = flow.stop();
    assert_eq!((report.received, report.sent > 0), (0, true), "{report:?}");
    assert!(drops(&maps, 203) >= before + report.sent, "counted as packets of no endpoint");
}

/// With `policy-deny-response=icmp` the pod's stack learns that policy denies its connection; without it, it waits.
#[test]
fn a_denied_connection_fails_at_once_with_a_response() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let (a, ns) = pod_with_namespace(&sandbox, 1);
    // Its policy map is empty: all is denied.
    datapath.attach(&a).unwrap();
    datapath.up(&a).unwrap();
    furnish(&a, &ns);
    const LIMIT: Duration = Duration::from_secs(10);
    let targets: [SocketAddr; 2] =
        ["198.51.100.9:80", "[2001:db8:9::9]:80"].map(|text| text.parse().unwrap());
    let connect =
        |target: &SocketAddr, limit| ns.run(|| TcpStream::connect_timeout(target, limit)).unwrap_err();
    for target in &targets {
        assert_eq!(connect(target, Duration::from_millis(300)).kind(), ErrorKind::TimedOut, "{target}");
    }
    let answering = NodeConfig { policy_deny_response: 1, ..node_config() };
    let programs = Arc::new(ProgramSet::load(&maps, answering).unwrap());
    datapath.switch(programs, &mut Netlink::open().unwrap()).unwrap();
    // The errors that Linux has for these messages.
    for (target, expected) in targets.iter().zip([ErrorKind::HostUnreachable, ErrorKind::PermissionDenied]) {
        let started = Instant::now();
        assert_eq!(connect(target, LIMIT).kind(), expected, "{target}");
        assert!(started.elapsed() < LIMIT / 2, "{target}: {:?}", started.elapsed());
    }
}

#[test]
fn a_source_address_that_is_not_the_pods_is_dropped() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let (a, a_ns) = pod_with_namespace(&sandbox, 1);
    let (b, b_ns) = pod_with_namespace(&sandbox, 2);
    for (endpoint, ns) in [(&a, &a_ns), (&b, &b_ns)] {
        datapath.attach(endpoint).unwrap();
        allow_all(&datapath, endpoint.id);
        datapath.up(endpoint).unwrap();
        furnish(endpoint, ns);
    }
    let target = b.ipv4.unwrap();
    let reachable = || a_ns.exec(&format!("ping -c 1 -W 1 {target}")).is_ok();
    wait_until("the pods to reach each other", Duration::from_secs(10), reachable);
    a_ns.ip("addr add 10.0.0.77/32 dev eth0").unwrap();
    let before = drops(&maps, 132);
    assert!(a_ns.exec(&format!("ping -c 2 -i 0.2 -W 1 -I 10.0.0.77 {target}")).is_err());
    assert!(drops(&maps, 132) >= before + 2);
    assert!(reachable());
}

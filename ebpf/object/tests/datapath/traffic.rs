//! Real packets between namespaces: numbered, none may be missing, and none arrives when a program is detached.

use crate::kit::*;
use anyhow::{Context as _, Result};
use aya::programs::TcAttachType::{self, Egress, Ingress};
use datapath_abi::{
    DIRECT_ROUTING, MasqueradeAddresses, NodeConfig, direction, drop, ep_flag, ipv4_word, ipv6_words, metric,
};
use datapath_object::{FROM_CONTAINER, FROM_HOST, FROM_NETDEV, TO_CONTAINER, TO_HOST, TO_NETDEV};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;
use test_kit::{NetNs, Sandbox, UdpFlow, UdpReport};

const NODE_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const NODE_V6: Ipv6Addr = ROUTER;
const FLOW: Duration = Duration::from_millis(150);

/// A node with two pods and a neighbour on its network, no program attached yet.
pub(crate) struct Node {
    pub(crate) sandbox: Sandbox,
    pub(crate) pods: [(NetNs, Pod); 2],
    pub(crate) world: NetNs,
}

impl Node {
    pub(crate) fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let host = sandbox.host();
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            host.set_sysctl(key, "1")?;
        }
        // Packets of pods come in where no route leads.
        for key in ["net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter"] {
            host.set_sysctl(key, "0")?;
        }
        // Link-local addresses serve at once, without a second of looking for duplicates.
        for key in ["net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_dad"] {
            host.set_sysctl(key, "0")?;
        }
        host.ip_batch(
            "link add cilium_host type veth peer name cilium_net
             link set cilium_host arp off up
             link set cilium_net arp off up
             addr add 10.0.0.1/32 dev cilium_host
             addr add fd00::1/128 dev cilium_host nodad
             route add 10.0.0.0/24 dev cilium_host src 10.0.0.1
             route add fd00::/64 dev cilium_host src fd00::1",
        )?;
        let world = sandbox.netns("world")?;
        host.veth("ext0", &world, "eth0")?;
        host.ip_batch("addr add 198.51.100.1/24 dev ext0\naddr add 2001:db8:ffff::1/64 dev ext0 nodad")?;
        world.ip_batch(
            "addr add 198.51.100.9/24 dev eth0
             addr add 2001:db8:ffff::9/64 dev eth0 nodad
             route add default via 198.51.100.1
             route add default via 2001:db8:ffff::1",
        )?;
        let pods = [pod(&sandbox, "a", A)?, pod(&sandbox, "b", B)?];
        Ok(Self { sandbox, pods, world })
    }

    /// The datapath with this node's rows.
    pub(crate) fn datapath(&self, config: &NodeConfig) -> Result<Datapath> {
        let config =
            NodeConfig { router_ipv6: ipv6_words(NODE_V6), router_ipv4: ipv4_word(NODE_V4), ..*config };
        let mut datapath = Datapath::load(&config)?;
        for (_, pod) in &self.pods {
            datapath.add(pod)?;
        }
        for ip in [IpAddr::from(NODE_V4), NODE_V6.into()] {
            datapath.add_host(ip)?;
        }
        Ok(datapath)
    }

    pub(crate) fn attach(&self, datapath: &mut Datapath, endpoint_routes: bool) -> Result<()> {
        let mut hooks: Vec<(&str, &str, TcAttachType)> = vec![
            (FROM_CONTAINER, "lxc_a", Ingress),
            (FROM_CONTAINER, "lxc_b", Ingress),
            (FROM_HOST, "cilium_host", Egress),
            (TO_HOST, "cilium_host", Ingress),
            (TO_HOST, "cilium_net", Ingress),
            (FROM_NETDEV, "ext0", Ingress),
        ];
        if endpoint_routes {
            hooks.extend([(TO_CONTAINER, "lxc_a", Egress), (TO_CONTAINER, "lxc_b", Egress)]);
            for (name, pod) in [("lxc_a", A), ("lxc_b", B)] {
                self.sandbox.host().ip_batch(&format!(
                    "route add {}/32 dev {name} src {NODE_V4}\nroute add {}/128 dev {name} src {NODE_V6}",
                    pod.ipv4, pod.ipv6
                ))?;
            }
        }
        for (program, interface, at) in hooks {
            datapath.attach(program, interface, at).with_context(|| format!("{program} on {interface}"))?;
        }
        Ok(())
    }

    fn flow(&self, from: &NetNs, to: &NetNs, ip: impl Into<IpAddr>) -> Result<UdpReport> {
        let flow = UdpFlow::start(from, to, ip.into())?;
        std::thread::sleep(FLOW);
        Ok(flow.stop())
    }

    /// Every direction in both families.
    fn assert_all_flows(&self, what: &str) -> Result<()> {
        let host = self.sandbox.host();
        let [(a, pod_a), (b, pod_b)] = &self.pods;
        let flows: [(&str, &NetNs, &NetNs, IpAddr); 12] = [
            ("pod to pod", a, b, pod_b.ipv4.into()),
            ("pod to pod", a, b, pod_b.ipv6.into()),
            ("pod to pod, back", b, a, pod_a.ipv4.into()),
            ("pod to pod, back", b, a, pod_a.ipv6.into()),
            ("pod to host", a, host, NODE_V4.into()),
            ("pod to host", a, host, NODE_V6.into()),
            ("host to pod", host, b, pod_b.ipv4.into()),
            ("host to pod", host, b, pod_b.ipv6.into()),
            ("pod to outside", a, &self.world, OUTSIDE_V4.into()),
            ("pod to outside", a, &self.world, OUTSIDE_V6.into()),
            ("outside to pod", &self.world, b, pod_b.ipv4.into()),
            ("outside to pod", &self.world, b, pod_b.ipv6.into()),
        ];
        let mut running = Vec::new();
        for (name, from, to, ip) in flows {
            running.push((name, ip, UdpFlow::start(from, to, ip)?));
        }
        std::thread::sleep(FLOW);
        // Each waits for stragglers when it stops.
        std::thread::scope(|threads| {
            for (name, ip, flow) in running {
                threads.spawn(move || {
                    let report = flow.stop();
                    assert!(report.is_perfect(), "{what}, {name} {ip}: {report:?}");
                });
            }
        });
        Ok(())
    }
}

/// A pod's namespace behind `lxc_<name>`, and its endpoint with the interface's real number and addresses.
fn pod(sandbox: &Sandbox, name: &str, pod: Pod) -> Result<(NetNs, Pod)> {
    let netns = sandbox.netns(name)?;
    let interface = format!("lxc_{name}");
    sandbox.host().veth(&interface, &netns, "eth0")?;
    netns.ip_batch(&format!(
        "addr add {}/32 dev eth0
         addr add {}/128 dev eth0 nodad
         route add {NODE_V4} dev eth0
         route add {NODE_V6} dev eth0
         route add default via {NODE_V4}
         route add default via {NODE_V6}",
        pod.ipv4, pod.ipv6
    ))?;
    let (ifindex, node_mac) = link(sandbox.host(), &interface)?;
    let (_, mac) = link(&netns, "eth0")?;
    Ok((netns, Pod { ifindex, mac, node_mac, ..pod }))
}

/// A client of IPv6 and a machine of IPv4 on two networks of a gateway between the families: sockets of both exchange what no
/// packet holds, so that the kernel makes and merges segments on the way, and pings come back.
#[test]
fn an_ipv6_client_and_an_ipv4_machine_talk_through_the_gateway() -> Result<()> {
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
    const MACHINE: &str = "203.0.113.9";
    const BYTES: usize = 300_000;
    test_kit::require_root!();
    let node = Node::new()?;
    let host = node.sandbox.host();
    let machine = node.sandbox.netns("machine")?;
    host.veth("ext1", &machine, "eth0")?;
    host.ip_batch(&format!("addr add {GATEWAY}/24 dev ext1"))?;
    machine.ip_batch(&format!("addr add {MACHINE}/24 dev eth0"))?;
    let config = NodeConfig {
        nodeport: 1,
        snat_min_port: 32768,
        nat46x64: 1,
        nat46x64_gateway: 1,
        ..host_routing_config()
    };
    let mut datapath = node.datapath(&config)?;
    datapath.add_host(GATEWAY.into())?;
    let own = MasqueradeAddresses { ipv4: ipv4_word(GATEWAY), ..MasqueradeAddresses::default() };
    datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &own)?;
    node.attach(&mut datapath, false)?;
    datapath.attach(FROM_NETDEV, "ext1", Ingress)?;
    datapath.attach(TO_NETDEV, "ext1", Egress)?;
    datapath.attach(TO_NETDEV, "ext0", Egress)?;
    let address: IpAddr = format!("64:ff9b::{MACHINE}").parse()?;

    let listener = machine.run(|| TcpListener::bind((MACHINE, 0)))?;
    let port = listener.local_addr()?.port();
    // The kernel accepts the connection: without one the machine's thread would wait for ever.
    let timeout = Duration::from_secs(5);
    let mut stream = node.world.run(|| TcpStream::connect_timeout(&(address, port).into(), timeout))?;
    stream.set_read_timeout(Some(timeout))?;
    std::thread::scope(|threads| -> Result<()> {
        let echo = threads.spawn(|| -> Result<IpAddr> {
            let (mut stream, client) = listener.accept()?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes)?;
            bytes.reverse();
            stream.write_all(&bytes)?;
            Ok(client.ip())
        });
        let sent: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        stream.write_all(&sent)?;
        let mut back = vec![0; BYTES];
        stream.read_exact(&mut back)?;
        back.reverse();
        assert!(back == sent, "what comes back is not what was sent");
        assert_eq!(echo.join().ok().context("the machine failed")??, IpAddr::from(GATEWAY));
        Ok(())
    })?;
    for client in [&node.world, &node.pods[0].0] {
        assert!(answered_hops(client, address)?.is_some(), "no answer to a ping");
    }
    Ok(())
}

/// Number and MAC address of an interface.
pub(crate) fn link(netns: &NetNs, name: &str) -> Result<(u32, [u8; 6])> {
    let line = netns.ip(&format!("-o link show dev {name}"))?;
    let ifindex = line.split(':').next().context("no number")?.trim().parse()?;
    let text =
        line.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).context("no MAC address")?;
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(text, 16)?;
    }
    Ok((ifindex, mac))
}

#[test]
fn everybody_reaches_everybody() -> Result<()> {
    test_kit::require_root!();
    let variants = [
        ("host routing", host_routing_config()),
        ("redirected between pods only", default_config()),
        ("legacy host routing", NodeConfig { redirect_peer: 0, ..default_config() }),
        ("endpoint routes", NodeConfig { redirect_peer: 0, endpoint_routes: 1, ..default_config() }),
        ("endpoint routes and host routing", NodeConfig { endpoint_routes: 1, ..host_routing_config() }),
    ];
    for (what, config) in variants {
        let node = Node::new()?;
        let mut datapath = node.datapath(&config)?;
        node.attach(&mut datapath, config.endpoint_routes != 0)?;
        node.assert_all_flows(what)?;
        let drops = datapath.counters()?.into_iter().filter(|row| row.0.is_drop()).collect::<Vec<_>>();
        // Pods join multicast groups and look for routers from link-local addresses: refused as in Cilium.
        let expected =
            [drop::INVALID_SOURCE_IP, drop::STALE_OR_UNROUTABLE_IP, drop::UNKNOWN_L3_TARGET_ADDRESS];
        assert!(drops.iter().all(|row| expected.contains(&row.0.reason)), "{what}: {drops:?}");
        assert!(datapath.counted(metric::FORWARDED, direction::INGRESS)? > 0, "{what}");
    }
    Ok(())
}

/// The control: the same node without its programs, and with one of them that knows nobody.
#[test]
fn nobody_reaches_anybody_without_programs() -> Result<()> {
    test_kit::require_root!();
    let node = Node::new()?;
    let [(a, _), (b, pod_b)] = &node.pods;
    for ip in [IpAddr::from(pod_b.ipv4), pod_b.ipv6.into()] {
        assert_eq!(node.flow(a, b, ip)?.received, 0, "nothing attached");
    }
    let mut datapath = node.datapath(&default_config())?;
    node.attach(&mut datapath, false)?;
    assert!(node.flow(a, b, pod_b.ipv4)?.is_perfect());
    datapath.set_settings(&node.pods[0].1, 0)?;
    assert_eq!(node.flow(a, b, pod_b.ipv4)?.received, 0, "the endpoint is not live");
    assert!(datapath.counted(drop::EP_NOT_READY, direction::EGRESS)? > 0);
    datapath.set_settings(&node.pods[0].1, ep_flag::LIVE)?;
    assert!(node.flow(a, b, pod_b.ipv4)?.is_perfect());
    Ok(())
}

/// A packet for this node arrives with the hops that the pod gave it: 1 (a BGP session with a router on the node) and
/// 255 (the check of RFC 5082) included. On its way out it loses the stack's hop and no other.
#[test]
fn only_forwarding_takes_a_hop_of_what_pods_send() -> Result<()> {
    test_kit::require_root!();
    for redirect_peer in [0, 1] {
        let node = Node::new()?;
        let mut datapath =
            node.datapath(&NodeConfig { redirect_peer, host_routing: redirect_peer, ..default_config() })?;
        node.attach(&mut datapath, false)?;
        let (a, pod) = &node.pods[0];
        for hops in [1, 2, 64, 255] {
            a.set_sysctl("net/ipv4/ip_default_ttl", &hops.to_string())?;
            a.set_sysctl("net/ipv6/conf/eth0/hop_limit", &hops.to_string())?;
            for address in [IpAddr::from(pod.ipv4), pod.ipv6.into()] {
                let at_host = answered_hops(node.sandbox.host(), address)?;
                assert_eq!(at_host, Some(hops), "{address}, to the host");
                let outside = answered_hops(&node.world, address)?;
                assert_eq!(outside, (hops > 1).then(|| hops - 1), "{address}, to the outside");
            }
        }
        assert_eq!(datapath.counted(drop::TTL_EXCEEDED, direction::EGRESS)?, 0);
    }
    Ok(())
}

/// The hops that an answer to a ping arrives with; `None` if there is no answer.
fn answered_hops(from: &NetNs, address: IpAddr) -> Result<Option<u32>> {
    let output = from.command("ping").args(["-n", "-c1", "-W1"]).arg(address.to_string()).output()?;
    let output = String::from_utf8(output.stdout)?;
    let Some((_, rest)) = output.split_once("ttl=") else { return Ok(None) };
    Ok(Some(rest.split(' ').next().context("no number")?.parse()?))
}

//! Direct server return by a Geneve tunnel: its option names the frontend. Kernels without the protocol run it, too: the
//! programs only write and read what a device of the tunnel would send.

use crate::dsr::{BackendNode, direct};
use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::service::*;
use crate::uplink::routed;
use anyhow::Result;
use datapath_abi::{NodeConfig, dsr, identity};
use datapath_object::FROM_OVERLAY;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use test_kit::{NetNs, try_wait_until};

fn by_tunnel() -> NodeConfig {
    NodeConfig {
        dsr_dispatch: dsr::dispatch::GENEVE,
        tunnel: 1,
        tunnel_ifindex: IFINDEX,
        tunnel_mac: tunnel_config().tunnel_mac,
        host_mac: tunnel_config().host_mac,
        ..direct()
    }
}

/// Scenario 37 at the node of the request: the packet leaves as "world" with the option, also the first one of a TCP
/// connection.
#[test]
fn a_request_leaves_by_the_tunnel_with_the_frontend_in_its_option() -> Result<()> {
    test_kit::require_root!();
    let (host, client) = (NetNs::detached()?, NetNs::detached()?);
    host.veth("in0", &client, "eth0")?;
    host.ip_batch(
        "link add tun0 type veth peer name tun1
         link set tun0 arp off up
         link set tun1 arp off up
         addr add 198.51.100.1/24 dev in0
         addr add 2001:db8:ffff::1/64 dev in0 nodad",
    )?;
    client.ip_batch(
        "addr add 198.51.100.9/24 dev eth0
         addr add 2001:db8:ffff::9/64 dev eth0 nodad
         route add default via 198.51.100.1
         route add default via 2001:db8:ffff::1",
    )?;
    let tunnel_ifindex = host.run(|| ifindex("tun0"))?;
    for family in FAMILIES {
        for protocol in [UDP, TCP] {
            let config = NodeConfig { tunnel_ifindex, ..by_tunnel() };
            let mut node = Node::frontend(&config, family, protocol, &[family.remote()])?;
            node.datapath
                .set_ipcache(family.remote().ip(), &behind(REMOTE_IDENTITY, family.other_node(), 0))?;
            let mut peer = Peer::new()?;
            host.run(|| -> Result<()> {
                node.datapath.attach(
                    datapath_object::FROM_NETDEV,
                    "in0",
                    aya::programs::TcAttachType::Ingress,
                )?;
                peer.watch("tun0")
            })?;
            let ask = || {
                let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
                client.run(|| match protocol {
                    UDP => {
                        let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"x", family.vip()));
                    }
                    // Only its first packet matters, which the watch drops.
                    _ => drop(TcpStream::connect_timeout(&family.vip(), Duration::from_millis(20))),
                });
            };
            let mut state = None;
            try_wait_until(Duration::from_secs(10), || {
                ask();
                state = peer.left().map_err(|error| error.to_string())?;
                state.as_ref().map(|_| ()).ok_or_else(|| "nothing left".to_owned())
            })
            .map_err(anyhow::Error::msg)?;
            assert_eq!(state, Some((identity::WORLD, family.tunnel_option(family.vip()))), "{family:?}");
        }
    }
    Ok(())
}

/// Scenario 37 at the backend's node.
#[test]
fn the_option_of_the_tunnel_names_the_frontend_to_the_backends_node() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        for protocol in [TCP, UDP] {
            let mut peer = Peer::new()?;
            let (backend, client) = (family.remote(), family.remote_client());
            let mut node = BackendNode::new(&by_tunnel(), family, protocol)?;
            let request = frame(TUNNEL_MAC, ROUTER_MAC, &segment(client, backend, protocol, SYN));
            let answer = segment(backend, client, protocol, SYN | ACK);
            let arrives = |peer: &Peer, node: &BackendNode| {
                peer.run(&node.datapath, FROM_OVERLAY, (identity::WORLD, 0), &request)
            };
            // The twin: without the option the connection is by the backend's own address.
            assert_eq!(arrives(&peer, &node)?.verdict, REDIRECT);
            assert_eq!(node.frontends()?, []);
            peer.set_options(&family.tunnel_option(family.vip()))?;
            let outcome = arrives(&peer, &node)?;
            let seen = seen_at(&outcome);
            assert_eq!((outcome.verdict, seen.source, seen.destination), (REDIRECT, client, backend));
            assert_eq!(node.frontends()?, [family.vip()]);
            let seen = seen_at(&node.sends(&ns, &answer)?);
            assert_eq!((seen.source, seen.destination, seen.checksums), (family.vip(), client, true));
            // Another class is of another's.
            let mut other = family.tunnel_option(SocketAddr::new(family.vip().ip(), 1));
            other[1] += 1;
            peer.set_options(&other)?;
            arrives(&peer, &node)?;
            let expected = if protocol == TCP { vec![] } else { vec![family.vip()] };
            assert_eq!(node.frontends()?, expected);
        }
    }
    Ok(())
}

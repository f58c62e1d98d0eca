//! Services at devices of a node: addresses and configurations, and the entry of XDP with routes back to clients.

use crate::kit::*;
use crate::l4::*;
use crate::service::*;
use crate::uplink::{UPLINK, routed};
use anyhow::Result;
use datapath_abi::{DIRECT_ROUTING, MasqueradeAddresses, NodeConfig, dsr, ipv4_word, ipv6_words, lb_flag};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use test_kit::NetNs;

pub(crate) const BACKEND_PORT: u16 = 8080;
/// MAC addresses of a device of the node and of its router.
pub(crate) const DEVICE: [u8; 6] = [2, 0, 0, 0, 0, 0xd1];
pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd2];
pub(crate) const NODE_PORT: u8 = lb_flag::NODE_PORT | lb_flag::ROUTABLE;
pub(crate) const MIN_PORT: u16 = 32768;
pub(crate) const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Verdicts (linux/bpf.h, `enum xdp_action`).
pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_TX: u32 = 3;
pub(crate) const XDP_REDIRECT: u32 = 4;

/// The next hop of the routes.
pub(crate) const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// The device of the routes.
pub(crate) const UPLINK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x40];

/// The devices that add outer headers; test runs do not send.
pub(crate) const IPIP_DEVICES: [u32; 2] = [71, 72];

pub(crate) fn native() -> NodeConfig {
    NodeConfig { nodeport: 1, snat_min_port: MIN_PORT, host_routing: 0, sctp: 1, ..default_config() }
}

pub(crate) fn tunnel() -> NodeConfig {
    // The device that packets of the tunnel come by is that of test runs.
    NodeConfig { nodeport: 1, snat_min_port: MIN_PORT, sctp: 1, tunnel_ifindex: IFINDEX, ..tunnel_config() }
}

pub(crate) fn by_ipip() -> NodeConfig {
    NodeConfig {
        dsr: dsr::ALL,
        dsr_dispatch: dsr::dispatch::IPIP,
        ipip_ifindex_ipv4: IPIP_DEVICES[0],
        ipip_ifindex_ipv6: IPIP_DEVICES[1],
        ..native()
    }
}

impl Family {
    pub(crate) fn host(self, port: u16) -> SocketAddr {
        let ip = if self == Family::V4 { IpAddr::from(HOST_V4) } else { HOST_V6.into() };
        SocketAddr::new(ip, port)
    }

    pub(crate) fn remote(self) -> SocketAddr {
        SocketAddr::new(if self == Family::V4 { REMOTE[0] } else { REMOTE[1] }, BACKEND_PORT)
    }

    pub(crate) fn router(self, port: u16) -> SocketAddr {
        let ip = if self == Family::V4 { IpAddr::from(ROUTER_V4) } else { ROUTER.into() };
        SocketAddr::new(ip, port)
    }

    pub(crate) fn other_node(self) -> IpAddr {
        if self == Family::V4 { [192, 0, 2, 7].into() } else { "2001:db8::7".parse().unwrap() }
    }

    /// Bytes by which the option makes the header longer.
    pub(crate) fn option_len(self) -> usize {
        if self == Self::V4 { 8 } else { 24 }
    }

    /// The option that names a frontend; that of IPv6 is in a header of its own before one of this protocol.
    pub(crate) fn option(self, frontend: SocketAddr, protocol: u8) -> Vec<u8> {
        let port = frontend.port();
        match frontend.ip() {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                [&[0x9a, 8][..], &port.to_le_bytes(), &[d, c, b, a]].concat()
            }
            IpAddr::V6(ip) => {
                [&[protocol, 2, 0x1b, 20][..], &ip.octets(), &port.to_be_bytes(), &[0, 0]].concat()
            }
        }
    }

    /// The option of the tunnel.
    pub(crate) fn tunnel_option(self, frontend: SocketAddr) -> Vec<u8> {
        let (len, address) = match frontend.ip() {
            IpAddr::V4(ip) => (2, ip.octets().to_vec()),
            IpAddr::V6(ip) => (5, ip.octets().to_vec()),
        };
        [&[0x01, 0x4b, 0x81, len][..], &address, &frontend.port().to_be_bytes(), &[0, 0]].concat()
    }

    /// The protocol of outer headers, and their length.
    pub(crate) fn outer(self) -> (u8, usize) {
        if self == Family::V4 { (4, 20) } else { (41, 40) }
    }
}

/// A node with a frontend and routes back to where clients are.
pub(crate) struct Entry {
    pub(crate) node: Node,
    pub(crate) ns: NetNs,
    pub(crate) family: Family,
    pub(crate) protocol: u8,
}

impl Entry {
    pub(crate) fn new(
        config: &NodeConfig,
        family: Family,
        protocol: u8,
        backends: &[SocketAddr],
    ) -> Result<Self> {
        let ns = routed()?;
        ns.ip_batch(&format!(
            "link set out0 address {}
             neigh replace 203.0.113.9 lladdr {mac} dev out0 nud permanent
             neigh replace 2001:db8:1::9 lladdr {mac} dev out0 nud permanent",
            text(UPLINK_MAC),
            mac = text(GATEWAY_MAC),
        ))?;
        let mut datapath = ns.run(|| Datapath::load_xdp(config, "out0"))?;
        for ip in [IpAddr::from(HOST_V4), HOST_V6.into()] {
            datapath.add_host(ip)?;
        }
        let row = MasqueradeAddresses {
            ipv4: ipv4_word(HOST_V4),
            ipv6: ipv6_words(HOST_V6),
            ..MasqueradeAddresses::default()
        };
        datapath.put::<4, 64>("ep_masquerade", &DIRECT_ROUTING, &row)?;
        let mut node = Node::on(datapath, family, protocol, backends)?;
        node.set_flags(NODE_PORT, 0)?;
        Ok(Self { node, ns, family, protocol })
    }

    pub(crate) fn remote(config: &NodeConfig, family: Family, protocol: u8) -> Result<Self> {
        Self::new(config, family, protocol, &[family.remote()])
    }

    pub(crate) fn arrive(&self, packet: &[u8]) -> Result<Outcome> {
        self.ns.run(|| self.node.datapath.run_xdp(UPLINK, &frame(DEVICE, ROUTER_MAC, packet)))
    }

    pub(crate) fn client(&self) -> SocketAddr {
        SocketAddr::new(self.family.outside(), 50000)
    }

    pub(crate) fn request(&self, flags: u8) -> Vec<u8> {
        segment(self.client(), self.family.vip(), self.protocol, flags)
    }

    /// The packet is left as it is, without metadata.
    pub(crate) fn leaves(&self, packet: &[u8]) -> Result<()> {
        let outcome = self.arrive(packet)?;
        anyhow::ensure!((outcome.verdict, outcome.mark) == (XDP_PASS, 0), "{outcome:?}");
        anyhow::ensure!(outcome.packet[14..] == *packet, "{outcome:?}");
        Ok(())
    }

    /// The packet leaves by the device; what the next hop gets.
    pub(crate) fn sends_back(&self, packet: &[u8]) -> Result<Outcome> {
        let outcome = self.arrive(packet)?;
        anyhow::ensure!(outcome.verdict == XDP_TX, "{:?}: {outcome:?}", self.family);
        anyhow::ensure!(outcome.packet[..12] == [GATEWAY_MAC, UPLINK_MAC].concat(), "{outcome:?}");
        let hops = outcome.packet[if self.family == Family::V4 { 22 } else { 21 }];
        anyhow::ensure!(hops == 63, "{outcome:?}");
        Ok(outcome)
    }
}

pub(crate) fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

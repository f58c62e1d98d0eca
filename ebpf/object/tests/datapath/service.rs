//! A service of one family, asked by pod A, its rows as the agent writes them.

use crate::kit::*;
use crate::l4::*;
use crate::packet::checksum;
use anyhow::{Context as _, Result};
use datapath_abi::{
    LbAffinityMatch, LbBackend, LbReverseNat, LbService, LbServiceKey, LbSourceRange, NodeConfig,
    Pod as Plain, SkipLb4Key, SkipLb6Key, ipv4_word, ipv6_words, lb_flag, lb_flag2, lb_scope,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const SERVICE_PORT: u16 = 80;
const CLIENT_PORT: u16 = 40000;
const VIP_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, 0x10);
const SERVICE_ID: u16 = 0x0102;
/// Ids of backends, by their order.
const FIRST_BACKEND: u32 = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    fn of(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self {
            Self::V4 => v4.into(),
            Self::V6 => v6.into(),
        }
    }

    pub(crate) fn client(self) -> SocketAddr {
        SocketAddr::new(self.of(A.ipv4, A.ipv6), CLIENT_PORT)
    }

    pub(crate) fn vip(self) -> SocketAddr {
        SocketAddr::new(self.of(VIP_V4, VIP_V6), SERVICE_PORT)
    }

    /// A port of pod B.
    pub(crate) fn b(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.of(B.ipv4, B.ipv6), port)
    }

    pub(crate) fn loopback(self) -> IpAddr {
        self.of(SERVICE_LOOPBACK_V4, SERVICE_LOOPBACK_V6)
    }

    pub(crate) fn outside(self) -> IpAddr {
        self.of(OUTSIDE_V4, OUTSIDE_V6)
    }

    pub(crate) fn icmp(self) -> u8 {
        if self == Self::V4 { ICMP } else { ICMPV6 }
    }

    /// Type and code.
    pub(crate) fn port_unreachable(self) -> [u8; 2] {
        if self == Self::V4 { [3, 3] } else { [1, 4] }
    }

    /// The client's packet to the service.
    pub(crate) fn packet(self, protocol: u8, flags: u8) -> Vec<u8> {
        frame(A.node_mac, A.mac, &segment(self.client(), self.vip(), protocol, flags))
    }

    /// An ICMP message from one address to another, with its checksum.
    pub(crate) fn icmp_packet(self, source: IpAddr, destination: IpAddr, mut message: Vec<u8>) -> Vec<u8> {
        let sum = match (source, destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                crate::packet::icmpv6_checksum(source, destination, &message)
            }
            _ => checksum(&message),
        };
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        ip(source, destination, self.icmp(), &message)
    }

    pub(crate) fn echo(self) -> Vec<u8> {
        let kind = if self == Self::V4 { 8 } else { 128 };
        self.icmp_packet(self.client().ip(), self.vip().ip(), vec![kind, 0, 0, 0, 0, 9, 0, 1])
    }

    /// Says, from where it went to, that nobody listens to a packet.
    pub(crate) fn error_about(self, packet: &[u8]) -> Vec<u8> {
        let seen = seen_packet(packet);
        let message = [&self.port_unreachable()[..], &[0; 6], packet].concat();
        self.icmp_packet(seen.destination.ip(), seen.source.ip(), message)
    }

    fn name(self, v4: &'static str, v6: &'static str) -> &'static str {
        if self == Self::V4 { v4 } else { v6 }
    }
}

/// Both ends of the packet that an ICMP error in a frame speaks of.
pub(crate) fn quoted(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let packet = &frame[l4_offset(frame) + 8..];
    let (source, destination) = addresses(packet);
    let ports = &packet[if packet[0] >> 4 == 4 { 20 } else { 40 }..];
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)))
}

/// The outcome of a packet.
pub(crate) fn seen_at(outcome: &Outcome) -> Seen {
    seen(&outcome.packet)
}

/// A node with both pods and the service.
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    family: Family,
    protocol: u8,
    backends: Vec<SocketAddr>,
    next_backend: u32,
    /// Backend ids by slot.
    slots: Vec<u32>,
    is_at_vip: bool,
}

impl Node {
    pub(crate) fn new(family: Family, protocol: u8, backends: &[SocketAddr]) -> Result<Self> {
        Self::with(&default_config(), family, protocol, backends)
    }

    pub(crate) fn with(
        config: &NodeConfig,
        family: Family,
        protocol: u8,
        backends: &[SocketAddr],
    ) -> Result<Self> {
        Self::on(Datapath::with_pods(config)?, family, protocol, backends)
    }

    /// Adds the service to a datapath with both pods.
    pub(crate) fn on(
        datapath: Datapath,
        family: Family,
        protocol: u8,
        backends: &[SocketAddr],
    ) -> Result<Self> {
        let mut node = Self {
            datapath,
            family,
            protocol,
            backends: Vec::new(),
            next_backend: FIRST_BACKEND,
            slots: Vec::new(),
            is_at_vip: true,
        };
        node.set_backends(backends)?;
        let port = SERVICE_PORT.to_be();
        let id = SERVICE_ID.to_be();
        match family.vip().ip() {
            IpAddr::V4(ip) => {
                let row = LbReverseNat { address: ipv4_word(ip), port };
                node.datapath.put::<2, 6>("cilium_lb4_reverse_nat", &id, &row)?;
            }
            IpAddr::V6(ip) => {
                let row = LbReverseNat { address: ipv6_words(ip), port };
                node.datapath.put::<2, 18>("cilium_lb6_reverse_nat", &id, &row)?;
            }
        }
        Ok(node)
    }

    /// The client's packet, at pod A.
    pub(crate) fn send(&self, flags: u8) -> Result<Outcome> {
        self.datapath.sends(&self.family.packet(self.protocol, flags))
    }

    /// A packet of pod B, into pod A.
    pub(crate) fn answer(&self, from: SocketAddr, to: SocketAddr, flags: u8) -> Result<Outcome> {
        self.receive(&segment(from, to, self.protocol, flags))
    }

    /// A packet of pod B, into pod A.
    pub(crate) fn receive(&self, packet: &[u8]) -> Result<Outcome> {
        self.datapath.receives(B.identity, &frame(A.mac, A.node_mac, packet))
    }

    /// New backends in place of all before, whose rows stay.
    pub(crate) fn set_backends(&mut self, backends: &[SocketAddr]) -> Result<()> {
        self.slots.clear();
        self.backends.extend(backends);
        for backend in backends {
            let id = self.next_backend;
            self.next_backend += 1;
            self.slots.push(id);
            self.set_backend(id, *backend, 0)?;
        }
        self.write(lb_scope::EXTERNAL, Plain::zeroed())
    }

    /// Another state of the backend that came `index`-th.
    pub(crate) fn set_state(&mut self, index: usize, state: u8) -> Result<()> {
        let backend = self.backends[index];
        self.set_backend(FIRST_BACKEND + index as u32, backend, state)
    }

    fn set_backend(&mut self, id: u32, backend: SocketAddr, state: u8) -> Result<()> {
        let (port, proto) = (backend.port().to_be(), self.protocol);
        match backend.ip() {
            IpAddr::V4(ip) => {
                let row = LbBackend { address: ipv4_word(ip), port, proto, state, ..Plain::zeroed() };
                self.datapath.put::<4, 12>("cilium_lb4_backends_v3", &id, &row)
            }
            IpAddr::V6(ip) => {
                let row = LbBackend { address: ipv6_words(ip), port, proto, state, ..Plain::zeroed() };
                self.datapath.put::<4, 24>("cilium_lb6_backends_v3", &id, &row)
            }
        }
    }

    /// Takes away the row of the backend that came `index`-th.
    pub(crate) fn remove_backend(&mut self, index: usize) -> Result<()> {
        let id = FIRST_BACKEND + index as u32;
        match self.family {
            Family::V4 => self.datapath.remove::<4, 12>("cilium_lb4_backends_v3", &id),
            Family::V6 => self.datapath.remove::<4, 24>("cilium_lb6_backends_v3", &id),
        }
    }

    /// Takes away the row of the service.
    pub(crate) fn remove_frontend(&mut self) -> Result<()> {
        match self.family.vip().ip() {
            IpAddr::V4(ip) => {
                let key = self.key(ipv4_word(ip), 0, lb_scope::EXTERNAL);
                self.datapath.remove::<12, 12>("cilium_lb4_services_v2", &key)
            }
            IpAddr::V6(ip) => {
                let key = self.key(ipv6_words(ip), 0, lb_scope::EXTERNAL);
                self.datapath.remove::<24, 12>("cilium_lb6_services_v2", &key)
            }
        }
    }

    /// Other backends for traffic inside of the cluster.
    pub(crate) fn add_scope(&mut self, backends: &[SocketAddr]) -> Result<()> {
        self.write(lb_scope::EXTERNAL, LbService { flags2: lb_flag2::TWO_SCOPES, ..Plain::zeroed() })?;
        let outside = std::mem::take(&mut self.slots);
        for backend in backends {
            let id = self.next_backend;
            self.next_backend += 1;
            self.slots.push(id);
            self.set_backend(id, *backend, 0)?;
        }
        let flags2 = lb_flag2::TWO_SCOPES;
        self.write(lb_scope::INTERNAL, LbService { flags2, ..Plain::zeroed() })?;
        self.slots = outside;
        Ok(())
    }

    /// Clients stay with their backend for some seconds.
    pub(crate) fn set_affinity(&mut self, seconds: u32) -> Result<()> {
        for backend_id in self.slots.clone() {
            let key = LbAffinityMatch { backend_id, rev_nat_id: SERVICE_ID.to_be(), pad: 0 };
            self.datapath.put::<8, 1>("cilium_lb_affinity_match", &key, &0u8)?;
        }
        let flags = lb_flag::SESSION_AFFINITY;
        self.write(lb_scope::EXTERNAL, LbService { backend_id: seconds, flags, ..Plain::zeroed() })
    }

    /// Clients do not stay with this backend.
    pub(crate) fn refuse_affinity(&mut self, backend: SocketAddr) -> Result<()> {
        let index = self.backends.iter().position(|it| *it == backend).context("no such backend")?;
        let backend_id = FIRST_BACKEND + index as u32;
        let key = LbAffinityMatch { backend_id, rev_nat_id: SERVICE_ID.to_be(), pad: 0 };
        self.datapath.remove::<8, 1>("cilium_lb_affinity_match", &key)
    }

    /// The frontend's row with these flags.
    pub(crate) fn set_flags(&mut self, flags: u8, flags2: u8) -> Result<()> {
        self.write(lb_scope::EXTERNAL, LbService { flags, flags2, ..Plain::zeroed() })
    }

    /// The frontend's row of a proxy that has the service's packets.
    pub(crate) fn set_proxy(&mut self, flags: u8, port: u16) -> Result<()> {
        let (backend_id, flags2) = (port.to_be().into(), lb_flag2::L7_LOAD_BALANCER);
        self.write(lb_scope::EXTERNAL, LbService { backend_id, flags, flags2, ..Plain::zeroed() })
    }

    /// The frontend's row with these flags and this first word: an affinity timeout and an algorithm.
    pub(crate) fn set_first_word(&mut self, flags: u8, backend_id: u32) -> Result<()> {
        self.write(lb_scope::EXTERNAL, LbService { backend_id, flags, ..Plain::zeroed() })
    }

    /// A Maglev table with the backends that came `order`-th, again and again.
    pub(crate) fn set_table(&mut self, order: impl Fn(usize) -> usize) -> Result<()> {
        let map = self.family.name("cilium_lb4_maglev", "cilium_lb6_maglev");
        let ids = std::array::from_fn(|position| FIRST_BACKEND + order(position) as u32);
        self.datapath.put_maglev(map, SERVICE_ID.to_be(), ids)
    }

    /// The address has nothing but services.
    pub(crate) fn reserve_address(&mut self) -> Result<()> {
        let row = LbService { flags: lb_flag::LOAD_BALANCER, ..Plain::zeroed() };
        match self.family.vip().ip() {
            IpAddr::V4(ip) => {
                let key = LbServiceKey { address: ipv4_word(ip), ..Plain::zeroed() };
                self.datapath.put::<12, 12>("cilium_lb4_services_v2", &key, &row)
            }
            IpAddr::V6(ip) => {
                let key = LbServiceKey { address: ipv6_words(ip), ..Plain::zeroed() };
                self.datapath.put::<24, 12>("cilium_lb6_services_v2", &key, &row)
            }
        }
    }

    /// Pods of a namespace reach a frontend without redirection.
    pub(crate) fn skip(&mut self, netns_cookie: u64, frontend: SocketAddr) -> Result<()> {
        let port = frontend.port().to_be();
        match frontend.ip() {
            IpAddr::V4(ip) => {
                let key = SkipLb4Key { netns_cookie, address: ipv4_word(ip), port, pad: 0 };
                self.datapath.put::<16, 1>("cilium_skip_lb4", &key, &0u8)
            }
            IpAddr::V6(ip) => {
                let key = SkipLb6Key { netns_cookie, address: ipv6_words(ip), pad: 0, port, pad2: 0 };
                self.datapath.put::<32, 1>("cilium_skip_lb6", &key, &0u8)
            }
        }
    }

    /// Clients in this range are listed.
    pub(crate) fn list_clients(&mut self, range: IpAddr, bits: u8) -> Result<()> {
        let (prefixlen, rev_nat_id) = (32 + u32::from(bits), SERVICE_ID.to_be());
        match range {
            IpAddr::V4(ip) => {
                let key = LbSourceRange { prefixlen, rev_nat_id, pad: 0, address: ipv4_word(ip) };
                self.datapath.put_prefix::<8>("cilium_lb4_source_range", prefixlen, &key)
            }
            IpAddr::V6(ip) => {
                let key = LbSourceRange { prefixlen, rev_nat_id, pad: 0, address: ipv6_words(ip) };
                self.datapath.put_prefix::<20>("cilium_lb6_source_range", prefixlen, &key)
            }
        }
    }

    /// Rows of connections of every kind.
    pub(crate) fn connections(&mut self) -> Result<usize> {
        let (tcp, any) = match self.family {
            Family::V4 => (
                self.datapath.rows::<14, 56>("cilium_ct4_global")?.len(),
                self.datapath.rows::<14, 56>("cilium_ct_any4_global")?.len(),
            ),
            Family::V6 => (
                self.datapath.rows::<38, 56>("cilium_ct6_global")?.len(),
                self.datapath.rows::<38, 56>("cilium_ct_any6_global")?.len(),
            ),
        };
        Ok(tcp + any)
    }

    fn key<A>(&self, address: A, backend_slot: u16, scope: u8) -> LbServiceKey<A> {
        let (dport, proto) = (SERVICE_PORT.to_be(), self.protocol);
        LbServiceKey { address, dport, backend_slot, proto, scope, pad: [0; 2] }
    }

    /// In place of the service's address its port at any address, with these flags.
    pub(crate) fn at_any_address(&mut self, flags: u8, flags2: u8) -> Result<()> {
        if self.is_at_vip {
            self.remove_frontend()?;
            self.is_at_vip = false;
        }
        let (id, port) = (SERVICE_ID.to_be(), SERVICE_PORT.to_be());
        match self.family {
            Family::V4 => {
                let row = LbReverseNat { address: 0u32, port };
                self.datapath.put::<2, 6>("cilium_lb4_reverse_nat", &id, &row)?;
            }
            Family::V6 => {
                let row = LbReverseNat { address: [0u32; 4], port };
                self.datapath.put::<2, 18>("cilium_lb6_reverse_nat", &id, &row)?;
            }
        }
        self.write(lb_scope::EXTERNAL, LbService { flags, flags2, ..Plain::zeroed() })
    }

    /// Writes a frontend and its slots.
    fn write(&mut self, scope: u8, frontend: LbService) -> Result<()> {
        let any = self.family.of(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        let address = if self.is_at_vip { self.family.vip().ip() } else { any };
        let rev_nat_index = SERVICE_ID.to_be();
        let frontend = LbService { count: self.slots.len() as u16, rev_nat_index, ..frontend };
        let slots =
            self.slots.iter().map(|id| LbService { backend_id: *id, rev_nat_index, ..Plain::zeroed() });
        let rows: Vec<LbService> = std::iter::once(frontend).chain(slots).collect();
        let map = self.family.name("cilium_lb4_services_v2", "cilium_lb6_services_v2");
        for (slot, row) in rows.iter().enumerate() {
            match address {
                IpAddr::V4(ip) => {
                    let key = self.key(ipv4_word(ip), slot as u16, scope);
                    self.datapath.put::<12, 12>(map, &key, row)?;
                }
                IpAddr::V6(ip) => {
                    let key = self.key(ipv6_words(ip), slot as u16, scope);
                    self.datapath.put::<24, 12>(map, &key, row)?;
                }
            }
        }
        Ok(())
    }
}

/// The same packet with `longer` bytes of options that do nothing: IPv4 options, or an IPv6 hop-by-hop header.
pub(crate) fn with_longer_header(packet: &[u8], longer: usize) -> Vec<u8> {
    let mut out = packet.to_vec();
    if packet[0] >> 4 == 4 {
        const NOTHING: u8 = 1;
        out[0] += (longer / 4) as u8;
        out.splice(20..20, vec![NOTHING; longer]);
        set_ipv4_length(&mut out);
    } else {
        const PADDING: u8 = 1;
        let mut header = vec![packet[6], (longer / 8 - 1) as u8, PADDING, (longer - 4) as u8];
        header.resize(longer, 0);
        out[6] = 0;
        out.splice(40..40, header);
        let len = (out.len() - 40) as u16;
        out[4..6].copy_from_slice(&len.to_be_bytes());
    }
    out
}

/// Takes them out again; an IPv4 header's checksum has to be right.
pub(crate) fn without_longer_header(packet: &[u8], longer: usize) -> Vec<u8> {
    let mut out = packet.to_vec();
    if packet[0] >> 4 == 4 {
        assert_eq!(checksum(&packet[..20 + longer]), 0, "IPv4 header");
        out.drain(20..20 + longer);
        out[0] -= (longer / 4) as u8;
        set_ipv4_length(&mut out);
    } else {
        out[6] = packet[40];
        out.drain(40..40 + longer);
        let len = (out.len() - 40) as u16;
        out[4..6].copy_from_slice(&len.to_be_bytes());
    }
    out
}

fn set_ipv4_length(packet: &mut [u8]) {
    let (len, header) = (packet.len() as u16, usize::from(packet[0] & 0xf) * 4);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

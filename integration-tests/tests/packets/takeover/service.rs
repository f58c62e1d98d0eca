//! A service of Cilium: its rows in the load balancer and connection tracking maps, and in small what its programs
//! do with the packets. IPv4, one backend.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use bpf::{Map, Program, RawMap};
use datapath_abi::{
    CtEntry, CtTuple4, LbBackend4, LbReverseNat4, LbService, LbServiceKey4, ct_flag, tuple_flag,
};
use integration_tests::Node;
use integration_tests::cast::{self, Flows, LONG, SERVICE, SHORT};

use super::cilium_node::OldPod;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The base of the backends' ports.
const ABOVE: u16 = 8000;
/// Ports and protocols of the service. Numbers of frontends and of their backends follow the order, from 1.
const FRONTENDS: [(u16, u8); 4] = [(SHORT, TCP), (SHORT, UDP), (LONG, TCP), (LONG, UDP)];

fn number(port: u16, protocol: u8) -> u16 {
    1 + FRONTENDS.iter().position(|frontend| *frontend == (port, protocol)).unwrap() as u16
}

fn word(ip: IpAddr) -> u32 {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is not IPv4") };
    u32::from_ne_bytes(ip.octets())
}

fn address() -> u32 {
    word(IpAddr::V4(SERVICE[0].parse::<Ipv4Addr>().unwrap()))
}

fn open<K: bpf::Pod, V: bpf::Pod>(node: &Node, name: &str) -> Map<K, V> {
    Map::new(RawMap::open(&node.pin(name)).unwrap()).unwrap()
}

fn key(port: u16, proto: u8, backend_slot: u16) -> LbServiceKey4 {
    LbServiceKey4 { address: address(), dport: port.to_be(), backend_slot, proto, ..LbServiceKey4::default() }
}

/// The rows of a service with one backend.
pub(crate) fn write(node: &Node, server: &OldPod) {
    let services: Map<LbServiceKey4, LbService> = open(node, "cilium_lb4_services_v2");
    let backends: Map<u32, LbBackend4> = open(node, "cilium_lb4_backends_v3");
    let names: Map<u16, LbReverseNat4> = open(node, "cilium_lb4_reverse_nat");
    for (port, proto) in FRONTENDS {
        let id = number(port, proto);
        let backend = LbBackend4 {
            address: word(server.ips[0]),
            port: (port + ABOVE).to_be(),
            proto,
            ..LbBackend4::default()
        };
        backends.update(&u32::from(id), &backend).unwrap();
        names.update(&id.to_be(), &LbReverseNat4 { address: address(), port: port.to_be() }).unwrap();
        let row = LbService { rev_nat_index: id.to_be(), ..LbService::default() };
        services.update(&key(port, proto, 1), &LbService { backend_id: id.into(), ..row }).unwrap();
        services.update(&key(port, proto, 0), &LbService { count: 1, ..row }).unwrap();
    }
}

/// Number, count of backends and backend of each frontend, as the maps have them.
pub(crate) fn numbers(node: &Node) -> Vec<(u16, u16, u32)> {
    let services: Map<LbServiceKey4, LbService> = open(node, "cilium_lb4_services_v2");
    let row = |port, proto, slot| services.lookup(&key(port, proto, slot)).unwrap().unwrap_or_default();
    let of = |(port, proto)| {
        let frontend = row(port, proto, 0);
        (u16::from_be(frontend.rev_nat_index), frontend.count, row(port, proto, 1).backend_id)
    };
    FRONTENDS.map(of).into()
}

/// Flows from a client through the service, with connections as Cilium tracks them.
pub(crate) fn flows(node: &Node, client: &OldPod, server: &OldPod) -> Flows {
    let flows = cast::flows_through_service(&client.ns, &server.ns, &server.ips[..1], LONG);
    let sockets = client.ns.exec(&format!("ss -Htun state connected dst {}", SERVICE[0])).unwrap();
    let mut tracked = 0;
    for line in sockets.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let local = words.iter().find(|word| word.starts_with(&client.ips[0].to_string())).expect(line);
        let port = local.rsplit(':').next().unwrap().parse().unwrap();
        track(node, client, server, if words[0] == "tcp" { TCP } else { UDP }, port);
        tracked += 1;
    }
    assert_eq!(tracked, 2, "{sockets}");
    flows
}

/// The rows of one connection: to the service, out of the client, into the server.
fn track(node: &Node, client: &OldPod, server: &OldPod, nexthdr: u8, sport: u16) {
    let name = if nexthdr == TCP { "cilium_ct4_global" } else { "cilium_ct_any4_global" };
    let rows: Map<CtTuple4, CtEntry> = open(node, name);
    let id = number(LONG, nexthdr);
    let (from, to) = (word(client.ips[0]), word(server.ips[0]));
    let entry = CtEntry {
        // Beyond the end of the test.
        lifetime: u32::MAX,
        flags: ct_flag::SEEN_NON_SYN,
        tx_flags_seen: 0x12,
        rx_flags_seen: 0x12,
        src_sec_id: client.identity,
        ..CtEntry::default()
    };
    let translated = CtEntry { rev_nat_index: id.to_be(), ..entry };
    let to_service = CtTuple4 {
        daddr: address(),
        saddr: from,
        dport: sport.to_be(),
        sport: LONG.to_be(),
        nexthdr,
        flags: tuple_flag::SERVICE,
    };
    rows.update(&to_service, &CtEntry { backend_id: id.into(), src_sec_id: 0, ..translated }).unwrap();
    let own = CtTuple4 {
        daddr: from,
        saddr: to,
        dport: (LONG + ABOVE).to_be(),
        sport: sport.to_be(),
        nexthdr,
        flags: tuple_flag::OUT,
    };
    rows.update(&own, &translated).unwrap();
    rows.update(&CtTuple4 { flags: tuple_flag::IN, ..own }, &entry).unwrap();
}

// Offsets in packets of IPv4 without options, and of the words that the programs keep on their stack.
const PROTOCOL: i32 = 23;
const HEADER_CHECKSUM: i32 = 24;
const SOURCE: (i32, i32) = (26, 34);
const DESTINATION: (i32, i32) = (30, 36);
const ADDRESS: i16 = -12;
const PORT: i16 = -8;
const SLOT: i16 = -6;
const PROTO: i16 = -4;
const ID: i16 = -16;
const NEW_ADDRESS: i16 = -20;
const NEW_PORT: i16 = -24;

/// Sends packets of a pod to an interface; those to a service with its backend as their destination.
pub(crate) fn to_backend(node: &Node, interface: u32) -> Program {
    let services = RawMap::open(&node.pin("cilium_lb4_services_v2")).unwrap();
    let backends = RawMap::open(&node.pin("cilium_lb4_backends_v3")).unwrap();
    let mut code = Code::of_ipv4(DESTINATION);
    code.op(0x6a, 10, 0, SLOT, 0).lookup(&services, ADDRESS);
    code.op(0x6a, 10, 0, SLOT, 1).lookup(&services, ADDRESS);
    code.op(0x61, 1, 0, 0, 0).op(0x63, 10, 1, ID, 0).lookup(&backends, ID);
    code.rewrite(DESTINATION).redirect(interface)
}

/// The same for packets that come from a backend of the service: they get the service's address and port.
pub(crate) fn from_backend(node: &Node, interface: u32) -> Program {
    let names = RawMap::open(&node.pin("cilium_lb4_reverse_nat")).unwrap();
    let mut code = Code::of_ipv4(SOURCE);
    let id = |protocol| i32::from(number(LONG, protocol).to_be());
    code.op(0x69, 2, 10, PORT, 0).leave_unless(0x15, 2, i32::from((LONG + ABOVE).to_be()));
    code.op(0x71, 2, 10, PROTO, 0).op(0xb7, 3, 0, 0, id(TCP)).op(0x15, 2, 0, 1, TCP.into());
    code.op(0xb7, 3, 0, 0, id(UDP)).op(0x6b, 10, 3, ID, 0).lookup(&names, ID);
    code.rewrite(SOURCE).redirect(interface)
}

/// Instructions (`struct bpf_insn`): r6 is the packet, r10 the stack.
struct Code {
    instructions: Vec<u64>,
    /// Jumps to where the packet is redirected as it is.
    leaving: Vec<usize>,
}

impl Code {
    /// Takes address, port and protocol of a packet; others are not IPv4.
    fn of_ipv4((address, port): (i32, i32)) -> Code {
        let mut code = Code { instructions: Vec::new(), leaving: Vec::new() };
        // skb->protocol
        code.op(0xbf, 6, 1, 0, 0).op(0x61, 2, 6, 16, 0).leave_unless(0x15, 2, 0x0800u16.to_be().into());
        code.op(0x62, 10, 0, PROTO, 0);
        code.load(address, ADDRESS, 4).load(port, PORT, 2).load(PROTOCOL, PROTO, 1)
    }

    fn op(&mut self, code: u8, dst: u8, src: u8, offset: i16, value: i32) -> &mut Code {
        let [o0, o1] = offset.to_ne_bytes();
        let [v0, v1, v2, v3] = value.to_ne_bytes();
        self.instructions.push(u64::from_ne_bytes([code, dst | src << 4, o0, o1, v0, v1, v2, v3]));
        self
    }

    /// Goes on if the jump is taken.
    fn leave_unless(&mut self, jump: u8, dst: u8, value: i32) -> &mut Code {
        self.op(jump, dst, 0, 1, value);
        self.leaving.push(self.instructions.len());
        self.op(0x05, 0, 0, 0, 0)
    }

    /// An argument that is a number.
    fn number(&mut self, register: u8, value: i32) -> &mut Code {
        self.op(0xb7, register, 0, 0, value)
    }

    /// An argument that is a place on the stack.
    fn place(&mut self, register: u8, place: i16) -> &mut Code {
        self.op(0xbf, register, 10, 0, 0).op(0x07, register, 0, 0, place.into())
    }

    fn call(&mut self, helper: i32) -> &mut Code {
        self.op(0x85, 0, 0, 0, helper)
    }

    /// `bpf_skb_load_bytes`
    fn load(mut self, at: i32, place: i16, length: i32) -> Code {
        self.op(0xbf, 1, 6, 0, 0).number(2, at).place(3, place).number(4, length).call(26);
        self
    }

    /// `bpf_map_lookup_elem`: the value is in r0.
    fn lookup(&mut self, map: &RawMap, key: i16) -> &mut Code {
        const PSEUDO_MAP_FD: u8 = 1;
        self.op(0x18, 1, PSEUDO_MAP_FD, 0, map.as_fd().as_raw_fd()).op(0, 0, 0, 0, 0);
        self.place(2, key).call(1).leave_unless(0x55, 0, 0)
    }

    /// Puts address and port of the found row into the packet, and its checksums right.
    fn rewrite(&mut self, (address, port): (i32, i32)) -> &mut Code {
        const PSEUDO_HEADER: i32 = 0x10;
        self.op(0x61, 1, 0, 0, 0).op(0x63, 10, 1, NEW_ADDRESS, 0);
        self.op(0x69, 1, 0, 4, 0).op(0x6b, 10, 1, NEW_PORT, 0);
        // r9: where TCP and UDP have their checksum.
        self.op(0x71, 2, 10, PROTO, 0).number(9, 50).op(0x15, 2, 0, 1, TCP.into()).number(9, 40);
        let words = |code: &mut Code, load: u8, old: i16, new: i16| {
            code.op(load, 3, 10, old, 0).op(load, 4, 10, new, 0);
        };
        // bpf_l3_csum_replace, bpf_l4_csum_replace
        self.op(0xbf, 1, 6, 0, 0).number(2, HEADER_CHECKSUM);
        words(self, 0x61, ADDRESS, NEW_ADDRESS);
        self.number(5, 4).call(10).op(0xbf, 1, 6, 0, 0).op(0xbf, 2, 9, 0, 0);
        words(self, 0x61, ADDRESS, NEW_ADDRESS);
        self.number(5, PSEUDO_HEADER | 4).call(11).op(0xbf, 1, 6, 0, 0).op(0xbf, 2, 9, 0, 0);
        words(self, 0x69, PORT, NEW_PORT);
        self.number(5, 2).call(11);
        // bpf_skb_store_bytes
        for (at, place, length) in [(address, NEW_ADDRESS, 4), (port, NEW_PORT, 2)] {
            self.op(0xbf, 1, 6, 0, 0).number(2, at).place(3, place).number(4, length).number(5, 0).call(9);
        }
        self
    }

    /// `bpf_redirect`
    fn redirect(&mut self, interface: u32) -> Program {
        let end = self.instructions.len();
        for at in std::mem::take(&mut self.leaving) {
            let [_, _, _, _, rest @ ..] = self.instructions[at].to_ne_bytes();
            let [o0, o1] = ((end - at - 1) as i16).to_ne_bytes();
            let [v0, v1, v2, v3] = rest;
            self.instructions[at] = u64::from_ne_bytes([0x05, 0, o0, o1, v0, v1, v2, v3]);
        }
        self.number(1, interface as i32).number(2, 0).call(23).op(0x95, 0, 0, 0, 0);
        Program::from_instructions("cil_from_container", &self.instructions).unwrap()
    }
}

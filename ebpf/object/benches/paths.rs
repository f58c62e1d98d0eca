//! Nanoseconds a packet on every path between two pods, beside the prototype's programs in the same run.
//!
//! Both objects are loaded with the same map contents. A small program (ebpf/programs/src/replay.rs) puts the packet's
//! headers back and jumps into the program under test, BPF_PROG_TEST_RUN repeats that inside of the kernel, and the time
//! of the small program alone is subtracted. Rounds of both sides alternate; the best round of each counts. The peer is
//! built from ../shared/prototypes/datapath beside the repository; without that folder there is no ratio.
//! Prints one row a number (name, measured, unit, goal, met, peer), tab separated.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

#[path = "../tests/datapath/kit.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod kit;
#[path = "../tests/datapath/l4.rs"]
mod l4;
#[path = "../tests/datapath/packet.rs"]
#[expect(dead_code, reason = "a part of what the tests need")]
mod packet;

use anyhow::{Context as _, Result, bail, ensure};
use aya::maps::{Array, ArrayOfMaps, HashMap, LpmTrie, Map, MapData, ProgramArray, lpm_trie};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use datapath_abi::{
    EndpointConfig, EndpointInfo, EndpointKey, IpcacheKey, LbBackend, LbReverseNat, LbService, LbServiceKey,
    NodeConfig, Pod as Plain, PolicyEntry, PolicyKey, RemoteEndpointInfo, ep_flag, ipv4_word, ipv6_words,
    mac_word,
};
use datapath_object::{CALLS, FROM_CONTAINER, NODE_CONFIG, PROGRAMS};
use kit::{A, B, Incoming, Pod, REDIRECT, default_config};
use l4::{ACK, SYN, Seen, TCP, frame, seen, segment};
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_kit::Sandbox;

/// The goal: times the prototype's time.
const GOAL: f64 = 1.25;

const VIP_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, 0x10);
const SERVICE_PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const SERVICE_ID: u16 = 7;
const BACKEND_ID: u32 = 70;

/// Rows of an endpoint's policy that no packet here meets.
const OTHER_POLICIES: u32 = 100;

/// Packets of a round and rounds: short rounds, as others share the machine.
const PACKETS: u32 = 5000;
const ROUNDS: usize = 300;
/// The same for connections that are new, each of which makes rows.
const NEW_PACKETS: u32 = 2000;
const NEW_ROUNDS: usize = 60;

const REPLAY: &[u8] = {
    #[repr(align(8))]
    struct Aligned<T: ?Sized>(T);
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../prebuilt/replay.o"));
    &OBJECT.0
};

fn main() -> Result<()> {
    if !test_kit::is_root() {
        return Ok(());
    }
    // Another bpffs than the machine's: maps of the prototype pin themselves.
    let sandbox = Sandbox::new()?;
    // Replies come in at pod B's interface, which has to exist.
    sandbox.host().ip(&format!("link add lxc_b index {} type veth peer name peer_b", B.ifindex))?;
    let ours = Side::ours()?;
    let peer = match peer_object()? {
        Some(object) => Some(Side::peer(&object, &sandbox.bpf_root())?),
        None => None,
    };
    let mut sides = vec![ours];
    sides.extend(peer);
    for path in paths() {
        let nanoseconds = path.measure(&mut sides).with_context(|| path.name.clone())?;
        let name = format!("datapath: {}", path.name);
        match nanoseconds[..] {
            [ours, peer] => {
                let ratio = ours / peer;
                let met = if ratio <= GOAL { "yes" } else { "no" };
                println!("{name}\t{ratio:.2}\tx\t{GOAL}\t{met}\t{ours:.0} ns, prototype {peer:.0} ns");
            }
            [ours] => println!("{name}\t{ours:.0}\tns/packet\t-\t-\tno peer"),
            _ => bail!("{} sides", nanoseconds.len()),
        }
    }
    Ok(())
}

/// The prototype's object, built anew; `None` without its sources.
fn peer_object() -> Result<Option<PathBuf>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let source = repository.join("../shared/prototypes/datapath/ebpf");
    if !source.exists() {
        return Ok(None);
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository.join("target"), PathBuf::from);
    let folder = target.join("bench/datapath-peer");
    let output = Command::new(repository.join("tools/build-ebpf"))
        .arg("--crate")
        .args([&source, &folder])
        .args(["dp", "--features", "shared"])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(Some(folder.join("dp.o")))
}

/// A set of programs with the benchmark's map contents.
struct Side {
    ebpf: Ebpf,
    replay: Ebpf,
    /// Dropping it would empty the array.
    _calls: ProgramArray<MapData>,
    program: ProgramArray<MapData>,
}

impl Side {
    fn ours() -> Result<Self> {
        let mut loader = EbpfLoader::new();
        // The prototype counts packets of connections, which is an option of ours.
        let config = NodeConfig { ct_accounting: 1, ..default_config() };
        loader.override_global(NODE_CONFIG, config.as_bytes(), true);
        let slots = PROGRAMS.iter().filter_map(|program| Some((program.name, program.slot?)));
        let names = PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>();
        Self::load(&mut loader, datapath_object::datapath(), &names, &slots.collect::<Vec<_>>())
    }

    fn peer(object: &Path, pins: &Path) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        // IPv6 on, a random backend, traces on.
        let config = [1u32, 0, 1].map(u32::to_ne_bytes).concat();
        loader.override_global("NODE_CFG", &config[..], true).default_map_pin_directory(pins);
        let slots = [
            ("tail_handle_ipv4", 7),
            ("tail_handle_ipv6", 10),
            ("tail_policy_ipv6", 12),
            ("cil_lxc_policy", 13),
        ];
        let mut names = slots.map(|(name, _)| name).to_vec();
        names.push(FROM_CONTAINER);
        Self::load(&mut loader, &std::fs::read(object)?, &names, &slots)
    }

    fn load(
        loader: &mut EbpfLoader<'_>,
        object: &[u8],
        names: &[&str],
        slots: &[(&str, u32)],
    ) -> Result<Self> {
        loader.verifier_log_level(VerifierLogLevel::DISABLE);
        let mut ebpf = loader.load(object)?;
        let mut calls = ProgramArray::try_from(ebpf.take_map(CALLS).context("no map of calls")?)?;
        for name in names {
            classifier(&mut ebpf, name)?.load().with_context(|| (*name).to_owned())?;
        }
        for &(name, slot) in slots {
            calls.set(slot, classifier(&mut ebpf, name)?.fd()?, 0)?;
        }
        fill(&mut ebpf)?;
        let mut replay = EbpfLoader::new().load(REPLAY)?;
        classifier(&mut replay, "replay")?.load()?;
        let mut program = ProgramArray::try_from(replay.take_map("replay_program").context("no program")?)?;
        program.set(0, classifier(&mut ebpf, FROM_CONTAINER)?.fd()?, 0)?;
        Ok(Self { ebpf, replay, _calls: calls, program })
    }

    /// Nanoseconds a packet, and the last packet as the programs left it.
    fn round(&mut self, packet: &Packet, packets: u32, verdict: i32) -> Result<(f64, Vec<u8>)> {
        let vary_at = if packet.vary { l4::l4_offset(&packet.bytes) as u32 } else { 0 };
        let mut template = [0u8; 88];
        template[..80].copy_from_slice(&packet.bytes[..80]);
        template[80..84].copy_from_slice(&vary_at.to_ne_bytes());
        let map = self.replay.map_mut("replay_packet").context("no packet")?;
        Array::<_, [u8; 88]>::try_from(map)?.set(0, template, 0)?;
        let incoming = Incoming { ingress_ifindex: packet.at, at: Some(packet.at), ..Incoming::default() };
        let context = kit::context(incoming);
        let mut out = vec![0; 2048];
        let mut options = TestRunOptions::new();
        options.data_in = Some(&packet.bytes);
        options.data_out = Some(&mut out);
        options.ctx_in = Some(&context);
        options.repeat = packets;
        let result = classifier(&mut self.replay, "replay")?.test_run(options)?;
        let found = result.return_value.cast_signed();
        ensure!(found == verdict, "verdict {found} and not {verdict}");
        out.truncate(result.data_size_out as usize);
        Ok((result.duration.as_nanos() as f64, out))
    }

    /// Forgets every connection.
    fn flush(&mut self) -> Result<()> {
        flush::<14>(&mut self.ebpf, "cilium_ct4_global")?;
        flush::<14>(&mut self.ebpf, "cilium_ct_any4_global")?;
        flush::<38>(&mut self.ebpf, "cilium_ct6_global")?;
        flush::<38>(&mut self.ebpf, "cilium_ct_any6_global")
    }
}

fn flush<const KEY: usize>(ebpf: &mut Ebpf, name: &str) -> Result<()> {
    let mut rows = HashMap::<_, [u8; KEY], [u8; 56]>::try_from(map(ebpf, name)?)?;
    for key in rows.keys().collect::<Result<Vec<_>, _>>()? {
        rows.remove(&key)?;
    }
    Ok(())
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier> {
    Ok(ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Map> {
    ebpf.map_mut(name).with_context(|| format!("no map {name}"))
}

fn bytes<T: Plain, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() == N) };
    let mut array = [0; N];
    array.copy_from_slice(value.as_bytes());
    array
}

/// Both pods, their policies, one service of each family with pod B behind it.
fn fill(ebpf: &mut Ebpf) -> Result<()> {
    for (slot, pod) in [(1, A), (2, B)] {
        let policy = policy()?;
        ArrayOfMaps::<_, LpmTrie<MapData, [u8; 8], [u8; 12]>>::try_from(map(ebpf, "ep_policies")?)?
            .set(slot, &policy, 0)?;
        add(ebpf, &pod, slot)?;
    }
    let id = SERVICE_ID.to_be();
    let frontend = LbService { count: 1, rev_nat_index: id, ..Plain::zeroed() };
    let slot = LbService { backend_id: BACKEND_ID, count: 0, ..frontend };
    let (port, backend_port) = (SERVICE_PORT.to_be(), BACKEND_PORT.to_be());

    let vip = ipv4_word(VIP_V4);
    let key = LbServiceKey { address: vip, dport: port, backend_slot: 0, proto: TCP, scope: 0, pad: [0; 2] };
    let mut rows = HashMap::<_, [u8; 12], [u8; 12]>::try_from(map(ebpf, "cilium_lb4_services_v2")?)?;
    rows.insert(bytes::<_, 12>(&key), bytes::<_, 12>(&frontend), 0)?;
    rows.insert(bytes::<_, 12>(&LbServiceKey { backend_slot: 1, ..key }), bytes::<_, 12>(&slot), 0)?;
    let backend = LbBackend { address: ipv4_word(B.ipv4), port: backend_port, proto: TCP, ..Plain::zeroed() };
    HashMap::<_, u32, [u8; 12]>::try_from(map(ebpf, "cilium_lb4_backends_v3")?)?.insert(
        BACKEND_ID,
        bytes::<_, 12>(&backend),
        0,
    )?;
    HashMap::<_, u16, [u8; 6]>::try_from(map(ebpf, "cilium_lb4_reverse_nat")?)?.insert(
        id,
        bytes::<_, 6>(&LbReverseNat { address: vip, port }),
        0,
    )?;

    let vip = ipv6_words(VIP_V6);
    let key = LbServiceKey { address: vip, dport: port, backend_slot: 0, proto: TCP, scope: 0, pad: [0; 2] };
    let mut rows = HashMap::<_, [u8; 24], [u8; 12]>::try_from(map(ebpf, "cilium_lb6_services_v2")?)?;
    rows.insert(bytes::<_, 24>(&key), bytes::<_, 12>(&frontend), 0)?;
    rows.insert(bytes::<_, 24>(&LbServiceKey { backend_slot: 1, ..key }), bytes::<_, 12>(&slot), 0)?;
    let backend =
        LbBackend { address: ipv6_words(B.ipv6), port: backend_port, proto: TCP, ..Plain::zeroed() };
    HashMap::<_, u32, [u8; 24]>::try_from(map(ebpf, "cilium_lb6_backends_v3")?)?.insert(
        BACKEND_ID,
        bytes::<_, 24>(&backend),
        0,
    )?;
    HashMap::<_, u16, [u8; 18]>::try_from(map(ebpf, "cilium_lb6_reverse_nat")?)?.insert(
        id,
        bytes::<_, 18>(&LbReverseNat { address: vip, port }),
        0,
    )?;
    Ok(())
}

/// Out to everybody; in from the two pods to the backend's port; and rows of others.
fn policy() -> Result<LpmTrie<MapData, [u8; 8], [u8; 12]>> {
    let mut rows = LpmTrie::<MapData, [u8; 8], [u8; 12]>::create(16384, 0x81)?;
    let mut insert = |key: PolicyKey| -> Result<()> {
        let lpm_bits = key.prefixlen - PolicyKey::STATIC_BITS;
        let data = bytes::<_, 12>(&key);
        let mut rest = [0; 8];
        rest.copy_from_slice(&data[4..]);
        let value = bytes::<_, 12>(&PolicyEntry::allow(lpm_bits as u8));
        Ok(rows.insert(&lpm_trie::Key::new(key.prefixlen, rest), value, 0)?)
    };
    insert(PolicyKey::any(true))?;
    let ingress = |sec_label, dport: u16| PolicyKey {
        prefixlen: PolicyKey::FULL_BITS,
        sec_label,
        egress: 0,
        protocol: TCP,
        dport: dport.to_be(),
    };
    for pod in [A, B] {
        insert(ingress(pod.identity, BACKEND_PORT))?;
    }
    for other in 0..OTHER_POLICIES {
        insert(ingress(5000 + other, SERVICE_PORT))?;
    }
    Ok(rows)
}

fn add(ebpf: &mut Ebpf, pod: &Pod, policy_slot: u32) -> Result<()> {
    let (mac, node_mac) = (mac_word(pod.mac), mac_word(pod.node_mac));
    let settings = EndpointConfig {
        id: u32::from(pod.id),
        identity: pod.identity,
        ifindex: pod.ifindex,
        flags: ep_flag::LIVE | ep_flag::SOURCE_CHECK,
        ipv4: ipv4_word(pod.ipv4),
        policy_slot,
        ipv6: ipv6_words(pod.ipv6),
        mac,
        node_mac,
        ..Plain::zeroed()
    };
    Array::<_, [u8; 64]>::try_from(map(ebpf, "ep_config")?)?.set(
        u32::from(pod.id),
        bytes::<_, 64>(&settings),
        0,
    )?;
    Array::<_, u32>::try_from(map(ebpf, "ep_by_ifindex")?)?.set(pod.ifindex, u32::from(pod.id), 0)?;
    let (ifindex, lxc_id, sec_id) = (pod.ifindex, pod.id, pod.identity);
    let info = EndpointInfo { ifindex, lxc_id, mac, node_mac, sec_id, ..Plain::zeroed() };
    for (ip, bits) in [(IpAddr::from(pod.ipv4), 32), (pod.ipv6.into(), 128)] {
        HashMap::<_, [u8; 20], [u8; 48]>::try_from(map(ebpf, "cilium_lxc")?)?.insert(
            bytes::<_, 20>(&EndpointKey::from(ip)),
            bytes::<_, 48>(&info),
            0,
        )?;
        let mut data = [0; 20];
        data.copy_from_slice(&bytes::<_, 24>(&IpcacheKey::new(ip, bits))[4..]);
        let key = lpm_trie::Key::new(IpcacheKey::STATIC_BITS + u32::from(bits), data);
        let row = RemoteEndpointInfo { sec_identity: pod.identity, ..Plain::zeroed() };
        LpmTrie::<_, [u8; 20], [u8; 24]>::try_from(map(ebpf, "cilium_ipcache_v2")?)?.insert(
            &key,
            bytes::<_, 24>(&row),
            0,
        )?;
    }
    Ok(())
}

/// A packet at a pod's interface.
struct Packet {
    bytes: Vec<u8>,
    at: u32,
    /// Each repetition comes from another port.
    vary: bool,
}

/// A way through the programs: packets before, the packet that is measured, and what it looks like behind them.
struct Way {
    name: String,
    before: Vec<Packet>,
    packet: Packet,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Way {
    /// The best round of each side, without the replay's own time.
    fn measure(&self, sides: &mut [Side]) -> Result<Vec<f64>> {
        let new = self.packet.vary;
        let (packets, rounds) = if new { (NEW_PACKETS, NEW_ROUNDS) } else { (PACKETS, ROUNDS) };
        for side in sides.iter_mut() {
            side.flush()?;
            for packet in &self.before {
                side.round(packet, 1, REDIRECT.cast_signed())?;
            }
            let Seen { source, destination, .. } =
                seen(&side.round(&self.packet, 1, REDIRECT.cast_signed())?.1);
            let source = if new { SocketAddr::new(source.ip(), self.source.port()) } else { source };
            ensure!(
                (source, destination) == (self.source, self.destination),
                "from {source} to {destination}, not from {} to {}",
                self.source,
                self.destination
            );
        }
        let mut best = vec![f64::INFINITY; sides.len()];
        let mut alone = f64::INFINITY;
        for _ in 0..rounds {
            for (side, best) in sides.iter_mut().zip(&mut best) {
                if new {
                    side.flush()?;
                }
                *best = best.min(side.round(&self.packet, packets, REDIRECT.cast_signed())?.0);
            }
            alone = alone.min(sides[0].replay_alone(&self.packet, packets)?);
        }
        Ok(best.into_iter().map(|nanoseconds| nanoseconds - alone).collect())
    }
}

impl Side {
    fn replay_alone(&mut self, packet: &Packet, packets: u32) -> Result<f64> {
        const NO_PROGRAM: i32 = -1;
        self.program.clear_index(&0)?;
        let (nanoseconds, _) = self.round(packet, packets, NO_PROGRAM)?;
        self.program.set(0, classifier(&mut self.ebpf, FROM_CONTAINER)?.fd()?, 0)?;
        Ok(nanoseconds)
    }
}

fn paths() -> Vec<Way> {
    let families: [(&str, IpAddr, IpAddr, IpAddr); 2] = [
        ("IPv4", A.ipv4.into(), B.ipv4.into(), VIP_V4.into()),
        ("IPv6", A.ipv6.into(), B.ipv6.into(), VIP_V6.into()),
    ];
    let mut paths = Vec::new();
    for (family, a, b, vip) in families {
        let client = SocketAddr::new(a, 40000);
        let backend = SocketAddr::new(b, BACKEND_PORT);
        let service = SocketAddr::new(vip, SERVICE_PORT);
        let from_a = |to, flags| Packet {
            bytes: frame(A.node_mac, A.mac, &segment(client, to, TCP, flags)),
            at: A.ifindex,
            vary: false,
        };
        let from_b = |flags| Packet {
            bytes: frame(B.node_mac, B.mac, &segment(backend, client, TCP, flags)),
            at: B.ifindex,
            vary: false,
        };
        let path = |name: &str, before, packet, source, destination| Way {
            name: format!("{name}, {family}"),
            before,
            packet,
            source,
            destination,
        };
        let opened = |to| vec![from_a(to, SYN), from_b(SYN | ACK), from_a(to, ACK)];
        let vary = |packet| Packet { vary: true, ..packet };
        paths.extend([
            path("service, established", opened(service), from_a(service, ACK), client, backend),
            path("reply and reverse NAT", opened(service), from_b(ACK), service, client),
            path("pod to pod, established", opened(backend), from_a(backend, ACK), client, backend),
            path("service, new", vec![], vary(from_a(service, SYN)), client, backend),
            path("pod to pod, new", vec![], vary(from_a(backend, SYN)), client, backend),
        ]);
    }
    paths
}

//! Packets of a pod during changes: policies, identities, programs, the agent, added and removed pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use datapath_abi::drop::POLICY_DENIED;
use integration_tests::cast::{eventually, identity};
use integration_tests::frames::{Packet, Token};
use integration_tests::{Node, Pod, pod_manifest};
use serde_json::json;
use test_kit::{NetNs, PacketSocket, require_root};

use super::arena::Place::{Friend, Mallory, Victim, World};
use super::arena::{AT_HOST, Arena, FRIENDS, OPEN, Place, SPORT, mac_of};

const PACE: Duration = Duration::from_millis(1);
const WHILE: Duration = Duration::from_millis(150);

/// Sends the same frames continuously.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Flood {
    fn start(socket: PacketSocket, frames: Vec<Vec<u8>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                for frame in &frames {
                    socket.send(frame).unwrap();
                }
                rounds += 1;
                sleep(PACE);
            }
            rounds
        };
        Self { stop, thread: Builder::new().name("flood".to_owned()).spawn(send).unwrap() }
    }

    /// Stops it; returns how many times each frame was sent.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Frames of the flood, by their tokens.
const LAWFUL: [Token; 2] = [Token(60_001), Token(60_002)];
const DENIED: [Token; 2] = [Token(60_003), Token(60_004)];
const FORGED: [Token; 2] = [Token(60_005), Token(60_006)];
const FORGED_OUT: [Token; 2] = [Token(60_007), Token(60_008)];
const PIECES: [Token; 2] = [Token(60_009), Token(60_010)];

fn flood_frames(arena: &Arena) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for ipv6 in [false, true] {
        let [own, victim, friend, world] =
            [Mallory, Victim, Friend, World].map(|place| arena.ip(place, ipv6));
        let index = usize::from(ipv6);
        let packets = [
            (LAWFUL[index], Packet::udp(own, victim, (SPORT, OPEN))),
            (DENIED[index], Packet::udp(own, victim, (SPORT, FRIENDS))),
            (FORGED[index], Packet::udp(friend, victim, (SPORT, FRIENDS))),
            (FORGED_OUT[index], Packet::udp(friend, world, (SPORT, OPEN))),
            (PIECES[index], Packet::udp(own, victim, (SPORT, OPEN)).later(77, 4, false)),
        ];
        for (token, packet) in packets {
            let mut frame = arena.frame(Mallory, &packet);
            token.mark(&mut frame);
            frames.push(frame);
        }
    }
    frames
}

/// Arrivals of the flood's frames.
#[derive(Default)]
struct Arrivals(BTreeMap<(Token, Place), u64>);

impl Arrivals {
    fn gather(&mut self, arena: &Arena) {
        for (token, place) in arena.arrivals() {
            *self.0.entry((token, place)).or_default() += 1;
        }
    }

    fn of(&self, token: Token, place: Place) -> u64 {
        self.0.get(&(token, place)).copied().unwrap_or(0)
    }

    /// Frames that no pod and no world may see.
    fn unlawful(&self, tokens: &[Token]) -> Vec<(Token, Place, u64)> {
        let seen = self.0.iter().filter(|((token, place), _)| tokens.contains(token) && *place != Mallory);
        seen.map(|((token, place), count)| (*token, *place, *count)).collect()
    }
}

#[test]
fn nothing_unlawful_passes_while_policies_identities_and_programs_change() {
    require_root!();
    let mut arena = Arena::new();
    let frames = flood_frames(&arena);
    let socket = PacketSocket::open(&arena.mallory.ns, "eth0").unwrap();
    let flood = Flood::start(socket, frames);
    let mut arrivals = Arrivals::default();
    let never: Vec<Token> = [DENIED, FORGED, FORGED_OUT, PIECES].concat();
    let check = |arena: &Arena, arrivals: &mut Arrivals, what: &str| {
        sleep(WHILE);
        arrivals.gather(arena);
        let unlawful = arrivals.unlawful(&never);
        assert!(unlawful.is_empty(), "{what}: {unlawful:?}\n{}", arena.node.log());
    };
    check(&arena, &mut arrivals, "before anything changes");

    // Another policy of the victim is added and removed.
    let more = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "more", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "victim"}}, "ingress": [
            {"fromEndpoints": [{"matchLabels": {"app": "nobody"}}]}, {"fromCIDR": ["198.51.100.0/24"]}]},
    });
    for _ in 0..10 {
        arena.node.apply("more.yaml", &more.to_string());
        arena.node.wait_policies(&["victim", "more"]);
        arena.node.withdraw("more.yaml");
        arena.node.wait_policies(&["victim"]);
    }
    check(&arena, &mut arrivals, "while policies change");

    // The attacker has another identity, which may do the same.
    for round in 0..5 {
        let before = identity(&arena.node, &arena.mallory);
        let round = round.to_string();
        let manifest = pod_manifest("default", "mallory", &[("app", "mallory"), ("round", &round)]);
        arena.node.apply("pod-mallory.yaml", &manifest);
        eventually(|| identity(&arena.node, &arena.mallory) != before);
        sleep(Duration::from_millis(20));
    }
    check(&arena, &mut arrivals, "while identities change");

    // Stops, kills, starts, other programs.
    for (round, payload) in ["256", "256", "200", "256"].into_iter().enumerate() {
        match round % 2 {
            0 => drop(arena.node.kill()),
            _ => arena.node.stop(),
        }
        sleep(Duration::from_millis(50));
        arena.node.config.insert("trace-payloadlen".into(), payload.into());
        arena.node.start();
        arena.node.wait_policies(&["victim"]);
        check(&arena, &mut arrivals, &format!("after start {round}"));
    }
    let rounds = flood.stop();
    sleep(WHILE);
    arrivals.gather(&arena);
    for token in LAWFUL {
        assert_eq!(arrivals.of(token, Victim), rounds, "{token:?} of {rounds}\n{}", arena.node.log());
    }
    assert!(arrivals.unlawful(&never).is_empty() && rounds > 500);
}

/// An identity that is trusted temporarily: its connections end with the trust.
#[test]
fn trust_ends_with_the_identity() {
    require_root!();
    let arena = Arena::new();
    let socket = PacketSocket::open(&arena.mallory.ns, "eth0").unwrap();
    let flood = Flood::start(socket, flood_frames(&arena));
    let set = |app: &str, pass: bool| {
        arena.node.apply("pod-mallory.yaml", &pod_manifest("default", "mallory", &[("app", app)]));
        let passes = || {
            arena.arrivals();
            sleep(Duration::from_millis(40));
            let mut arrivals = Arrivals::default();
            arrivals.gather(&arena);
            DENIED.map(|token| arrivals.of(token, Victim) > 0)
        };
        eventually(|| passes() == [pass; 2]);
    };
    let mine = identity(&arena.node, &arena.mallory);
    for _ in 0..3 {
        set("friend", true);
        assert_ne!(identity(&arena.node, &arena.mallory), mine);
        set("mallory", false);
        let mut arrivals = Arrivals::default();
        arena.arrivals();
        sleep(WHILE);
        arrivals.gather(&arena);
        let unlawful = arrivals.unlawful(&[DENIED, FORGED, FORGED_OUT, PIECES].concat());
        assert!(unlawful.is_empty(), "{unlawful:?}\n{}", arena.node.log());
        assert!(arrivals.of(LAWFUL[0], Victim) > 0 && arrivals.of(LAWFUL[1], Victim) > 0);
    }
    flood.stop();
}

/// Interfaces of pods in the host.
fn pod_links(host: &NetNs) -> BTreeSet<String> {
    let links = host.ip("-o link show").unwrap();
    let names = links.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    names.filter(|name| name.starts_with("lxc")).map(str::to_owned).collect()
}

/// Sends from the moment that a pod's interface exists until it is gone, as soon as possible by its next hop's address.
struct EarlyFlood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl EarlyFlood {
    fn start(ns: &NetNs, host: &NetNs, packets: Vec<(Token, Packet)>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, ns, host) = (Arc::clone(&stop), ns.clone(), host.clone());
        let before = pod_links(&host);
        let send = move || {
            let socket = loop {
                match PacketSocket::open(&ns, "eth0") {
                    Ok(socket) => break socket,
                    Err(_) if stopped.load(Ordering::Relaxed) => return 0,
                    Err(_) => sleep(Duration::from_micros(200)),
                }
            };
            let mut peer = [0xff; 6];
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                if peer == [0xff; 6]
                    && let Some(name) = pod_links(&host).difference(&before).next()
                {
                    peer = mac_of(&host, name);
                }
                for (token, packet) in &packets {
                    let mut frame = packet.frame([2, 0, 0, 0, 0, 9], peer);
                    token.mark(&mut frame);
                    // The interface is not up yet, or gone.
                    sent += u64::from(socket.send(&frame).is_ok());
                }
                sleep(Duration::from_micros(100));
            }
            sent
        };
        Self { stop, thread: Builder::new().name("early-flood".to_owned()).spawn(send).unwrap() }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Packets that no new pod may send, whatever addresses it gets: as the trusted pod, as the node, as the victim.
fn forged(arena: &Arena) -> Vec<(Token, Packet)> {
    let mut packets = Vec::new();
    for ipv6 in [false, true] {
        let [victim, friend, world, host] =
            [Victim, Friend, World, Place::Host].map(|place| arena.ip(place, ipv6));
        for source in [friend, host, victim] {
            for (destination, port) in [(victim, FRIENDS), (world, OPEN), (host, AT_HOST), (friend, OPEN)] {
                let token = Token(61_000 + packets.len() as u16);
                packets.push((token, Packet::udp(source, destination, (SPORT, port))));
            }
        }
    }
    packets
}

#[test]
fn nothing_unlawful_passes_while_pods_are_added_and_deleted() {
    require_root!();
    let arena = Arena::new();
    let packets = forged(&arena);
    let tokens: Vec<Token> = packets.iter().map(|(token, _)| *token).collect();
    let mut sent = 0;
    for round in 0..5 {
        let name = format!("late{round}");
        let ns = arena.node.sandbox().netns(&name).unwrap();
        arena.node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", &name, &[("app", "late")]));
        let flood = EarlyFlood::start(&ns, arena.node.host(), packets.clone());
        let pod = Pod::add(&arena.node, "default", &name, &ns).unwrap();
        sleep(Duration::from_millis(30));
        // The twin: under its own source it reaches the world.
        let link = PacketSocket::open(&ns, "eth0").unwrap();
        let lawful = Token(62_000 + round);
        let known: BTreeSet<String> = pod_links(arena.node.host());
        let lxc = known.iter().find(|name| pod.result.to_string().contains(name.as_str())).unwrap().clone();
        let mut frame = Packet::udp(pod.ipv4, arena.ip(World, false), (SPORT, OPEN))
            .frame(mac_of(&ns, "eth0"), mac_of(arena.node.host(), &lxc));
        lawful.mark(&mut frame);
        let mut arrivals = Arrivals::default();
        eventually_mut(|| {
            link.send(&frame).unwrap();
            arrivals.gather(&arena);
            arrivals.of(lawful, World) > 0
        });
        pod.cni(&arena.node, "DEL").unwrap();
        sleep(Duration::from_millis(20));
        sent += flood.stop();
        arrivals.gather(&arena);
        let unlawful = arrivals.unlawful(&tokens);
        assert!(unlawful.is_empty(), "round {round}: {unlawful:?}\n{}", arena.node.log());
        arena.node.withdraw(&format!("pod-{name}.yaml"));
        drop(link);
    }
    assert!(sent > 1000, "{sent}");
}

fn eventually_mut(mut what: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not come to that");
        sleep(Duration::from_millis(5));
    }
}

/// The next pod with the address of a trusted one has none of its rights, and none of its connections.
#[test]
fn the_next_pod_of_an_address_inherits_nothing() {
    require_root!();
    // Capacity for two more pods.
    let mut arena = Arena::with(&[("ipv4-range", "10.244.9.0/29")]);
    let late = arena.node.add_pod_with("default", "late", &[("app", "friend")]);
    let address = late.ipv4;
    let victim = arena.ip(Victim, false);
    let frame_of = |node: &Node, pod: &Pod, packet: &Packet, token: Token| {
        let name =
            pod_links(node.host()).into_iter().find(|name| pod.result.to_string().contains(name.as_str()));
        let mut frame = packet.frame(mac_of(&pod.ns, "eth0"), mac_of(node.host(), &name.unwrap()));
        token.mark(&mut frame);
        frame
    };
    // It uses its rights, and the victim opens a connection to it.
    let rights = |source: IpAddr| Packet::udp(source, victim, (SPORT, FRIENDS));
    let answer = |source: IpAddr| Packet::udp(source, victim, (OPEN, SPORT));
    let link = PacketSocket::open(&late.ns, "eth0").unwrap();
    let mut arrivals = Arrivals::default();
    let (used, answered) = (Token(63_001), Token(63_002));
    eventually_mut(|| {
        arena.send(Victim, &Packet::udp(victim, address, (SPORT, OPEN)), 0);
        for (packet, token) in [(rights(address), used), (answer(address), answered)] {
            link.send(&frame_of(&arena.node, &late, &packet, token)).unwrap();
        }
        arrivals.gather(&arena);
        arrivals.of(used, Victim) > 0 && arrivals.of(answered, Victim) > 0
    });
    drop(link);
    arena.node.delete_pod(late);

    // The next pod sends from its creation on.
    let (rights_again, answer_again) = (Token(63_003), Token(63_004));
    let attempts = vec![(rights_again, rights(address)), (answer_again, answer(address))];
    for round in 0..3 {
        let name = format!("heir{round}");
        let ns = arena.node.sandbox().netns(&name).unwrap();
        arena.node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", &name, &[("app", "heir")]));
        arena.dropped();
        let flood = EarlyFlood::start(&ns, arena.node.host(), attempts.clone());
        let heir = Pod::add(&arena.node, "default", &name, &ns).unwrap();
        sleep(WHILE);
        let sent = flood.stop();
        arrivals.gather(&arena);
        let unlawful = arrivals.unlawful(&[rights_again, answer_again]);
        assert!(unlawful.is_empty(), "{unlawful:?}\n{}", arena.node.log());
        if heir.ipv4 != address {
            continue;
        }
        assert!(sent > 50, "{sent}");
        // It was policy that dropped them, once the address was the sender's own.
        let dropped = arena.dropped();
        for token in [rights_again, answer_again] {
            assert!(dropped.contains(&(token, POLICY_DENIED)), "{dropped:?}");
        }
        // The twin: the world gets what the heir sends, once it is asked lawfully.
        let link = PacketSocket::open(&heir.ns, "eth0").unwrap();
        let lawful = Packet::udp(address, arena.ip(World, false), (SPORT, OPEN));
        eventually_mut(|| {
            link.send(&frame_of(&arena.node, &heir, &lawful, Token(63_005))).unwrap();
            arrivals.gather(&arena);
            arrivals.of(Token(63_005), World) > 0
        });
        return;
    }
    panic!("the address is not used again");
}

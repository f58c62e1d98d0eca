//! A node with an attacker, and the outcome of its packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::frames::{Mac, Packet, Token};
use integration_tests::{Events, Node, Pod};
use serde_json::{Value, json};
use test_kit::{NetNs, PacketSocket, wait_until};

/// UDP and TCP port of the victim that the attacker may use.
pub(crate) const OPEN: u16 = 7000;
/// Port of the victim that only the friend may use.
pub(crate) const FRIENDS: u16 = 7001;
/// Port of the victim that only the world may use.
pub(crate) const WORLDS: u16 = 7002;
/// Port of the victim that only the host may use.
pub(crate) const HOSTS: u16 = 7003;
/// Port of the host that is open to all.
pub(crate) const AT_HOST: u16 = 7010;
/// VXLAN's port, at which the host listens as well.
pub(crate) const VXLAN: u16 = 8472;
/// Source port of the attacker.
pub(crate) const SPORT: u16 = 4000;

/// Limit of the wait for a packet on a busy machine.
const PATIENCE: Duration = Duration::from_secs(4);
/// Duration of the wait for packets that must not arrive, after all others have arrived.
const QUIET: Duration = Duration::from_millis(100);
/// Interval of packets that keeps their order across CPUs.
const PACE: Duration = Duration::from_millis(1);

/// A place at which packets are sent and captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The pod that attacks.
    Mallory,
    /// The pod with a policy.
    Victim,
    /// A pod that the victim trusts; it has no policy of its own.
    Friend,
    /// A host outside of the node.
    World,
    /// The node's own stack, by its sockets.
    Host,
}
use Place::{Friend, Host, Mallory, Victim, World};

/// The expected outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives at this place only.
    At(Place),
    /// A program drops it with this reason (`datapath_abi::drop`).
    Drop(u8),
    /// It arrives at most at these places: the host's stack, nftables or a program may discard it.
    AtMost(&'static [Place]),
}

impl Fate {
    /// It does not arrive, independent of where it is discarded.
    pub(crate) const BLOCKED: Self = Self::AtMost(&[]);
    /// It arrives neither in a pod nor in the world; the host's stack may accept it.
    pub(crate) const STAYS_AT_HOST: Self = Self::AtMost(&[Host]);
}

/// One packet.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    from: Place,
    packet: Packet,
    fate: Fate,
    mark: u32,
}

impl Step {
    pub(crate) fn new(from: Place, packet: Packet, fate: Fate) -> Self {
        Self { from, packet, fate, mark: 0 }
    }

    /// Sets the mark with which the packet leaves its socket.
    pub(crate) fn marked(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }
}

/// An attack, and its twin with one difference that makes it legitimate.
#[derive(Debug)]
pub(crate) struct Case {
    name: String,
    attack: Vec<Step>,
    twin: Vec<Step>,
}

impl Case {
    /// A case of several packets on each side.
    pub(crate) fn new(name: impl Into<String>, attack: Vec<Step>, twin: Vec<Step>) -> Self {
        let name = name.into();
        let passes = twin.iter().any(|step| matches!(step.fate, Fate::At(_)));
        assert!(passes, "{name}: nothing of the twin passes");
        Self { name, attack, twin }
    }

    /// One packet of the attacker, and its twin, which the victim gets.
    pub(crate) fn simple(name: impl Into<String>, attack: Packet, fate: Fate, twin: Packet) -> Self {
        let (attack, twin) = (Step::new(Mallory, attack, fate), Step::new(Mallory, twin, Fate::At(Victim)));
        Self::new(name, vec![attack], vec![twin])
    }
}

/// A place's end of its link.
#[derive(Debug)]
struct Link {
    socket: PacketSocket,
    own: Mac,
    peer: Mac,
}

/// A node with three pods and a world.
pub(crate) struct Arena {
    pub(crate) node: Node,
    pub(crate) mallory: Pod,
    pub(crate) victim: Pod,
    pub(crate) friend: Pod,
    links: BTreeMap<Place, Link>,
    /// Listeners in the host; in pods only so that no ICMP errors are sent.
    listeners: Vec<(Place, UdpSocket)>,
    events: Events,
    next_token: u16,
}

fn mac(text: &str) -> Mac {
    let mut parts = text.trim().split(':').map(|part| u8::from_str_radix(part, 16).unwrap());
    std::array::from_fn(|_| parts.next().unwrap())
}

/// The MAC address of an interface of a namespace.
pub(crate) fn mac_of(ns: &NetNs, interface: &str) -> Mac {
    let line = ns.ip(&format!("-o link show {interface}")).unwrap();
    mac(line.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap())
}

/// The victim's policy: one port a peer.
pub(crate) fn victims_policy() -> String {
    let ports = |ports: &[u16]| {
        let of = |port: &u16| {
            ["UDP", "TCP"].map(|protocol| json!({"port": port.to_string(), "protocol": protocol}))
        };
        json!([{"ports": ports.iter().flat_map(of).collect::<Vec<Value>>()}])
    };
    let endpoints = |app: &str| json!([{"matchLabels": {"app": app}}]);
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "victim", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "victim"}}, "ingress": [
            {"fromEndpoints": endpoints("mallory"), "toPorts": ports(&[OPEN])},
            {"fromEndpoints": endpoints("friend"), "toPorts": ports(&[OPEN, FRIENDS])},
            {"fromEntities": ["world"], "toPorts": ports(&[WORLDS])},
            {"fromEntities": ["host"], "toPorts": ports(&[HOSTS])},
        ]},
    })
    .to_string()
}

impl Arena {
    /// Starts the node, adds its pods and waits until the victim's policy is in force.
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// The same with some options of the agent.
    pub(crate) fn with(options: &[(&str, &str)]) -> Self {
        let mut node = Node::new();
        // By default the host may reach all local pods.
        node.config.insert("allow-localhost".into(), "policy".into());
        // Capture enough bytes for tokens after many headers.
        node.config.insert("trace-payloadlen".into(), "256".into());
        for (key, value) in options {
            node.config.insert((*key).to_owned(), (*value).to_owned());
        }
        node.apply("victim.yaml", &victims_policy());
        // The listeners have the tunnel's port; forged packets of a tunnel are in `overlay.rs`.
        node.config.insert("routing-mode".to_owned(), "native".to_owned());
        node.start();
        let [mallory, victim, friend] =
            ["mallory", "victim", "friend"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
        node.wait_policies(&["victim"]);
        let endpoints = node.get("/v1/endpoint");
        let host_side = |pod: &Pod| {
            let is_pod =
                |row: &&Value| row["status"]["external-identifiers"]["k8s-pod-name"] == pod.name.as_str();
            let row = endpoints.as_array().unwrap().iter().find(is_pod).unwrap();
            mac(row["status"]["networking"]["host-mac"].as_str().unwrap())
        };
        let mut links = BTreeMap::new();
        for (place, pod) in [(Mallory, &mallory), (Victim, &victim), (Friend, &friend)] {
            let socket = PacketSocket::open(&pod.ns, "eth0").unwrap();
            links.insert(place, Link { socket, own: mac_of(&pod.ns, "eth0"), peer: host_side(pod) });
        }
        let (own, peer) = (mac_of(node.world(), "eth0"), mac_of(node.host(), "eth0"));
        links.insert(World, Link { socket: PacketSocket::open(node.world(), "eth0").unwrap(), own, peer });
        let mut listeners = Vec::new();
        let pods = [(Mallory, &mallory), (Victim, &victim), (Friend, &friend)];
        let places = pods.map(|(place, pod)| (place, pod.ns.clone()));
        let others = [(Host, node.host().clone()), (World, node.world().clone())];
        for (place, ns) in places.into_iter().chain(others) {
            for port in [OPEN, FRIENDS, WORLDS, HOSTS, AT_HOST, VXLAN, SPORT] {
                let socket = ns.run(|| UdpSocket::bind(("::", port))).unwrap();
                socket.set_nonblocking(true).unwrap();
                listeners.push((place, socket));
            }
        }
        let events = Events::of(&node);
        let mut arena = Self { node, mallory, victim, friend, links, listeners, events, next_token: 0 };
        arena.warm_up();
        arena
    }

    /// Sends until packets pass on every path of the twins: neighbour resolution on new links takes time.
    fn warm_up(&mut self) {
        for ipv6 in [false, true] {
            let [mallory, victim, world] = [Mallory, Victim, World].map(|place| self.ip(place, ipv6));
            let host = self.ip(Host, ipv6);
            let paths = [
                (Mallory, mallory, victim, OPEN, Victim),
                (Mallory, mallory, world, OPEN, World),
                (Mallory, mallory, host, AT_HOST, Host),
                (World, world, victim, WORLDS, Victim),
            ];
            for (from, source, destination, port, place) in paths {
                wait_until(&format!("packets from {from:?} to {place:?}"), Duration::from_secs(20), || {
                    let token = self.send(from, &Packet::udp(source, destination, (SPORT, port)), 0);
                    sleep(Duration::from_millis(20));
                    self.seen().contains(&(token, place))
                });
            }
        }
        self.events.dropped();
    }

    /// An address of a place.
    pub(crate) fn ip(&self, place: Place, ipv6: bool) -> IpAddr {
        let fixed = |v4: &str, v6: &str| if ipv6 { v6.parse().unwrap() } else { v4.parse().unwrap() };
        match place {
            Mallory => self.mallory.addresses()[usize::from(ipv6)],
            Victim => self.victim.addresses()[usize::from(ipv6)],
            Friend => self.friend.addresses()[usize::from(ipv6)],
            World => fixed(Node::WORLD_IPV4, Node::WORLD_IPV6),
            Host => fixed(Node::IPV4, Node::IPV6),
        }
    }

    /// The pods' gateway, an address of the node.
    pub(crate) fn router(&self, ipv6: bool) -> IpAddr {
        let ips = self.mallory.result["ips"].as_array().unwrap();
        let gateways = ips.iter().filter_map(|ip| ip["gateway"].as_str()?.parse().ok());
        gateways.into_iter().find(|ip: &IpAddr| ip.is_ipv6() == ipv6).unwrap()
    }

    /// The MAC address of a place's end of its link.
    pub(crate) fn mac(&self, place: Place) -> Mac {
        self.links[&place].own
    }

    /// A place's end of its link.
    pub(crate) fn socket(&self, place: Place) -> &PacketSocket {
        &self.links[&place].socket
    }

    /// The frame by which a place sends a packet.
    pub(crate) fn frame(&self, from: Place, packet: &Packet) -> Vec<u8> {
        packet.frame(self.links[&from].own, self.links[&from].peer)
    }

    /// The reasons for which programs have dropped packets since the last call, by their tokens.
    pub(crate) fn dropped(&mut self) -> BTreeSet<(Token, u8)> {
        let dropped = self.events.dropped();
        dropped.iter().filter_map(|drop| Some((Token::find(&drop.frame)?, drop.reason))).collect()
    }

    /// Every frame with a token that has arrived at pods or in the world since the last call, one by one.
    pub(crate) fn arrivals(&self) -> Vec<(Token, Place)> {
        let mut arrivals = Vec::new();
        for (place, link) in &self.links {
            let tokens = link.socket.received().into_iter().filter_map(|frame| Token::find(&frame));
            arrivals.extend(tokens.map(|token| (token, *place)));
        }
        arrivals
    }

    /// Sends one packet with a token of its own.
    pub(crate) fn send(&mut self, from: Place, packet: &Packet, mark: u32) -> Token {
        self.next_token += 1;
        let token = Token(self.next_token);
        let link = &self.links[&from];
        let mut frame = packet.frame(link.own, link.peer);
        token.mark(&mut frame);
        link.socket.set_mark(mark).unwrap();
        link.socket.send(&frame).unwrap_or_else(|error| panic!("{error}: {packet:?}"));
        token
    }

    /// Whether the host's own packets reach a port of a pod.
    pub(crate) fn host_reaches(&mut self, place: Place, ipv6: bool, port: u16) -> bool {
        self.next_token += 1;
        let token = Token(self.next_token);
        let to = self.ip(place, ipv6);
        // A frame with the token as its source MAC address.
        let mut payload = [0; 14];
        token.mark(&mut payload);
        let any = if ipv6 { "::" } else { "0.0.0.0" };
        let socket = self.node.host().run(|| UdpSocket::bind((any, 0))).unwrap();
        socket.send_to(&payload, (to, port)).unwrap();
        let reached = || self.seen().contains(&(token, place)).then_some(()).ok_or_else(String::new);
        test_kit::try_wait_until(Duration::from_millis(500), reached).is_ok()
    }

    /// Returns the packets that have arrived since the last call, with the place of arrival.
    pub(crate) fn seen(&mut self) -> BTreeSet<(Token, Place)> {
        let mut seen = BTreeSet::new();
        for (place, link) in &self.links {
            let tokens = link.socket.received().into_iter().filter_map(|frame| Token::find(&frame));
            seen.extend(tokens.map(|token| (token, *place)));
        }
        for (place, socket) in &self.listeners {
            let mut buffer = [0; 2048];
            while let Ok(length) = socket.recv(&mut buffer) {
                if *place == Host {
                    seen.extend(Token::find(&buffer[..length]).map(|token| (token, *place)));
                }
            }
        }
        seen
    }

    /// Packets that programs have dropped so far, by the reason's label.
    fn drop_counts(&self) -> BTreeMap<String, u64> {
        let rows: Vec<Value> =
            serde_json::from_str(&self.node.apiary(&["bpf", "metrics", "list", "-o", "json"])).unwrap();
        let mut counts = BTreeMap::new();
        for row in rows {
            let reason = row["reason"].as_str().unwrap_or_default().to_owned();
            *counts.entry(reason).or_default() += row["packets"].as_u64().unwrap_or(0);
        }
        counts
    }

    /// Sends everything and holds what becomes of it against what must.
    ///
    /// # Panics
    /// When something differs; the message names the cases.
    pub(crate) fn check(&mut self, cases: &[Case]) {
        let before = self.drop_counts();
        let mut steps: BTreeMap<Token, (String, &Step)> = BTreeMap::new();
        // Read while more is sent, so that the ring never fills.
        let mut early = Vec::new();
        for (number, case) in cases.iter().enumerate() {
            if number % 32 == 0 {
                early.extend(self.events.dropped());
            }
            for (side, all) in [("attack", &case.attack), ("twin", &case.twin)] {
                for (index, step) in all.iter().enumerate() {
                    let token = self.send(step.from, &step.packet, step.mark);
                    steps.insert(token, (format!("{}, {side}, packet {}", case.name, index + 1), step));
                    sleep(PACE);
                }
            }
        }
        let mut seen: BTreeMap<Token, BTreeSet<Place>> = BTreeMap::new();
        let mut dropped: BTreeMap<Token, BTreeSet<u8>> = BTreeMap::new();
        let mut gather = |arena: &mut Self| {
            for (token, place) in arena.seen() {
                seen.entry(token).or_default().insert(place);
            }
            for drop in early.drain(..).chain(arena.events.dropped()) {
                if let Some(token) = Token::find(&drop.frame) {
                    dropped.entry(token).or_default().insert(drop.reason);
                }
            }
            steps.iter().all(|(token, (_, step))| match step.fate {
                Fate::At(place) => seen.get(token).is_some_and(|places| places.contains(&place)),
                Fate::Drop(reason) => dropped.get(token).is_some_and(|reasons| reasons.contains(&reason)),
                Fate::AtMost(_) => true,
            })
        };
        let deadline = Instant::now() + PATIENCE;
        while !gather(self) && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        sleep(QUIET);
        gather(self);

        let mut wrong = Vec::new();
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        for (token, (name, step)) in &steps {
            // The sender of a packet may get an ICMP error that quotes it.
            let mut places = seen.remove(token).unwrap_or_default();
            if step.fate != Fate::At(step.from) {
                places.remove(&step.from);
            }
            let reasons = dropped.remove(token).unwrap_or_default();
            let labels: Vec<_> = reasons.iter().map(|reason| datapath_abi::drop::label(*reason)).collect();
            let right = match step.fate {
                Fate::At(place) => places == BTreeSet::from([place]) && reasons.is_empty(),
                Fate::Drop(reason) => {
                    *expected.entry(datapath_abi::drop::label(reason).unwrap()).or_default() += 1;
                    places.is_empty() && reasons == BTreeSet::from([reason])
                }
                Fate::AtMost(allowed) => places.iter().all(|place| allowed.contains(place)),
            };
            if !right {
                let fate = match step.fate {
                    Fate::Drop(reason) => format!("Drop({:?})", datapath_abi::drop::label(reason).unwrap()),
                    other => format!("{other:?}"),
                };
                wrong.push(format!("{name}: must be {fate}, was at {places:?}, dropped for {labels:?}"));
            }
        }
        let after = self.drop_counts();
        for (label, count) in expected {
            let counted = after.get(label).unwrap_or(&0) - before.get(label).unwrap_or(&0);
            if counted < count {
                wrong
                    .push(format!("cilium_metrics counts {counted} drops for {label:?}, there were {count}"));
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}\n{}", wrong.len(), wrong.join("\n"), self.node.log());
    }
}

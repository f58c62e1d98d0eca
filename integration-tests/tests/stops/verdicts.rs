//! Verdicts by arrival: one UDP packet between each two actors, over both families and through a service.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use test_kit::NetNs;

const PORT: u16 = 8080;
const SERVICE_PORT: u16 = 80;
/// Source port of the first round; the node translates to ports above, 32768 and up.
const FIRST_PORT: u16 = 10_000;
/// How long an allowed packet is sent again: neighbours have to be resolved first.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long answers of one sending are waited for; they come with the sending itself.
const PAUSE: Duration = Duration::from_millis(3);

/// A sender and receiver of packets.
#[derive(Debug)]
pub(crate) struct Actor {
    name: String,
    ns: NetNs,
    receiver: UdpSocket,
    /// Of an interface that may not be there yet: looked up each time.
    interface: String,
}

impl Actor {
    /// An actor in a namespace, with the addresses of the interface.
    pub(crate) fn new(name: &str, ns: &NetNs, interface: &str) -> io::Result<Actor> {
        let receiver = ns.run(|| UdpSocket::bind(("::", PORT)))?;
        receiver.set_nonblocking(true)?;
        Ok(Actor { name: name.to_owned(), ns: ns.clone(), receiver, interface: interface.to_owned() })
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let links = self.ns.ip("-j addr").unwrap_or_default();
        let links: Value = serde_json::from_str(&links).unwrap_or_default();
        let link = links.as_array().into_iter().flatten().find(|link| link["ifname"] == *self.interface);
        let addresses = link.and_then(|link| link["addr_info"].as_array()).into_iter().flatten();
        let addresses = addresses.filter(|address| address["scope"] == "global");
        addresses.filter_map(|address| address["local"].as_str()?.parse().ok()).collect()
    }
}

/// The actor that each actor reaches at each target; none where no packet arrived.
pub(crate) type Verdicts = BTreeMap<String, BTreeSet<String>>;

/// The actors of a node.
#[derive(Debug)]
pub(crate) struct Actors {
    actors: Vec<Actor>,
    services: Vec<IpAddr>,
    round: AtomicU32,
}

impl Actors {
    /// These, and a service at these addresses.
    pub(crate) fn new(actors: Vec<Actor>, services: &[&str]) -> Actors {
        let services = services.iter().map(|ip| ip.parse().unwrap()).collect();
        Actors { actors, services, round: AtomicU32::new(0) }
    }

    /// Returns the verdicts once they no longer change.
    pub(crate) fn measure(&self) -> Verdicts {
        let mut last = self.attempts(4);
        loop {
            let next = self.attempts(4);
            if next == last {
                return next;
            }
            last = next;
        }
    }

    /// Whether what holds is for each packet what it is in one of the accepted ones; what is not otherwise.
    pub(crate) fn judge(&self, accepted: &[&Verdicts]) -> Result<(), String> {
        let begin = Instant::now();
        let mut found = Verdicts::new();
        loop {
            for (pair, reached) in self.attempts(1) {
                found.entry(pair).or_default().extend(reached);
            }
            let mut missing = Vec::new();
            for (pair, reached) in &found {
                let allowed: Vec<&BTreeSet<String>> =
                    accepted.iter().filter_map(|all| all.get(pair)).collect();
                if let Some(wrong) =
                    reached.iter().find(|actor| !allowed.iter().any(|all| all.contains(*actor)))
                {
                    return Err(format!("{pair}: reaches {wrong}, may reach {allowed:?}"));
                }
                let by_all = allowed.len() == accepted.len() && allowed.iter().all(|all| !all.is_empty());
                if reached.is_empty() && by_all {
                    missing.push(format!("{pair}: has no reachable peers, must reach {allowed:?}"));
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(missing.join("\n"));
            }
        }
    }

    fn attempts(&self, count: usize) -> Verdicts {
        let mut targets: Vec<(String, SocketAddr)> = Vec::new();
        for actor in &self.actors {
            for ip in actor.addresses() {
                let family = if ip.is_ipv4() { 4 } else { 6 };
                targets.push((format!("{} over IPv{family}", actor.name), SocketAddr::new(ip, PORT)));
            }
        }
        for ip in &self.services {
            targets.push((format!("the service {ip}"), SocketAddr::new(*ip, SERVICE_PORT)));
        }
        let mut verdicts = Verdicts::new();
        for _ in 0..count {
            let round = self.round.fetch_add(1, Ordering::Relaxed);
            for (from, actor) in self.actors.iter().enumerate() {
                actor.ns.run(|| send(round, from as u32, &targets));
            }
            sleep(PAUSE);
            for actor in &self.actors {
                let own = format!("{} over", actor.name);
                for (target, _) in targets.iter().filter(|(target, _)| !target.starts_with(&own)) {
                    verdicts.entry(format!("{} to {target}", actor.name)).or_default();
                }
            }
            for receiver in &self.actors {
                let mut packet = [0; 12];
                while let Ok(length) = receiver.receiver.recv(&mut packet) {
                    let word = |at: usize| u32::from_ne_bytes(packet[at..at + 4].try_into().unwrap());
                    let known = length == packet.len() && word(0) == round;
                    let Some(sender) = self.actors.get(word(4) as usize).filter(|_| known) else { continue };
                    let pair = format!("{} to {}", sender.name, targets[word(8) as usize].0);
                    if let Some(reached) = verdicts.get_mut(&pair) {
                        reached.insert(receiver.name.clone());
                    }
                }
            }
        }
        verdicts
    }
}

/// Sends a packet to each target, from a port that no earlier round has used: the connection table would send the
/// packet of a known connection to the backend that was chosen for it then. A random port repeats one of the last
/// minute's about once in a thousand rounds.
fn send(round: u32, from: u32, targets: &[(String, SocketAddr)]) {
    let port = u16::try_from(round).ok().and_then(|round| FIRST_PORT.checked_add(round));
    let socket = UdpSocket::bind(("::", port.expect("fewer rounds than ports")));
    // An actor may be without its interface or namespace.
    let Ok(socket) = socket else { return };
    for (to, (_, address)) in targets.iter().enumerate() {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let packet = [round, from, to as u32].map(u32::to_ne_bytes).concat();
        // A packet without a route does not arrive.
        let _ = socket.send_to(&packet, (ip, address.port()));
    }
}

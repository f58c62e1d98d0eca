//! Random policies, and pairs of flows that differ in one field of which one is denied.

use super::model::{Entry, Flow, L4, Party, Peers, Policy, Ports, Prefix, Requirement, Where, World};

/// A random number generator that is determined by its seed (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// One to `most` of them.
    fn some<T: Clone>(&mut self, from: &[T], most: usize) -> Vec<T> {
        (0..=self.below(most)).map(|_| self.pick(from)).collect()
    }
}

const PORTS: [u16; 6] = [53, 80, 443, 8080, 8085, 10_000];

/// Prefixes around the addresses of the hosts outside, and some that look like pods and node and are not them.
const PREFIXES: [&str; 14] = [
    "198.51.100.0/24",
    "198.51.100.0/25",
    "198.51.100.10/32",
    "203.0.113.0/24",
    "198.0.0.0/8",
    "0.0.0.0/0",
    "10.244.0.0/16",
    "192.0.2.1/32",
    "2001:db8:51::/48",
    "2001:db8:51::/49",
    "2001:db8:51::10/128",
    "2001:db8::/32",
    "::/0",
    "fd00:10:244::/64",
];
const EXCEPT: [(&str, &str); 8] = [
    ("198.51.100.0/24", "198.51.100.128/25"),
    ("198.51.100.0/24", "198.51.100.10/32"),
    ("0.0.0.0/0", "198.51.100.0/24"),
    ("198.0.0.0/8", "198.51.100.0/25"),
    ("2001:db8:51::/48", "2001:db8:51:8000::/49"),
    ("2001:db8::/32", "2001:db8:51::10/128"),
    ("::/0", "2001:db8:51::/48"),
    ("198.51.100.0/25", "198.51.100.0/25"),
];

fn requirements(random: &mut Random) -> Vec<Requirement> {
    const APPS: [&str; 4] = ["web", "api", "db", "vault"];
    let one = |random: &mut Random| match random.below(7) {
        0..=2 => Requirement::Is("app", random.pick(&APPS)),
        3 => Requirement::In("tier", random.some(&["front", "back"], 2)),
        4 => Requirement::NotIn("app", random.some(&APPS, 2)),
        5 => Requirement::Exists("secret"),
        _ => Requirement::DoesNotExist("secret"),
    };
    match random.below(4) {
        0 => Vec::new(),
        1 | 2 => vec![one(random)],
        _ => vec![one(random), one(random)],
    }
}

fn peers(random: &mut Random) -> Peers {
    match random.below(12) {
        0 | 1 => Peers::Absent,
        2 => Peers::Nobody,
        3..=6 => {
            let one = |random: &mut Random| {
                let place = match random.below(4) {
                    0 => Where::Namespace(random.pick(&["shop", "bank"])),
                    1 => Where::Team(random.pick(&["red", "blue"])),
                    _ => Where::Unsaid,
                };
                (requirements(random), place)
            };
            Peers::Endpoints((0..=random.below(2)).map(|_| one(random)).collect())
        }
        7 | 8 => Peers::Cidrs(
            random.some(&PREFIXES, 3).into_iter().map(|text| (Prefix(text), Vec::new())).collect(),
        ),
        9 => {
            let one = |(prefix, except)| (Prefix(prefix), vec![Prefix(except)]);
            Peers::Cidrs(random.some(&EXCEPT, 2).into_iter().map(one).collect())
        }
        _ => Peers::Entities(random.some(
            &["all", "world", "world-ipv4", "world-ipv6", "cluster", "host", "remote-node", "none"],
            2,
        )),
    }
}

fn ports(random: &mut Random) -> Ports {
    match random.below(7) {
        0 | 1 => Ports::Absent,
        2 => {
            let names = random.some(&["http", "dns", "metrics", "nobody"], 2);
            Ports::Named(names.into_iter().map(|name| (random.pick(&["TCP", "UDP", "ANY"]), name)).collect())
        }
        3 => {
            let types = [(false, 8), (true, 128), (false, 3), (true, 1)];
            Ports::Icmp(random.some(&types, 3))
        }
        _ => {
            let one = |random: &mut Random| {
                let protocol = random.pick(&["TCP", "UDP", "ANY"]);
                match random.below(6) {
                    0 => (protocol, 0, None),
                    1 => (protocol, 8080, Some(8085)),
                    2 => (protocol, random.pick(&[1, 54, 1024]), Some(random.pick(&[1023, 8084, 65_535]))),
                    _ => (protocol, random.pick(&PORTS), None),
                }
            };
            // A range that does not go upwards would be its first port only; that is tried elsewhere.
            let list = (0..=random.below(3)).map(|_| one(random));
            Ports::Numbers(list.filter(|(_, first, last)| last.is_none_or(|last| last > *first)).collect())
        }
    }
}

/// Policies of one round: enough of them that some flows pass and some do not.
pub(crate) fn policies(random: &mut Random, round: usize) -> Vec<Policy> {
    (0..2 + random.below(4))
        .map(|index| {
            let namespace = random.pick(&[Some("shop"), Some("shop"), Some("bank"), None]);
            let entries = (0..=random.below(3)).map(|_| Entry {
                ingress: random.one_in(2),
                deny: random.one_in(4),
                peers: peers(random),
                ports: ports(random),
            });
            let entries = entries.collect();
            let switch = |random: &mut Random| if random.one_in(6) { Some(random.one_in(2)) } else { None };
            let default_deny = [switch(random), switch(random)];
            let subject = requirements(random);
            Policy { name: format!("round{round}-{index}"), namespace, subject, entries, default_deny }
        })
        .collect()
}

/// Returns every possible flow.
pub(crate) fn flows(world: &World) -> Vec<Flow> {
    let pods = (0..world.pods.len()).map(Party::Pod);
    let parties: Vec<Party> =
        pods.chain((0..world.outside.len()).map(Party::Outside)).chain([Party::Host]).collect();
    let l4: Vec<L4> =
        PORTS.into_iter().flat_map(|port| [L4::Udp(port), L4::Tcp(port)]).chain([L4::Ping]).collect();
    let mut flows = Vec::new();
    for from in &parties {
        for to in &parties {
            let a_pod = matches!(from, Party::Pod(_)) || matches!(to, Party::Pod(_));
            if from == to || !a_pod {
                continue;
            }
            for ipv6 in [false, true] {
                flows.extend(l4.iter().map(|l4| Flow { from: *from, to: *to, ipv6, l4: *l4 }));
            }
        }
    }
    flows
}

/// Returns the number of fields in which two flows differ; protocol and port count as one.
fn distance(a: &Flow, b: &Flow) -> usize {
    [a.from != b.from, a.to != b.to, a.ipv6 != b.ipv6, a.l4 != b.l4]
        .into_iter()
        .filter(|differ| *differ)
        .count()
}

/// Up to `count` pairs: a denied flow, and an allowed one that differs in one field. No flow is in two pairs.
pub(crate) fn pairs(random: &mut Random, world: &World, policies: &[Policy], count: usize) -> Vec<[Flow; 2]> {
    twins(random, flows(world), |flow| world.allows(policies, *flow), count)
}

/// Returns [`pairs`] of these flows, by any verdict.
pub(crate) fn twins(
    random: &mut Random,
    flows: Vec<Flow>,
    allows: impl Fn(&Flow) -> bool,
    count: usize,
) -> Vec<[Flow; 2]> {
    let (mut allowed, mut denied): (Vec<Flow>, Vec<Flow>) = flows.into_iter().partition(allows);
    let mut pairs = Vec::new();
    while pairs.len() < count && !denied.is_empty() {
        let flow = denied.swap_remove(random.below(denied.len()));
        let twins: Vec<usize> =
            (0..allowed.len()).filter(|index| distance(&allowed[*index], &flow) == 1).collect();
        if !twins.is_empty() {
            let twin = allowed.swap_remove(random.pick(&twins));
            pairs.push([flow, twin]);
        }
    }
    pairs
}

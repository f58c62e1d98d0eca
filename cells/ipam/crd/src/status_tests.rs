//! The handshake state by state, and against a naive model of a user, an operator and an agent whose writes are late.

use std::collections::BTreeSet;

use ipam::{Family, ListedBy};
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn object(pool: &[&str], releases: &[(&str, &str)]) -> CiliumNode {
    let mut object = CiliumNode::default();
    object.metadata.name = "n1".into();
    object.spec.ipam.pool = pool.iter().map(|key| ((*key).into(), AllocationIp::default())).collect();
    object.status.ipam.release_ips = releases.iter().copied().collect();
    object
}

#[test]
fn each_state_with_and_without_use() {
    const MARKED: &str = "marked-for-release";
    // The state, whether the address is listed, in use, vacant; the next state.
    let cases = [
        (MARKED, false, false, false, Some("do-not-release")),
        (MARKED, false, true, false, Some("do-not-release")),
        (MARKED, true, true, false, Some("do-not-release")),
        (MARKED, true, false, false, Some(MARKED)),
        (MARKED, true, false, true, Some("ready-for-release")),
        ("ready-for-release", true, false, true, Some("ready-for-release")),
        ("ready-for-release", true, true, false, Some("do-not-release")),
        ("ready-for-release", false, false, false, Some("ready-for-release")),
        ("ready-for-release", false, true, false, Some("ready-for-release")),
        ("do-not-release", true, false, false, Some("do-not-release")),
        ("do-not-release", true, true, false, Some("do-not-release")),
        ("do-not-release", false, false, false, Some("do-not-release")),
        ("released", true, false, false, Some("released")),
        ("released", true, true, false, Some("released")),
        ("released", false, false, false, None),
        ("released", false, true, false, None),
        ("of-a-later-version", true, true, false, Some("of-a-later-version")),
    ];
    for (state, is_listed, is_used, is_vacant, next) in cases {
        let pool: &[&str] = if is_listed { &["10.0.0.1"] } else { &[] };
        let object = object(pool, &[("10.0.0.1", state)]);
        let mut usage = Usage::default();
        if is_used {
            usage.owners.insert(ip("10.0.0.1"), "shop/a".into());
        }
        if is_vacant {
            usage.vacant.insert(ip("10.0.0.1"));
        }
        let desired = Status::desired(&object, &usage);
        let found = desired.releases.values().next().map(SmolStr::as_str);
        assert_eq!(found, next, "{state}, listed {is_listed}, used {is_used}, vacant {is_vacant}");
    }
}

#[test]
fn fields_are_written_and_removed_and_others_stay() {
    let typed = object(
        &["10.0.0.1", "10.0.0.2"],
        &[("10.0.0.2", "marked-for-release"), ("bad", "marked-for-release")],
    );
    let mut usage = Usage { vacant: [ip("10.0.0.2")].into(), ..Usage::default() };
    usage.owners.insert(ip("10.0.0.1"), "router".into());
    usage.owners.insert(ip("fd00::7"), "shop/a".into());
    let mut value = json!({"status": {"ipam": {"operator-status": {"error": "x"}}, "eni": {}}});
    Status::desired(&typed, &usage).write(&mut value);
    let expected = json!({"status": {"eni": {}, "ipam": {
        "operator-status": {"error": "x"},
        "used": {"10.0.0.1": {"owner": "router"}},
        "ipv6-used": {"fd00::7": {"owner": "shop/a"}},
        "release-ips": {"10.0.0.2": "ready-for-release", "bad": "do-not-release"},
    }}});
    assert_eq!(value, expected);
    Status::default().write(&mut value);
    assert_eq!(value["status"]["ipam"], json!({"operator-status": {"error": "x"}}));
    let mut without = json!({"status": null});
    Status::default().write(&mut without);
    assert_eq!(without, json!({"status": {"ipam": {}}}));
}

#[derive(Clone, Debug)]
enum Event {
    /// The operator adds an address, or marks one.
    Add(u8),
    Mark(u8),
    /// The operator answers the agent, and may change its mind about a mark.
    Operate,
    Unmark(u8),
    Allocate,
    Release(u8),
    /// The agent reads an object, which may be older than the server's.
    Read {
        lag: usize,
    },
    /// The agent begins a write, if none is in progress.
    Begin,
    /// The write in progress reaches the server; its answer may be lost.
    Arrive {
        is_lost: bool,
    },
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (0..6u8).prop_map(Event::Add),
        3 => (0..6u8).prop_map(Event::Mark),
        3 => Just(Event::Operate),
        1 => (0..6u8).prop_map(Event::Unmark),
        4 => Just(Event::Allocate),
        2 => (0..6u8).prop_map(Event::Release),
        6 => (0..3usize).prop_map(|lag| Event::Read { lag }),
        5 => Just(Event::Begin),
        5 => any::<bool>().prop_map(|is_lost| Event::Arrive { is_lost }),
        1 => Just(Event::Restart),
    ];
    proptest::collection::vec(event, 0..80)
}

/// The server with all versions of its object, and the agent.
struct World {
    versions: Vec<CiliumNode>,
    /// The version that the agent knows.
    seen: Option<usize>,
    owners: BTreeMap<IpAddr, Arc<str>>,
    /// The addresses that the agent allocates.
    free: BTreeSet<IpAddr>,
    usage: Usage,
    approved: Option<BTreeSet<IpAddr>>,
    count: u32,
}

fn key(at: u8) -> SmolStr {
    format!("10.0.0.{at}").into()
}

impl World {
    fn new() -> World {
        World {
            versions: vec![object(&[], &[])],
            seen: None,
            owners: BTreeMap::new(),
            free: BTreeSet::new(),
            usage: Usage::default(),
            approved: None,
            count: 0,
        }
    }

    fn server(&self) -> &CiliumNode {
        self.versions.last().unwrap()
    }

    fn change(&mut self, change: impl FnOnce(&mut CiliumNode, &mut BTreeMap<SmolStr, SmolStr>)) {
        let mut object = self.server().clone();
        let releases = object.status.ipam.release_ips.iter();
        let mut releases = releases.map(|(key, state)| (key.clone(), state.clone())).collect();
        change(&mut object, &mut releases);
        object.status.ipam.release_ips = releases.into_iter().collect();
        self.versions.push(object);
    }

    /// As a round of the job: the list of the allocator first, then the addresses.
    fn read(&mut self, lag: usize) {
        let newest = self.versions.len() - 1;
        // The first list of a start is not older than the writes of the previous run.
        let seen = self.seen.map_or(newest, |before| newest.saturating_sub(lag).max(before));
        self.seen = Some(seen);
        let pool = NodePool::read(&self.versions[seen]);
        let listed = pool.listed(ListedBy::Users, &self.approved.clone().unwrap_or_default());
        let all = (0..6).map(|at| ip(&key(at)));
        self.free = all.filter(|address| pool.get(*address).is_some()).collect();
        let releasing: BTreeSet<IpAddr> = {
            let status = &self.versions[seen].status.ipam.release_ips;
            status.iter().map(|(key, _)| ip(key)).collect()
        };
        self.free.retain(|address| {
            let is_approved = self.approved.as_ref().is_some_and(|approved| approved.contains(address));
            !releasing.contains(address) && !is_approved
        });
        // The list of the allocator is that of the naive model.
        let count = self.free.iter().filter(|address| listed.contains(**address)).count();
        assert_eq!(count, self.free.len());
        assert_eq!(pool.has(Family::V4), pool.len() > 0);
        let vacant = pool.marked().filter(|marked| !self.owners.contains_key(marked)).collect();
        self.usage = Usage { owners: self.owners.clone(), vacant };
        if let Some(approved) = &mut self.approved {
            approved.extend(&self.usage.vacant);
        }
    }

    fn arrive(&mut self, is_lost: bool) {
        if self.approved.is_none() {
            return;
        }
        let desired = Status::desired(self.server(), &self.usage);
        if desired != Status::of(self.server()) {
            self.change(|object, releases| {
                object.status.ipam.used =
                    desired.used.iter().map(|((_, key), object)| (key.clone(), object.clone())).collect();
                *releases =
                    desired.releases.iter().map(|((_, key), state)| (key.clone(), state.clone())).collect();
            });
        }
        // The writer tries again where the answer is lost.
        if !is_lost {
            self.approved = None;
            self.seen = Some(self.versions.len() - 1);
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Add(at) => self.change(|object, releases| {
                if !releases.contains_key(&key(at)) {
                    object.spec.ipam.pool.insert(key(at), AllocationIp::default());
                }
            }),
            Event::Mark(at) => self.change(|object, releases| {
                if object.spec.ipam.pool.contains_key(&key(at)) {
                    releases.entry(key(at)).or_insert(MARKED.into());
                }
            }),
            Event::Unmark(at) => self.change(|_, releases| {
                if releases.get(&key(at)).is_some_and(|state| state == MARKED) {
                    releases.remove(&key(at));
                }
            }),
            Event::Operate => self.operate(),
            Event::Allocate => {
                let address = self.free.iter().find(|address| !self.owners.contains_key(address));
                if let Some(address) = address.copied() {
                    self.count += 1;
                    self.owners.insert(address, format!("shop/{}", self.count).into());
                }
            }
            Event::Release(at) => drop(self.owners.remove(&ip(&key(at)))),
            Event::Read { lag } => self.read(lag),
            Event::Begin => {
                if self.seen.is_some() && self.approved.is_none() {
                    self.approved = Some(self.usage.vacant.clone());
                }
            }
            Event::Arrive { is_lost } => self.arrive(is_lost),
            // The endpoints keep their addresses; the agent knows no object.
            Event::Restart => {
                (self.seen, self.approved, self.usage) = (None, None, Usage::default());
                self.free.clear();
            }
        }
    }

    fn operate(&mut self) {
        let mut taken = Vec::new();
        self.change(|object, releases| {
            releases.retain(|key, state| {
                if state == READY {
                    object.spec.ipam.pool.remove(key);
                    *state = RELEASED.into();
                    taken.push(ip(key));
                }
                state != REFUSED
            });
        });
        for address in taken {
            assert!(!self.owners.contains_key(&address), "{address} was in use: {:?}", self.owners);
        }
    }
}

proptest! {
    /// No address is taken from the node while it is in use, whatever is late; in the end every mark has its answer.
    #[test]
    fn an_address_in_use_is_never_released(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.apply(event);
        }
        for _ in 0..4 {
            for event in [
                Event::Read { lag: 0 },
                Event::Begin,
                Event::Arrive { is_lost: false },
                Event::Read { lag: 0 },
                Event::Operate,
            ] {
                world.apply(&event);
            }
        }
        let ipam = &world.server().status.ipam;
        prop_assert!(ipam.release_ips.is_empty(), "{:?}", ipam.release_ips);
        let used: BTreeMap<IpAddr, String> =
            ipam.used.iter().map(|(key, object)| (ip(key), object.owner.to_string())).collect();
        let owners: BTreeMap<IpAddr, String> =
            world.owners.iter().map(|(address, owner)| (*address, owner.to_string())).collect();
        prop_assert_eq!(used, owners);
    }
}

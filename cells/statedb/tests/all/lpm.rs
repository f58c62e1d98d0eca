//! Longest-prefix-match indexes return the same as a linear search, in transactions, after commits and aborts and in
//! held snapshots, by type, text and bytes; and no watch misses a change.

mod edges;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use proptest::prelude::*;
use serde::Serialize;
use statedb::{
    AnyObj, AnyTable, BitPrefix, Db, Find, Index, IndexDef, LpmIndex, Query, ReadSource, Rows, RwTable,
    Snapshot, Table, TableDisplay, TableSpec, Watch, Writer,
};

/// Rows with any number of networks, which several rows may share.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Policy {
    id: u8,
    networks: Vec<IpNetwork>,
}

const BY_NETWORK: LpmIndex<Policy, IpNetwork> =
    Index::lpm("network", |policy, keys| keys.extend(&policy.networks));

impl TableSpec for Policy {
    const NAME: &'static str = "policies";
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NETWORK.def()]
    }
}

impl TableDisplay for Policy {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// Rows with a unique prefix.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Owner {
    id: u8,
    #[serde(skip)]
    range: Option<BitPrefix>,
}

const BY_RANGE: LpmIndex<Owner, BitPrefix> =
    Index::unique_lpm("range", |owner, keys| keys.extend(&owner.range));

impl TableSpec for Owner {
    const NAME: &'static str = "owners";
    const UNIQUE_SECONDARY: bool = true;
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_RANGE.def()]
    }
}

impl TableDisplay for Owner {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// A prefix with one bit per element: vectors compare as the keys of the index do.
type Word = Vec<bool>;

fn word(data: &[u8], bits: usize) -> Word {
    (0..bits).map(|at| data[at / 8] >> (7 - at % 8) & 1 == 1).collect()
}

fn network_word(network: &IpNetwork) -> Word {
    match network {
        IpNetwork::V4(v4) => word(&v4.ip().to_ipv6_mapped().octets(), 96 + usize::from(v4.prefix())),
        IpNetwork::V6(v6) => word(&v6.ip().octets(), v6.prefix().into()),
    }
}

fn range_word(range: &BitPrefix) -> Word {
    word(range.data(), range.bits().into())
}

/// The prefixes of a table with the ids of their rows, in order.
type Entries = Vec<(Word, u8)>;

/// A query of the index.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Longest,
    Inside,
    From,
    All,
}

const ALL_ASKED: [Asked; 4] = [Asked::Longest, Asked::Inside, Asked::From, Asked::All];

/// Returns the expected result, by a linear search.
fn answer(entries: &Entries, asked: Asked, key: &Word) -> Vec<u8> {
    let longest = entries.iter().map(|(word, _)| word).filter(|word| key.starts_with(word)).max();
    let matches = |word: &Word| match asked {
        Asked::Longest => Some(word) == longest,
        Asked::Inside => word.starts_with(key),
        Asked::From => word >= key,
        Asked::All => true,
    };
    let mut ids = Vec::new();
    for (_, id) in entries.iter().filter(|(word, _)| matches(word)) {
        if !ids.contains(id) {
            ids.push(*id);
        }
    }
    ids
}

fn by_network<'s>(
    table: &Table<Policy>,
    source: &'s impl ReadSource,
    asked: Asked,
    key: &IpNetwork,
) -> Rows<'s, Policy> {
    match asked {
        Asked::Longest => table.list(source, BY_NETWORK.query(key)),
        Asked::Inside => table.prefix(source, BY_NETWORK.prefix(key)),
        Asked::From => table.lower_bound(source, BY_NETWORK.query(key)),
        Asked::All => table.prefix(source, BY_NETWORK.all()),
    }
}

fn by_range<'s>(
    table: &Table<Owner>,
    source: &'s impl ReadSource,
    asked: Asked,
    key: &BitPrefix,
) -> Rows<'s, Owner> {
    match asked {
        Asked::Longest => table.list(source, BY_RANGE.query(key)),
        Asked::Inside => table.prefix(source, BY_RANGE.prefix(key)),
        Asked::From => table.lower_bound(source, BY_RANGE.query(key)),
        Asked::All => table.prefix(source, BY_RANGE.all()),
    }
}

/// A key as Cilium's clients write it.
fn raw(word: &Word) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().enumerate().map(|(at, bit)| u8::from(*bit) << (7 - at)).sum();
    let data = word.chunks(8).map(byte);
    data.chain(u16::try_from(word.len()).unwrap().to_be_bytes()).collect()
}

fn untyped_ids(rows: Vec<AnyObj>) -> Vec<u8> {
    rows.iter().map(|row| row.row()[0].parse().unwrap()).collect()
}

/// Returns the results of the same query by text and by bytes.
fn untyped(
    table: &dyn AnyTable,
    snapshot: &Snapshot,
    asked: Asked,
    index: &str,
    text: &str,
    raw: &[u8],
) -> Vec<u8> {
    let find = |find| untyped_ids(table.find(snapshot, find, index, text).unwrap());
    let find_raw = |from| untyped_ids(table.find_raw(snapshot, from, index, raw).unwrap());
    match asked {
        Asked::Longest => {
            let listed = find(Find::List);
            assert_eq!(find(Find::Get), listed.iter().take(1).copied().collect::<Vec<_>>());
            assert_eq!(find_raw(false), listed);
            listed
        }
        Asked::Inside => find(Find::Prefix),
        Asked::From => {
            assert_eq!(find_raw(true), find(Find::LowerBound));
            find(Find::LowerBound)
        }
        Asked::All => untyped_ids(table.find_raw(snapshot, true, index, &[]).unwrap()),
    }
}

fn a_network() -> impl Strategy<Value = IpNetwork> {
    let v4 = prop::sample::select(vec!["0.0.0.0", "10.0.0.0", "10.1.2.3", "10.1.2.128", "255.255.255.255"]);
    let v6 = prop::sample::select(vec!["::", "::1", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8:8000::"]);
    let address = prop_oneof![3 => v4, 2 => v6].prop_map(|text| text.parse::<IpAddr>().unwrap());
    (address, prop_oneof![0..=128u8, 24..=32u8, Just(0), Just(128)], any::<bool>()).prop_map(
        |(address, len, other)| {
            let address = match address {
                // Other host bits, which the mask may or may not cover.
                IpAddr::V6(ip) if other => Ipv6Addr::from(u128::from(ip) ^ 5).into(),
                address => address,
            };
            IpNetwork::new(address, len.min(if address.is_ipv4() { 32 } else { 128 })).unwrap()
        },
    )
}

fn a_range() -> impl Strategy<Value = BitPrefix> {
    let byte = prop_oneof![Just(0u8), Just(0xff), Just(0x80), 0..4u8];
    let short = prop::collection::vec(byte, 0..3);
    // More symbols than the prefixes of two nodes hold.
    let long = (0..3u8).prop_map(|last| [vec![0xaa; 40], vec![last]].concat());
    (prop_oneof![4 => short, 1 => long], 0..64u16).prop_map(|(data, less)| {
        let bits = (data.len() as u16 * 8).saturating_sub(less % 24);
        BitPrefix::new(&data, bits).unwrap()
    })
}

#[derive(Clone, Debug)]
enum Op {
    Policy(u8, Vec<IpNetwork>),
    NoPolicy(u8),
    NoPolicyFor(IpNetwork),
    Owner(u8, Option<BitPrefix>),
    NoOwner(u8),
}

#[derive(Clone, Debug)]
enum Step {
    Txn { ops: Vec<Op>, commit: bool },
    Hold,
    Watch(Asked, IpNetwork, BitPrefix),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..8u8, prop::collection::vec(a_network(), 0..3)).prop_map(|(id, nets)| Op::Policy(id, nets)),
        2 => (0..8u8).prop_map(Op::NoPolicy),
        1 => a_network().prop_map(Op::NoPolicyFor),
        4 => (0..8u8, prop::option::of(a_range())).prop_map(|(id, range)| Op::Owner(id, range)),
        2 => (0..8u8).prop_map(Op::NoOwner),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (prop::collection::vec(op(), 0..6), prop::bool::weighted(0.75))
            .prop_map(|(ops, commit)| Step::Txn { ops, commit }),
        1 => Just(Step::Hold),
        2 => (prop::sample::select(ALL_ASKED.to_vec()), a_network(), a_range())
            .prop_map(|(asked, network, range)| Step::Watch(asked, network, range)),
    ]
}

#[derive(Clone, Default)]
struct Model {
    policies: BTreeMap<u8, Vec<IpNetwork>>,
    owners: BTreeMap<u8, Option<BitPrefix>>,
    /// The fields `revision` of the last written rows, incremented by each write.
    revisions: [u64; 2],
}

impl Model {
    fn networks(&self) -> Entries {
        let all = self.policies.iter().flat_map(|(id, nets)| nets.iter().map(|net| (network_word(net), *id)));
        let mut entries: Entries = all.collect();
        entries.sort();
        entries
    }

    fn ranges(&self) -> Entries {
        let all = self.owners.iter().filter_map(|(id, range)| Some((range_word(range.as_ref()?), *id)));
        let mut entries: Entries = all.collect();
        entries.sort();
        entries
    }

    fn apply(&mut self, op: Op, policies: &mut Writer<'_, Policy>, owners: &mut Writer<'_, Owner>) {
        match op {
            Op::Policy(id, networks) => {
                policies.insert(Policy { id, networks: networks.clone() });
                self.policies.insert(id, networks);
            }
            Op::NoPolicy(id) => {
                policies.delete(Query::primary(id));
                self.policies.remove(&id);
            }
            Op::NoPolicyFor(network) => {
                let first =
                    answer(&self.networks(), Asked::Longest, &network_word(&network)).first().copied();
                assert_eq!(policies.delete(BY_NETWORK.query(&network)).map(|policy| policy.id), first);
                first.map(|id| self.policies.remove(&id));
            }
            Op::Owner(id, range) => {
                let taken = range.is_some()
                    && self.owners.iter().any(|(other, taken)| *other != id && *taken == range);
                let before = owners.revision();
                assert_eq!(owners.try_insert(Owner { id, range: range.clone() }).is_err(), taken);
                assert_eq!(owners.revision(), before + u64::from(!taken));
                if !taken {
                    self.owners.insert(id, range);
                }
            }
            Op::NoOwner(id) => {
                owners.delete(Query::primary(id));
                self.owners.remove(&id);
            }
        }
        self.revisions = [policies.revision(), owners.revision()];
    }
}

struct World {
    db: Db,
    policies: RwTable<Policy>,
    owners: RwTable<Owner>,
    model: Model,
    held: Vec<(Snapshot, Model)>,
    watches: Vec<(Asked, Word, Word, Model, [Watch; 2])>,
    /// All keys of the run, to be queried.
    keys: (Vec<IpNetwork>, Vec<BitPrefix>),
}

impl World {
    fn new(keys: (Vec<IpNetwork>, Vec<BitPrefix>)) -> Self {
        let db = Db::new();
        let (policies, owners) = (db.table_with_display().unwrap(), db.table_with_display().unwrap());
        World { db, policies, owners, model: Model::default(), held: Vec::new(), watches: Vec::new(), keys }
    }

    fn compare(&self, model: &Model, source: &impl ReadSource) {
        let (networks, ranges) = (model.networks(), model.ranges());
        for (asked, key) in
            ALL_ASKED.into_iter().flat_map(|asked| self.keys.0.iter().map(move |key| (asked, key)))
        {
            let wanted = answer(&networks, asked, &network_word(key));
            let rows = || by_network(&self.policies, source, asked, key);
            assert_eq!(
                rows().map(|row| row.id).collect::<Vec<_>>(),
                wanted,
                "{asked:?} {key} in {networks:?}"
            );
            let mut reversed: Vec<u8> = rows().rev().map(|row| row.id).collect();
            reversed.sort_unstable();
            let mut sorted = wanted.clone();
            sorted.sort_unstable();
            assert_eq!(reversed, sorted, "{asked:?} {key} backwards");
            if asked == Asked::Longest {
                let first = self.policies.get(source, BY_NETWORK.query(key)).map(|row| row.id);
                assert_eq!(first, wanted.first().copied());
            }
        }
        for (asked, key) in
            ALL_ASKED.into_iter().flat_map(|asked| self.keys.1.iter().map(move |key| (asked, key)))
        {
            let wanted = answer(&ranges, asked, &range_word(key));
            let rows = || by_range(&self.owners, source, asked, key);
            assert_eq!(rows().map(|row| row.id).collect::<Vec<_>>(), wanted, "{asked:?} {key:?}");
            // Each row has one key, so descending order is the exact reverse.
            let mut reversed: Vec<u8> = rows().rev().map(|row| row.id).collect();
            reversed.reverse();
            assert_eq!(reversed, wanted, "{asked:?} {key:?} backwards");
        }
    }

    /// Compares the results of queries by text and bytes.
    fn compare_untyped(&self, model: &Model, snapshot: &Snapshot) {
        let (policies, owners) =
            (self.db.table_by_name("policies").unwrap(), self.db.table_by_name("owners").unwrap());
        for asked in ALL_ASKED {
            for key in &self.keys.0 {
                let word = network_word(key);
                let found = untyped(&*policies, snapshot, asked, "network", &key.to_string(), &raw(&word));
                assert_eq!(found, answer(&model.networks(), asked, &word), "{asked:?} {key}");
            }
            for key in &self.keys.1 {
                let (word, data) = (range_word(key), key.data());
                let bytes: Vec<String> = data.iter().map(|byte| format!("{byte:x}")).collect();
                let text = format!("{}/{}", bytes.join(":"), key.bits());
                let found = untyped(&*owners, snapshot, asked, "range", &text, &raw(&word));
                assert_eq!(found, answer(&model.ranges(), asked, &word), "{asked:?} {key:?}");
            }
        }
    }

    fn watch(&mut self, asked: Asked, network: IpNetwork, range: BitPrefix) {
        let snapshot = self.db.snapshot();
        let (policies, owners) = (&self.policies, &self.owners);
        let watches = match asked {
            Asked::Longest => [
                policies.list_watch(&snapshot, BY_NETWORK.query(&network)).1,
                owners.get_watch(&snapshot, BY_RANGE.query(&range)).1,
            ],
            Asked::Inside => [
                policies.prefix_watch(&snapshot, BY_NETWORK.prefix(&network)).1,
                owners.prefix_watch(&snapshot, BY_RANGE.prefix(&range)).1,
            ],
            Asked::From => [
                policies.lower_bound_watch(&snapshot, BY_NETWORK.query(&network)).1,
                owners.lower_bound_watch(&snapshot, BY_RANGE.query(&range)).1,
            ],
            Asked::All => [
                policies.prefix_watch(&snapshot, BY_NETWORK.all()).1,
                owners.prefix_watch(&snapshot, BY_RANGE.all()).1,
            ],
        };
        assert!(watches.iter().all(|watch| !watch.is_closed()));
        let (network, range) = (network_word(&network), range_word(&range));
        self.watches.push((asked, network, range, self.model.clone(), watches));
    }

    fn check_watches(&self) {
        for (asked, network, range, before, [policies, owners]) in &self.watches {
            let now = &self.model;
            // A rewritten row counts as another row.
            let changed = |entries: [Entries; 2], key, same: &dyn Fn(u8) -> bool| {
                let [old, new] = entries.map(|entries| answer(&entries, *asked, key));
                old != new || !old.iter().all(|id| same(*id))
            };
            let same = |id| before.policies.get(&id) == now.policies.get(&id);
            if changed([before.networks(), now.networks()], network, &same) {
                assert!(policies.is_closed(), "missed {asked:?} {network:?}");
            }
            let same = |id| before.owners.get(&id) == now.owners.get(&id);
            if changed([before.ranges(), now.ranges()], range, &same) {
                assert!(owners.is_closed(), "missed {asked:?} {range:?}");
            }
            for (at, watch) in [policies, owners].into_iter().enumerate() {
                if before.revisions[at] == now.revisions[at] {
                    assert!(!watch.is_closed(), "woken by nothing: {asked:?}");
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Hold => self.held.push((self.db.snapshot(), self.model.clone())),
            Step::Watch(asked, network, range) => self.watch(asked, network, range),
            Step::Txn { ops, commit } => {
                let mut model = self.model.clone();
                let mut txn = self.db.write((&self.policies, &self.owners));
                for op in ops {
                    let (policies, owners) = txn.split();
                    model.apply(op, policies, owners);
                }
                self.compare(&model, &txn);
                if commit {
                    txn.commit();
                    self.model = model;
                } else {
                    txn.abort();
                }
                self.compare(&self.model, &self.db.snapshot());
                self.check_watches();
            }
        }
    }
}

fn keys(steps: &[Step]) -> (Vec<IpNetwork>, Vec<BitPrefix>) {
    let everything = BitPrefix::new(&[], 0).unwrap();
    let mut keys = (vec!["10.1.2.3/32".parse().unwrap(), "::/0".parse().unwrap()], vec![everything]);
    for step in steps {
        match step {
            Step::Hold => {}
            Step::Watch(_, network, range) => {
                keys.0.push(*network);
                keys.1.push(range.clone());
            }
            Step::Txn { ops, .. } => {
                for op in ops {
                    match op {
                        Op::Policy(_, networks) => keys.0.extend(networks),
                        Op::NoPolicyFor(network) => keys.0.push(*network),
                        Op::Owner(_, range) => keys.1.extend(range.clone()),
                        Op::NoPolicy(_) | Op::NoOwner(_) => {}
                    }
                }
            }
        }
    }
    keys
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(192)))]

    #[test]
    fn prefixes_are_found_as_by_linear_search(steps in prop::collection::vec(step(), 1..25)) {
        let mut world = World::new(keys(&steps));
        for step in steps {
            world.step(step);
        }
        world.compare_untyped(&world.model, &world.db.snapshot());
        for (snapshot, model) in &world.held {
            world.compare(model, snapshot);
        }
    }
}

use std::collections::BTreeMap;

use datapath_abi::{PolicyEntry, policy_flag};
use proptest::prelude::*;

use super::*;

const TCP: u32 = 6 << 16;

fn entry(bits: u8, deny: bool, priority: u32, proxy_port: u16) -> PolicyEntry {
    let flags = bits << policy_flag::PREFIX_SHIFT | if deny { policy_flag::DENY } else { 0 };
    let kind = match (deny, proxy_port) {
        (true, _) => 255,
        (false, 0) => 1,
        (false, _) => 2,
    };
    let precedence = (0x00ff_ffff - priority) << 8 | kind;
    PolicyEntry { proxy_port, flags, auth_type: 0, precedence, cookie: 0 }
}

fn row(peer: u32, bits: u8, l4: u32, deny: bool) -> (RowKey, PolicyEntry) {
    (RowKey::new(false, peer, bits, l4), entry(bits, deny, 0, 0))
}

fn allow(peer: u32) -> (RowKey, PolicyEntry) {
    row(peer, 0, 0, false)
}

fn rows<const N: usize>(rows: [(RowKey, PolicyEntry); N]) -> Rows {
    rows.into_iter().collect()
}

/// Returns the writes of a plan in place, after an exhaustive check.
fn in_place(current: &Rows, wanted: &Rows) -> Vec<PolicyWrite> {
    match plan(current, wanted, 100) {
        Plan::InPlace(writes) => {
            check(current, wanted, &writes).unwrap();
            writes
        }
        Plan::Swap => panic!("another map, although an order exists"),
    }
}

/// Returns the packet with a wrong verdict that the check finds.
fn wrong(current: &Rows, wanted: &Rows, writes: &[PolicyWrite]) -> WrongVerdict {
    match check(current, wanted, writes) {
        Err(Violation::Verdict(wrong)) => *wrong,
        other => panic!("no packet fares wrong: {other:?}"),
    }
}

fn kinds(writes: &[PolicyWrite]) -> String {
    let kind = |write: &PolicyWrite| match write {
        PolicyWrite::Set(_, entry) if entry.deny() => 'd',
        PolicyWrite::Set(..) => 'a',
        PolicyWrite::Delete(_) => '-',
    };
    writes.iter().map(kind).collect()
}

#[test]
fn nothing_is_written_when_nothing_changes() {
    let same = rows([allow(300), row(0, 24, TCP | 80, false)]);
    assert!(in_place(&same, &same).is_empty());
}

#[test]
fn a_wider_row_is_written_before_the_narrow_one_is_deleted() {
    let (narrow, wide) = (rows([row(300, 24, TCP | 80, false)]), rows([allow(300)]));
    assert_eq!(kinds(&in_place(&narrow, &wide)), "a-");
    assert_eq!(kinds(&in_place(&wide, &narrow)), "a-");
}

#[test]
fn a_hole_is_denied_before_the_plain_is_allowed() {
    let hole = rows([allow(300), row(300, 24, TCP | 22, true)]);
    assert_eq!(kinds(&in_place(&Rows::default(), &hole)), "da");
    let writes = in_place(&hole, &Rows::default());
    assert_eq!(writes[0], PolicyWrite::Delete(RowKey::new(false, 300, 0, 0).into()), "the allow goes first");
}

#[test]
fn rows_of_all_peers_come_first_and_else_the_map_is_swapped() {
    // The peer is allowed throughout, first by its own row, then by the row of all peers.
    let (own, everyone) = (rows([allow(300)]), rows([allow(0)]));
    let writes = in_place(&own, &everyone);
    assert_eq!(writes[0], PolicyWrite::Set(RowKey::new(false, 0, 0, 0).into(), PolicyEntry::allow(0)));
    // In the opposite direction a program that is delayed between its two lookups finds neither row.
    assert_eq!(plan(&everyone, &own, 100), Plan::Swap);
    let naive = [
        PolicyWrite::Set(RowKey::new(false, 300, 0, 0).into(), PolicyEntry::allow(0)),
        PolicyWrite::Delete(RowKey::new(false, 0, 0, 0).into()),
    ];
    let torn = wrong(&everyone, &own, &naive);
    assert_eq!((torn.peer_row_after, torn.all_row_after, torn.peer), (0, 2, 300));
}

#[test]
fn a_map_that_would_overflow_on_the_way_is_replaced() {
    let peers = |range: std::ops::Range<u32>| range.map(allow).collect::<Rows>();
    assert!(matches!(plan(&peers(1..6), &peers(2..7), 6), Plan::InPlace(_)));
    assert_eq!(plan(&peers(1..6), &peers(2..7), 5), Plan::Swap);
}

/// Applies the writes as an LPM trie of Linux before 6.13 does: a full trie refuses even updates of existing keys.
fn write_to_trie(current: &Rows, writes: &[PolicyWrite], capacity: usize) -> Result<Rows, PolicyWrite> {
    let mut trie: BTreeMap<RowKey, PolicyEntry> = current.iter().map(|(key, entry)| (*key, *entry)).collect();
    for write in writes {
        match write {
            PolicyWrite::Set(..) if trie.len() >= capacity => return Err(*write),
            PolicyWrite::Set(key, entry) => drop(trie.insert((*key).into(), *entry)),
            PolicyWrite::Delete(key) => drop(trie.remove(&(*key).into())),
        }
    }
    Ok(trie.into_iter().collect())
}

#[test]
fn a_full_map_is_replaced_when_a_row_gets_another_value() {
    let peers = |range: std::ops::Range<u32>| range.map(allow).collect::<Rows>();
    let mut changed = peers(1..6);
    changed.insert(row(5, 0, 0, true).0, row(5, 0, 0, true).1);
    assert_eq!(plan(&peers(1..6), &changed, 5), Plan::Swap);
    assert!(matches!(plan(&peers(1..6), &changed, 6), Plan::InPlace(_)));
    // The new row fills the map before the existing row is updated.
    changed.insert(allow(6).0, allow(6).1);
    assert_eq!(plan(&peers(1..6), &changed, 6), Plan::Swap);
    // Insertions alone or deletions alone need no spare capacity.
    assert!(matches!(plan(&peers(1..6), &peers(1..7), 6), Plan::InPlace(_)));
    assert!(matches!(plan(&peers(1..6), &peers(1..5), 5), Plan::InPlace(_)));
}

/// Control: the check reports wrong orders of writes.
#[test]
fn bad_orders_are_found() {
    let current = rows([allow(300), row(300, 24, TCP | 22, true), row(300, 24, TCP | 80, false)]);
    let wanted = rows([row(300, 8, TCP, false), row(300, 24, TCP | 22, true), allow(301)]);
    let good = in_place(&current, &wanted);
    let mut reversed = good.clone();
    reversed.reverse();
    let found = wrong(&current, &wanted, &reversed);
    assert_eq!((found.peer, found.found.passes()), (300, false), "both allow it: {found}");
    assert_eq!(check(&current, &wanted, &good[..good.len() - 1]), Err(Violation::Unfinished));
    // A deny is deleted before the allow that it hides.
    let hole = rows([allow(300), row(300, 24, TCP | 22, true)]);
    let mut writes = in_place(&hole, &Rows::default());
    writes.reverse();
    let found = wrong(&hole, &Rows::default(), &writes);
    assert!(found.found.passes(), "neither allows it: {found}");
}

/// Generates rows of few ports, peers and lengths, so that rows overlap.
fn any_row() -> impl Strategy<Value = (RowKey, PolicyEntry)> {
    let bits = prop_oneof![Just(0u8), Just(8), Just(22), Just(23), Just(24)];
    let l4 =
        (prop_oneof![Just(6u32), Just(17)], 80u32..84).prop_map(|(protocol, port)| protocol << 16 | port);
    let proxy = prop_oneof![9 => Just(0u16), 1 => Just(9999)];
    (any::<bool>(), 0u32..4, bits, l4, any::<bool>(), 0u32..3, proxy).prop_map(
        |(egress, peer, bits, l4, deny, priority, proxy)| {
            let proxy = if deny { 0 } else { proxy };
            (RowKey::new(egress, peer, bits, l4), entry(bits, deny, priority, proxy))
        },
    )
}

fn any_rows() -> impl Strategy<Value = Rows> {
    prop::collection::vec(any_row(), 0..12).prop_map(|rows| rows.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_in_place_is_proven(current in any_rows(), wanted in any_rows()) {
        if let Plan::InPlace(writes) = plan(&current, &wanted, 100) {
            if let Err(found) = check(&current, &wanted, &writes) {
                return Err(TestCaseError::fail(found.to_string()));
            }
            let touched: BTreeSet<_> = writes.iter().map(|write| match write {
                PolicyWrite::Set(key, _) | PolicyWrite::Delete(key) => RowKey::from(*key),
            }).collect();
            prop_assert_eq!(touched.len(), writes.len(), "each row is written once");
        }
    }

    /// Maps with no spare capacity, or capacity for one or two further rows.
    #[test]
    fn every_plan_in_place_fits_a_map_that_refuses_writes_when_full(
        current in any_rows(), wanted in any_rows(), room in 0usize..3,
    ) {
        let capacity = current.len().max(wanted.len()) + room;
        if let Plan::InPlace(writes) = plan(&current, &wanted, capacity) {
            let written = write_to_trie(&current, &writes, capacity);
            let all = |rows: &Rows| rows.iter().map(|(key, entry)| (*key, *entry)).collect::<BTreeMap<_, _>>();
            prop_assert_eq!(written.as_ref().map(all), Ok(all(&wanted)));
        }
    }

    /// Setting one row of a single peer, and undoing that, needs no swap.
    #[test]
    fn small_changes_of_peers_are_in_place(current in any_rows(), change in any_row()) {
        prop_assume!(change.0.peer != 0);
        let mut wanted = current.clone();
        wanted.insert(change.0, change.1);
        prop_assert!(matches!(plan(&current, &wanted, 100), Plan::InPlace(_)));
        prop_assert!(matches!(plan(&wanted, &current, 100), Plan::InPlace(_)));
    }
}

#[test]
fn half_of_random_changes_need_no_other_map() {
    // Guards the properties above against generators that hardly produce plans in place.
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let draw = |runner: &mut TestRunner| any_rows().new_tree(runner).unwrap().current();
    let in_place = (0..200)
        .filter(|_| {
            let (current, wanted) = (draw(&mut runner), draw(&mut runner));
            matches!(plan(&current, &wanted, 100), Plan::InPlace(writes) if writes.len() > 3)
        })
        .count();
    assert!((60..200).contains(&in_place), "{in_place} of 200");
}

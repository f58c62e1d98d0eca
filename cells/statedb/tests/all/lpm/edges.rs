//! Edge cases: bugs of Cilium's index, ends of the address space, watches that stay open.

use super::*;
use statedb::Error;

fn network(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn policies(rows: &[(u8, &[&str])]) -> RwTable<Policy> {
    let table = Db::new().table_with_display::<Policy>().unwrap();
    put(&table, rows);
    table
}

fn put(table: &RwTable<Policy>, rows: &[(u8, &[&str])]) -> Snapshot {
    let rows = rows.iter().map(|(id, texts)| (*id, texts.iter().map(|text| network(text)).collect()));
    table.transact(|w| rows.for_each(|(id, networks)| drop(w.insert(Policy { id, networks })))).1
}

fn covering(table: &RwTable<Policy>, text: &str) -> Vec<u8> {
    table.list(&table.snapshot(), BY_NETWORK.query(&network(text))).map(|row| row.id).collect()
}

fn inside(table: &RwTable<Policy>, text: &str) -> Vec<u8> {
    table.prefix(&table.snapshot(), BY_NETWORK.prefix(&network(text))).map(|row| row.id).collect()
}

fn from(table: &RwTable<Policy>, text: &str) -> Vec<u8> {
    table.lower_bound(&table.snapshot(), BY_NETWORK.query(&network(text))).map(|row| row.id).collect()
}

/// Cilium writes the second and later rows of a prefix into nodes that old snapshots share; an abort does not undo it.
#[test]
fn rows_of_one_prefix_do_not_change_in_older_snapshots() {
    let table = policies(&[(1, &["10.0.0.0/8"]), (2, &["10.0.0.0/8"]), (3, &["10.0.0.0/8"])]);
    let before = table.snapshot();
    let state = |source: &Snapshot| -> Vec<(u8, u64, usize)> {
        let rows = table.list(source, BY_NETWORK.query(&network("10.1.2.3/32")));
        rows.map(|row| (row.id, row.revision(), row.networks.len())).collect()
    };
    let wanted = vec![(1, 1, 1), (2, 2, 1), (3, 3, 1)];
    assert_eq!(state(&before), wanted);

    let mut w = table.write();
    for id in [3, 2] {
        let networks = vec![network("10.0.0.0/8"), network("192.168.0.0/16")];
        w.insert(Policy { id, networks });
    }
    assert_eq!(state(&before), wanted);
    w.abort();
    assert_eq!((state(&before), state(&table.snapshot())), (wanted.clone(), wanted.clone()));

    put(&table, &[(2, &["10.0.0.0/8", "::/0"])]);
    assert_eq!(state(&before), wanted);
    assert_eq!(state(&table.snapshot()), [(1, 1, 1), (2, 4, 2), (3, 3, 1)]);
}

/// Cilium finds nothing for a prefix at which its tree branches, although a shorter one covers it.
#[test]
fn a_prefix_at_a_branch_is_covered_by_a_shorter_one() {
    let table = policies(&[(1, &["192.0.0.0/8"]), (2, &["192.0.0.0/24"]), (3, &["192.0.3.0/24"])]);
    for len in 8..=23 {
        assert_eq!(covering(&table, &format!("192.0.0.0/{len}")), [1], "/{len}");
    }
    assert_eq!((covering(&table, "192.0.0.0/24"), covering(&table, "192.0.3.128/25")), (vec![2], vec![3]));
    assert!(covering(&table, "192.0.0.0/7").is_empty());
}

/// Cilium returns adjacent prefixes for a prefix without any inside.
#[test]
fn nothing_outside_of_a_prefix_is_inside() {
    let table = policies(&[(1, &["192.0.0.0/8"]), (2, &["192.0.1.0/24"]), (3, &["192.0.2.0/24"])]);
    for outside in ["193.0.0.0/8", "192.1.0.0/16", "192.0.4.0/22", "192.0.2.128/25", "0.0.0.0/2", "::/128"] {
        assert!(inside(&table, outside).is_empty(), "{outside}");
    }
    assert_eq!((inside(&table, "192.0.0.0/7"), inside(&table, "192.0.0.0/22")), (vec![1, 2, 3], vec![2, 3]));
}

#[test]
fn the_ends_of_both_families() {
    let table = policies(&[
        (1, &["0.0.0.0/0"]),
        (2, &["10.1.2.3/32", "2001:db8::1/128"]),
        (3, &["10.1.0.0/16"]),
        (4, &["255.255.255.255/32", "0.0.0.0/32"]),
    ]);
    assert_eq!(covering(&table, "10.1.2.3/32"), [2]);
    assert_eq!(covering(&table, "10.1.2.4/32"), [3]);
    assert_eq!(covering(&table, "9.0.0.0/8"), [1]);
    assert_eq!((covering(&table, "255.255.255.255/32"), covering(&table, "0.0.0.0/32")), (vec![4], vec![4]));
    // IPv4 prefixes cover only IPv4 addresses, in any notation.
    assert!(covering(&table, "2001:db8::2/128").is_empty() && covering(&table, "::/0").is_empty());
    assert_eq!(
        (covering(&table, "2001:db8::1/128"), covering(&table, "::ffff:10.1.2.3/128")),
        (vec![2], vec![2])
    );
    put(&table, &[(9, &["::/0"])]);
    assert_eq!((covering(&table, "2001:db8::2/128"), covering(&table, "9.0.0.0/8")), (vec![9], vec![1]));
    assert_eq!(from(&table, "::/0"), [9, 1, 4, 3, 2]);
    assert_eq!(from(&table, "10.1.2.4/32"), [4, 2]);
    assert_eq!(inside(&table, "0.0.0.0/0"), [1, 4, 3, 2]);
    table.transact(|w| w.delete(Query::primary(1)));
    assert_eq!(covering(&table, "9.0.0.0/8"), [9]);
}

#[test]
fn host_bits_are_ignored_and_a_duplicate_prefix_counts_once() {
    let table = policies(&[(1, &["10.1.2.3/8", "10.9.9.9/8"])]);
    assert_eq!((covering(&table, "10.0.0.0/8"), inside(&table, "10.200.0.0/8")), (vec![1], vec![1]));
    assert_eq!(table.prefix(&table.snapshot(), BY_NETWORK.all()).count(), 1);
    put(&table, &[(1, &["10.255.0.0/8"])]);
    assert_eq!(covering(&table, "10.0.0.1/32"), [1]);
    table.transact(|w| w.delete(BY_NETWORK.query(&network("10.0.0.1/32"))));
    assert!(covering(&table, "10.0.0.1/32").is_empty());
}

#[test]
fn an_empty_index_returns_nothing_and_its_watch_closes_with_the_first_row() {
    let table = policies(&[(1, &[])]);
    let snapshot = table.snapshot();
    assert!(covering(&table, "10.0.0.0/8").is_empty() && inside(&table, "::/0").is_empty());
    assert!(from(&table, "::/0").is_empty());
    let watches = [
        table.get_watch(&snapshot, BY_NETWORK.query(&network("10.0.0.1/32"))).1,
        table.prefix_watch(&snapshot, BY_NETWORK.prefix(&network("10.0.0.0/8"))).1,
        table.prefix_watch(&snapshot, BY_NETWORK.all()).1,
    ];
    put(&table, &[(2, &["10.0.0.0/8"])]);
    assert!(watches.iter().all(Watch::is_closed));
}

#[test]
fn many_rows_of_one_prefix_come_in_order() {
    let table = Db::new().table_with_display::<Policy>().unwrap();
    table.transact(|w| {
        for at in 0..=255u8 {
            w.insert(Policy { id: at.wrapping_mul(77), networks: vec![network("10.0.0.0/8")] });
        }
    });
    put(&table, &[(5, &["10.0.0.0/9"])]);
    let wanted: Vec<u8> = (0..=255).filter(|id| *id != 5).collect();
    assert_eq!(covering(&table, "10.128.0.0/9"), wanted);
    assert_eq!(covering(&table, "10.0.0.0/9"), [5]);
}

/// A table of a thousand networks: changes in one part leave the watches of others open.
#[test]
fn watches_close_only_with_their_part_of_the_index() {
    let table = Db::new().table_with_display::<Policy>().unwrap();
    let rows = |at: u8| vec![IpNetwork::new([10, at, 0, 0].into(), 16).unwrap()];
    table.transact(|w| (0..=255).for_each(|id| drop(w.insert(Policy { id, networks: rows(id) }))));
    let snapshot = table.snapshot();
    let list = |text: &str| table.list_watch(&snapshot, BY_NETWORK.query(&network(text))).1;
    let part = |text: &str| table.prefix_watch(&snapshot, BY_NETWORK.prefix(&network(text))).1;
    let here = [list("10.7.1.2/32"), part("10.7.0.0/16"), part("10.0.0.0/13"), part("10.0.0.0/8")];
    let elsewhere = [list("10.200.1.2/32"), part("10.200.0.0/16"), part("10.128.0.0/9")];
    put(&table, &[(7, &["10.7.0.0/16", "10.7.1.0/24"])]);
    assert!(here.iter().all(Watch::is_closed), "{here:?}");
    assert!(elsewhere.iter().all(|watch| !watch.is_closed()), "{elsewhere:?}");
    // Neither a row without a network nor an abort closes a watch.
    let mut w = table.write();
    w.insert(Policy { id: 200, networks: vec![] });
    w.abort();
    assert!(elsewhere.iter().all(|watch| !watch.is_closed()), "{elsewhere:?}");
    put(&table, &[(8, &["10.8.0.0/16", "10.200.1.0/24"])]);
    assert!(elsewhere.iter().all(Watch::is_closed), "{elsewhere:?}");
}

#[test]
fn no_two_rows_have_one_prefix_in_a_unique_index() {
    let db = Db::new();
    let owners = db.table_with_display::<Owner>().unwrap();
    let range = |data: &[u8], bits| BitPrefix::new(data, bits);
    let mut w = owners.write();
    w.try_insert(Owner { id: 1, range: range(&[0xab, 0xcd], 12) }).unwrap();
    let revision = w.revision();
    let conflict = w.try_insert(Owner { id: 2, range: range(&[0xab, 0xcf], 12) }).unwrap_err();
    assert_eq!((conflict.index, conflict.existing.id, w.revision()), ("range", 1, revision));
    w.try_insert(Owner { id: 2, range: range(&[0xab], 8) }).unwrap();
    w.try_insert(Owner { id: 1, range: range(&[0xab, 0xc0], 12) }).unwrap();
    let snapshot = w.commit();
    let at =
        |data, bits| owners.get(&snapshot, BY_RANGE.query(&range(data, bits).unwrap())).map(|row| row.id);
    assert_eq!((at(&[0xab, 0xc1], 16), at(&[0xab, 0xd0], 16), at(&[0xaa], 8)), (Some(1), Some(2), None));
}

#[test]
fn untyped_queries_take_addresses_networks_and_bytes() {
    let table = policies(&[(1, &["10.0.0.0/8"]), (2, &["10.1.2.3/32"]), (3, &["2001:db8::/32"])]);
    let (db, snapshot) = (table.db(), table.snapshot());
    let any = db.table_by_name("policies").unwrap();
    let find = |find, key| any.find(&snapshot, find, "network", key).map(untyped_ids);
    assert_eq!(find(Find::Get, "10.1.2.3").unwrap(), [2]);
    assert_eq!(find(Find::List, "10.1.2.4").unwrap(), [1]);
    assert_eq!(find(Find::Prefix, "10.0.0.0/8").unwrap(), [1, 2]);
    assert_eq!(find(Find::LowerBound, "10.1.2.3").unwrap(), [2, 3]);
    assert_eq!(find(Find::Get, "2001:db8::1").unwrap(), [3]);
    assert!(matches!(find(Find::Get, "10.0.0.0/33"), Err(Error::Key { .. })));

    let raw = |from, key: &[u8]| any.find_raw(&snapshot, from, "network", key).map(untyped_ids);
    // `::ffff:10.0.0.0/104`, and the same with host bits.
    let ten = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 104];
    let more = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 9, 9, 0, 104];
    assert_eq!((raw(false, &ten).unwrap(), raw(false, &more).unwrap()), (vec![1], vec![1]));
    assert_eq!((raw(true, &ten).unwrap(), raw(true, &[0, 0]).unwrap()), (vec![1, 2, 3], vec![1, 2, 3]));
    for wrong in [&[][..], &[1], &[10, 0, 9]] {
        assert!(matches!(raw(false, wrong), Err(Error::Key { .. })), "{wrong:?}");
    }
}

#[test]
fn bits_as_text() {
    let owners = Db::new().table_with_display::<Owner>().unwrap();
    owners.transact(|w| drop(w.try_insert(Owner { id: 1, range: BitPrefix::new(&[0xab, 0xc0], 12) })));
    let any = owners.db().table_by_name("owners").unwrap();
    let get = |key| any.find(&owners.snapshot(), Find::Get, "range", key).map(untyped_ids);
    assert_eq!((get("ab:cd").unwrap(), get("ab:c0/12").unwrap()), (vec![1], vec![1]));
    assert!(get("ab:c0/11").unwrap().is_empty() && get("/0").unwrap().is_empty());
    for wrong in ["ab:c0/17", "xy", "ab/", "ab:", "ab:c0/-1", "abc"] {
        assert!(get(wrong).is_err(), "{wrong}");
    }
}

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, u16),
    Remove(u8),
    /// Keeps a copy of the current state.
    Keep,
    /// Continues with a kept copy.
    Return(usize),
    Union(usize),
    Difference(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u8>(), any::<u16>()).prop_map(|(key, value)| Step::Insert(key, value)),
        6 => any::<u8>().prop_map(Step::Remove),
        1 => Just(Step::Keep),
        1 => any::<usize>().prop_map(Step::Return),
        1 => any::<usize>().prop_map(Step::Union),
        1 => any::<usize>().prop_map(Step::Difference),
    ]
}

fn same(map: &Map<u8, u16>, model: &BTreeMap<u8, u16>) {
    assert_eq!(tree::check(&map.root), model.len());
    assert!(map.iter().eq(model.iter()), "{map:?} is not {model:?}");
}

proptest! {
    #[test]
    fn behaves_as_a_btree_map(steps in prop::collection::vec(step(), 1..300)) {
        let (mut map, mut model) = (Map::new(), BTreeMap::new());
        let mut kept = vec![(map.clone(), model.clone())];
        for step in steps {
            match step {
                Step::Insert(key, value) => assert_eq!(map.insert(key, value), model.insert(key, value)),
                Step::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key)),
                Step::Keep => kept.push((map.clone(), model.clone())),
                Step::Return(which) => (map, model) = kept[which % kept.len()].clone(),
                Step::Union(which) => {
                    let (other, others) = &kept[which % kept.len()];
                    map = map.union(other);
                    model.extend(others);
                }
                Step::Difference(which) => {
                    let (other, others) = &kept[which % kept.len()];
                    map = map.difference(other);
                    model.retain(|key, _| !others.contains_key(key));
                }
            }
            same(&map, &model);
        }
        for (key, _) in &map {
            assert!(map.lower_bound(key).eq(model.range(key..)));
        }
        for key in 0..=u8::MAX {
            assert_eq!(map.get(&key), model.get(&key));
            assert!(map.lower_bound(&key).eq(model.range(key..)));
        }
        for (map, model) in &kept {
            same(map, model);
        }
        for (map, model) in &kept {
            for (other, others) in &kept {
                assert_eq!(map == other, model == others);
            }
        }
    }
}

#[test]
fn an_insert_copies_only_the_path() {
    let mut map: Map<u32, Arc<u32>> = (0..1000).map(|n| (n, Arc::new(n))).collect();
    let before = map.clone();
    map.insert(500, Arc::new(0));
    let copied = before.values().filter(|value| Arc::strong_count(value) > 1).count();
    assert!((1..=14).contains(&copied), "{copied} of 1000 entries are copied");
    drop(before);
    map.insert(501, Arc::new(0));
    let shared = map.values().filter(|value| Arc::strong_count(value) > 1).count();
    assert_eq!(shared, 0, "unshared nodes are changed in place");
}

#[test]
fn removing_a_missing_key_copies_nothing() {
    let mut map: Map<u32, u32> = (0..10).map(|n| (2 * n, n)).collect();
    let before = map.clone();
    assert_eq!(map.remove(&5), None);
    assert!(map.is(&before));
    let mut set: Set<u32> = (0..10).collect();
    let before = set.clone();
    assert!(!set.insert(5) && !set.remove(&10));
    assert_eq!(set, before);
}

#[test]
fn prefixes_are_of_strings() {
    let map = Map::from(["b", "ab", "abc", "a", "ac", ""].map(|key| (key.to_owned(), key.len())));
    let keys = |start| map.prefix(start).map(|(key, _)| key.as_str()).collect::<Vec<_>>();
    assert_eq!(keys("ab"), ["ab", "abc"]);
    assert_eq!(keys(""), ["", "a", "ab", "abc", "ac", "b"]);
    assert!(keys("c").is_empty());
    let set: Set<&str> = ["eth1", "lo", "eth0"].into();
    assert_eq!(set.prefix("eth").collect::<Vec<_>>(), [&"eth0", &"eth1"]);
    assert_eq!(set.lower_bound("f").collect::<Vec<_>>(), [&"lo"]);
}

#[test]
fn json_and_yaml_are_lists_as_in_cilium() {
    let map: Map<String, u8> = [("b".to_owned(), 2), ("a".to_owned(), 1)].into();
    let json = r#"[{"k":"a","v":1},{"k":"b","v":2}]"#;
    assert_eq!(serde_json::to_string(&map).unwrap(), json);
    assert_eq!(serde_json::from_str::<Map<String, u8>>(json).unwrap(), map);
    let yaml = "- k: a\n  v: 1\n- k: b\n  v: 2\n";
    assert_eq!(serde_saphyr::to_string(&map).unwrap(), yaml);

    let set: Set<u8> = [2, 1].into();
    assert_eq!(serde_json::to_string(&set).unwrap(), "[1,2]");
    assert_eq!(serde_json::from_str::<Set<u8>>("[2,1,2]").unwrap(), set);
    assert_eq!(serde_saphyr::to_string(&set).unwrap(), "- 1\n- 2\n");

    let empty = Map::<String, u8>::new();
    assert_eq!(serde_json::to_string(&(&empty, Set::<u8>::new())).unwrap(), "[[],[]]");
    assert_eq!(serde_json::from_str::<(Map<String, u8>, Set<u8>)>("[null,[]]").unwrap(), (empty, Set::new()));
    let wrong = serde_json::from_str::<Map<String, u8>>(r#"{"a":1}"#).unwrap_err().to_string();
    assert!(wrong.contains("expected a sequence"), "{wrong}");
}

#[test]
fn they_print_as_others_and_take_one_word() {
    let set: BTreeSet<u8> = Set::from([3, 1]).iter().copied().collect();
    assert_eq!(set, [1, 3].into());
    assert_eq!(format!("{:?} {:?}", Map::from([(1, 'a')]), Set::from([1])), "{1: 'a'} {1}");
    assert_eq!(size_of::<Map<String, String>>(), size_of::<usize>());
}

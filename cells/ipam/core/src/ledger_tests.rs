//! The ledger against a naive model, in virtual time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use statedb::Db;

use super::*;
use crate::listed::{ListedAddress, ListedBy};

struct Counting(u128);

impl Randomness for Counting {
    fn offset(&mut self) -> u128 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 20
    }

    fn uuid(&mut self) -> String {
        self.0 += 1;
        format!("uuid-{}", self.0)
    }
}

const BOTH: [Family; 2] = [Family::V6, Family::V4];

fn ledger() -> Ledger {
    Ledger::new(Db::new().table::<Address>().unwrap())
}

fn pools(cidrs: &[&str]) -> Pools {
    Pools::of_ranges(cidrs.iter().map(|cidr| cidr.parse().unwrap()))
}

/// Every pod has the default pool.
#[expect(clippy::unnecessary_wraps, reason = "the ledger asks for a choice that may fail")]
fn default_pool(_: Family) -> Result<Arc<str>, Error> {
    Ok(DEFAULT_POOL.into())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rows(ledger: &Ledger) -> BTreeMap<IpAddr, Address> {
    let table = ledger.table.reader();
    let snapshot = ledger.table.db().snapshot();
    table.all(&snapshot).map(|row| (row.address, (**row).clone())).collect()
}

#[test]
fn both_families_or_none() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let pools = pools(&["10.0.0.0/30", "fd00::/126"]);
    for _ in 0..2 {
        let given = ledger.allocate(|| &pools, &default_pool, &BOTH, "pod", None, &mut randomness).unwrap();
        assert_eq!(given.len(), 2);
    }
    let before = rows(&ledger);
    let full = ledger.allocate(|| &pools, &default_pool, &BOTH, "pod", None, &mut randomness);
    assert_eq!(
        full.unwrap_err().to_string(),
        "range is full: pool default has 2 IPv6 addresses on this node, pod holds 2 of them"
    );
    assert_eq!(rows(&ledger), before, "a refused request leaves nothing behind");
    ledger.release(ip("fd00::1"), None, now).unwrap();
    let before = rows(&ledger);
    let full = ledger.allocate(|| &pools, &default_pool, &BOTH, "pod", None, &mut randomness);
    assert!(matches!(full, Err(Error::Full { family: Family::V4, capacity: 2, .. })), "{full:?}");
    assert_eq!(rows(&ledger), before, "IPv6 had room, IPv4 had not: neither is given");
}

#[test]
fn a_disabled_family_gives_nothing() {
    let ledger = ledger();
    let pools = pools(&["10.0.0.0/24"]);
    let given =
        ledger.allocate(|| &pools, &default_pool, &[Family::V6], "pod", None, &mut Counting(1)).unwrap();
    assert!(given.is_empty());
    assert_eq!(
        ledger.take(|| &pools, ip("fd00::1"), "pod", Lease::Held).unwrap_err().to_string(),
        "IPv6 allocation disabled"
    );
}

#[test]
fn a_full_pool_names_the_namespace_that_holds_most() {
    let (ledger, mut randomness) = (ledger(), Counting(1));
    let pools = pools(&["10.0.0.0/29"]);
    for owner in ["router", "a/1", "b/1", "b/2", "a/2", "b/3"] {
        ledger.allocate(|| &pools, &default_pool, &BOTH, owner, None, &mut randomness).unwrap();
    }
    let full = ledger.allocate(|| &pools, &default_pool, &BOTH, "c/1", None, &mut randomness);
    assert_eq!(
        full.unwrap_err().to_string(),
        "range is full: pool default has 6 IPv4 addresses on this node, namespace b holds 3 of them"
    );
}

#[test]
fn a_family_that_waits_for_its_range_refuses_with_the_reason() {
    let (ledger, mut randomness) = (ledger(), Counting(1));
    let waiting = Pools::default().waiting(Family::V4, "no podCIDRs in CiliumNode n1");
    let refused = ledger.allocate(|| &waiting, &default_pool, &BOTH, "pod", None, &mut randomness);
    let expected = "no IPv4 address can be allocated yet: no podCIDRs in CiliumNode n1";
    assert_eq!(refused.unwrap_err().to_string(), expected);
    let refused = ledger.take(|| &waiting, ip("10.0.0.9"), "pod", Lease::Held);
    assert_eq!(refused.unwrap_err().to_string(), expected);

    // An endpoint of the previous run keeps its address, which is reserved when the range comes.
    ledger.restore(&waiting, ip("10.0.0.1"), "a/1", 7).unwrap();
    ledger.restore(&waiting, ip("10.0.0.1"), "a/1", 7).unwrap();
    assert_eq!(ledger.restore(&waiting, ip("10.0.0.1"), "a/2", 8), Err(Error::Allocated));
    let known = pools(&["10.0.0.0/30"]);
    let given = ledger.allocate(|| &known, &default_pool, &BOTH, "pod", None, &mut randomness).unwrap();
    assert_eq!(given[0].address, ip("10.0.0.2"));
}

#[test]
fn a_withdrawn_range_keeps_its_owners_and_gives_nothing_new() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let before = pools(&["10.0.0.0/29"]);
    let mut one = |pools: &Pools| {
        ledger.allocate(|| pools, &default_pool, &[Family::V4], "pod", None, &mut randomness).unwrap()[0]
            .address
    };
    let (held, released) = (one(&before), one(&before));
    let range = |cidr: &str| crate::PodRange::new(cidr.parse().unwrap());
    let pool =
        Pool { ranges: vec![range("10.0.1.0/29")], withdrawn: vec![range("10.0.0.0/29")], listed: None };
    let after = Pools::new([(DEFAULT_POOL.into(), pool)]);
    ledger.hand_over(|| &after, [(held, None)], "pod", 7).unwrap();
    assert_eq!(ledger.release(released, None, now), Ok(true));
    for _ in 0..6 {
        assert!(range("10.0.1.0/29").contains(one(&after)), "not even one that rests");
    }
    let mut more = Counting(9);
    let full = ledger.allocate(|| &after, &default_pool, &[Family::V4], "pod", None, &mut more);
    assert!(matches!(full, Err(Error::Full { capacity: 6, .. })), "{full:?}");
    assert!(ledger.take(|| &after, released, "pod", Lease::Held).is_err());
    assert_eq!(rows(&ledger)[&held].lease, Lease::Endpoint(7));
}

fn listed(addresses: &[(&str, &str, bool)], by: ListedBy) -> Pools {
    let one = |&(address, owner, is_releasing): &(&str, &str, bool)| {
        (ip(address), ListedAddress { owner: owner.into(), is_releasing })
    };
    Pools::of_listed(Listed::new(addresses.iter().map(one).collect(), by), BOTH.to_vec())
}

#[test]
fn listed_addresses_are_allocated_by_owner_then_the_free_ones() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let list = [
        ("10.9.0.1", "a/1", false),
        ("10.0.0.2", "", false),
        ("192.0.2.3", "", true),
        ("10.7.0.4", "a/4", true),
        ("fd00::1", "", false),
    ];
    let users = listed(&list, ListedBy::Users);
    let mut allocate = |pools: &Pools, owner: &str| {
        let given = ledger.allocate(|| pools, &default_pool, &[Family::V4], owner, None, &mut randomness);
        given.map(|given| given[0].address.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(allocate(&users, "a/1").unwrap(), "10.9.0.1");
    // An owner whose address is being released gets another one.
    assert_eq!(allocate(&users, "a/4").unwrap(), "10.0.0.2");
    let none = "no IPs currently available on the node, allocation will be retried once IPs are added to CiliumNode \
                spec.ipam.pool: range is full: pool default has 4 IPv4 addresses on this node, namespace a holds 2 of them";
    assert_eq!(allocate(&users, "b/1").unwrap_err(), none);
    // Its own address is free for its owner at once, and for no other.
    assert_eq!(ledger.release(ip("10.9.0.1"), None, now), Ok(true));
    assert_eq!(allocate(&users, "b/1").unwrap_err().split(": ").next(), none.split(": ").next());
    assert_eq!(allocate(&users, "a/1").unwrap(), "10.9.0.1");
    // A free one has its quarantine, unless there is no other.
    assert_eq!(ledger.release(ip("10.0.0.2"), None, now), Ok(true));
    assert_eq!(allocate(&users, "b/1").unwrap(), "10.0.0.2");

    // The operator's owners are those of a cloud: none of them is an owner here.
    assert_eq!(ledger.release(ip("10.9.0.1"), None, now), Ok(true));
    let operator = listed(&list, ListedBy::Operator);
    let error = allocate(&operator, "a/1").unwrap_err();
    assert!(error.contains("will be retried once Cilium Operator allocates more IPs: "), "{error}");

    // The router's address of before goes to the router alone.
    let kept = listed(&[("10.1.0.1", "", false)], ListedBy::Users).keeping(&[ip("10.1.0.1")]);
    allocate(&kept, "b/2").unwrap_err();
    assert_eq!(ledger.take(|| &kept, ip("10.1.0.1"), "router", Lease::Held), Ok(()));
}

#[test]
fn listed_addresses_by_number() {
    let ledger = ledger();
    let pools = listed(
        &[("10.0.0.1", "", false), ("10.0.0.2", "a/2", false), ("10.0.0.3", "", true)],
        ListedBy::Users,
    );
    let take = |address: &str, owner: &str| {
        ledger.take(|| &pools, ip(address), owner, Lease::Held).map_err(|error| error.to_string())
    };
    assert_eq!(take("10.0.0.1", "a/1"), Ok(()));
    assert_eq!(take("10.0.0.1", "a/1"), Err("IP already in use".to_owned()));
    for (address, owner) in
        [("10.0.0.2", "a/1"), ("10.0.0.3", "a/3"), ("10.0.0.4", "a/4"), ("fd00::1", "a/1")]
    {
        assert_eq!(take(address, owner), Err(format!("IP {address} is not available")));
    }
    assert_eq!(take("10.0.0.2", "a/2"), Ok(()));
    // An endpoint that names its address: one of another allocator is its own affair, one in release is refused.
    assert_eq!(ledger.hand_over(|| &pools, [(ip("203.0.113.1"), None)], "a/5", 5), Ok(()));
    let refused = ledger.hand_over(|| &pools, [(ip("10.0.0.3"), None)], "a/5", 5);
    assert_eq!(refused, Err(Error::NotListed(ip("10.0.0.3"))));
    let waiting = pools.clone().waiting(Family::V4, "CiliumNode n1 has 0 addresses");
    let refused = ledger.take(|| &waiting, ip("10.0.0.3"), "a/1", Lease::Held).unwrap_err().to_string();
    assert_eq!(refused, "no IPv4 address can be allocated yet: CiliumNode n1 has 0 addresses");
}

#[test]
fn addresses_by_number() {
    let ledger = ledger();
    let pools = pools(&["10.0.0.0/24"]);
    assert_eq!(ledger.take(|| &pools, ip("10.0.0.9"), "router", Lease::Held), Ok(()));
    let again = ledger.take(|| &pools, ip("10.0.0.9"), "pod", Lease::Held).unwrap_err();
    assert_eq!(again.to_string(), "provided IP is already allocated");
    for outside in ["10.0.0.0", "10.0.0.255", "10.0.1.1"] {
        let refused = ledger.take(|| &pools, ip(outside), "pod", Lease::Held).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "provided IP is not in the valid range. The range of valid IPs is 10.0.0.0/24"
        );
    }
}

#[test]
fn expiration_is_stopped_by_its_token_only() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let pools = pools(&["10.0.0.0/24"]);
    let given = ledger
        .allocate(|| &pools, &default_pool, &[Family::V4], "pod", Some(now + EXPIRATION), &mut randomness)
        .unwrap();
    let address = given[0].address;
    let Lease::Expiring { uuid, .. } = &given[0].lease else { panic!("{given:?}") };
    let wrong = ledger.hand_over(|| &pools, [(address, Some("other"))], "pod", 7);
    assert_eq!(wrong, Err(Error::UuidMismatch));
    let both = [(address, Some(&**uuid)), (ip("10.0.0.200"), Some("other"))];
    assert_eq!(ledger.hand_over(|| &pools, both, "pod", 7), Err(Error::NoTimer), "all or none");
    ledger.hand_over(|| &pools, [(address, Some(&**uuid))], "pod", 7).unwrap();
    let twice = ledger.hand_over(|| &pools, [(address, Some(&**uuid))], "pod", 7);
    assert_eq!(twice, Err(Error::NoTimer));
    assert_eq!(ledger.sweep(now + EXPIRATION * 2), (vec![], None));
    assert_eq!(ledger.release(address, None, now), Err(Error::InUse));
    assert_eq!(ledger.release(address, Some(8), now), Ok(false), "another endpoint's");
    assert_eq!(ledger.release(address, Some(7), now), Ok(true));
}

#[test]
fn the_expired_rest_and_come_back() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let pools = pools(&["10.0.0.0/24"]);
    let given = ledger
        .allocate(|| &pools, &default_pool, &[Family::V4], "pod", Some(now + EXPIRATION), &mut randomness)
        .unwrap();
    assert_eq!(ledger.sweep(now), (vec![], Some(now + EXPIRATION)));
    let later = now + EXPIRATION;
    assert_eq!(ledger.sweep(later), (given, Some(later + QUARANTINE)));
    assert_eq!(ledger.sweep(later + QUARANTINE), (vec![], None));
    assert!(rows(&ledger).is_empty());
}

#[test]
fn a_released_address_is_the_last_to_be_given_again() {
    let (ledger, now, mut randomness) = (ledger(), Instant::now(), Counting(1));
    let pools = pools(&["10.0.0.0/29"]);
    let mut one = || {
        ledger.allocate(|| &pools, &default_pool, &[Family::V4], "pod", None, &mut randomness).unwrap()[0]
            .address
    };
    let (first, second) = (one(), one());
    ledger.release(second, None, now).unwrap();
    ledger.release(first, None, now + Duration::from_secs(1)).unwrap();
    let fresh: Vec<IpAddr> = (0..4).map(|_| one()).collect();
    assert!(!fresh.contains(&first) && !fresh.contains(&second));
    assert_eq!(one(), second, "released before the other");
    assert_eq!(one(), first);
}

#[derive(Debug, Clone)]
enum Step {
    Allocate,
    Take(u8),
    Release(u8),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Allocate),
        2 => any::<u8>().prop_map(Step::Take),
        3 => any::<u8>().prop_map(Step::Release),
        1 => (0..40u16).prop_map(Step::Wait),
    ]
}

proptest! {
    /// No address is allocated twice, none outside the range, and `range is full` is returned exactly when it is.
    #[test]
    fn the_ledger_agrees_with_a_set(steps in prop::collection::vec(step(), 0..200), seed: u64) {
        let (ledger, mut now, mut randomness) = (ledger(), Instant::now(), Counting(u128::from(seed)));
        let pools = pools(&["192.0.2.0/28"]);
        let range = crate::PodRange::new("192.0.2.0/28".parse().unwrap());
        let host = |n: u8| IpAddr::from([192, 0, 2, n % 16]);
        let mut held = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                Step::Allocate => {
                    match ledger.allocate(|| &pools, &default_pool, &BOTH, "pod", None, &mut randomness) {
                        Ok(given) => {
                            prop_assert_eq!(given.len(), 1);
                            prop_assert!(range.contains(given[0].address));
                            prop_assert!(held.insert(given[0].address), "given twice");
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, Error::Full { .. }), "{}", error);
                            prop_assert_eq!(held.len(), 14);
                        }
                    }
                }
                Step::Take(n) => {
                    let taken = ledger.take(|| &pools, host(n), "pod", Lease::Held);
                    let free = range.contains(host(n)) && !held.contains(&host(n));
                    prop_assert_eq!(taken.is_ok(), free);
                    if free {
                        held.insert(host(n));
                    }
                }
                Step::Release(n) => {
                    let released = ledger.release(host(n), None, now).unwrap();
                    prop_assert_eq!(released, held.remove(&host(n)));
                }
                Step::Wait(seconds) => {
                    now += Duration::from_secs(u64::from(seconds));
                    prop_assert_eq!(ledger.sweep(now).0, vec![]);
                }
            }
            let allocated: std::collections::BTreeSet<IpAddr> =
                rows(&ledger).into_values().filter(Address::allocated).map(|row| row.address).collect();
            prop_assert_eq!(&allocated, &held);
        }
    }
}

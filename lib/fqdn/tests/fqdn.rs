//! Patterns compared with their regular expressions, caches with naive models, records with those of Cilium.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use fqdn::{
    Cache, History, Limits, Lookup, Names, Pattern, RestoredRules, Rules, Selector, ServerRules, canonical,
    port_key,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use regex::Regex;
use serde_json::json;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn lookup(name: &str, addresses: &[u8], ttl: u32, seconds: i64) -> Lookup {
    Lookup::new(name, addresses.iter().map(|last| ip(*last)).collect(), ttl, at(seconds))
}

#[test]
fn patterns_match_names_as_documented() {
    for (pattern, matching, others) in [
        ("*.a.io", &["x.a.io."][..], &["a.io.", "x.y.a.io."][..]),
        ("**.a.io", &["x.a.io.", "x.y.a.io.", "x.y.z.a.io."], &["a.io.", "xa.io."]),
        ("*a.io", &["a.io.", "xa.io."], &["x.a.io."]),
        ("**a.io", &["a.io.", "xa.io."], &["x.a.io."]),
        ("x.**.io", &["x.a.io."], &["x.a.b.io.", "x.io."]),
        ("*", &["a.io.", "."], &[r"a\.b.io.", r"\200.io."]),
        ("*.", &["a.io.", "."], &[r"a\.b.io."]),
        ("A.io", &["a.io."], &["b.a.io.", "a.iox."]),
        ("a.io.", &["a.io."], &["axio."]),
        ("a*b*c.io", &["abc.io.", "aXbYbc.io."], &["ab.io.", "ab.c.io."]),
    ] {
        let compiled = Pattern::parse(pattern);
        for name in matching {
            assert!(compiled.matches(&canonical(name)), "{pattern} {name}");
        }
        for name in others {
            assert!(!compiled.matches(&canonical(name)), "{pattern} {name}");
        }
    }
}

#[test]
fn texts_of_requests_are_validated() {
    assert_eq!(Pattern::checked(&"a".repeat(255)).unwrap().text().len(), 256);
    assert!(Pattern::checked(&"a".repeat(256)).is_err());
    assert!(Pattern::checked("a/b").is_err());
    assert_eq!(Pattern::checked(" *.A ").unwrap().text(), "*.a.");
}

#[test]
fn rules_combine_names_and_patterns() {
    let rules = Rules::new([("a.io", "*.b.io"), ("", "c.io")]);
    assert!(["a.io.", "x.b.io.", "c.io."].iter().all(|name| rules.allow(name)));
    assert!(!rules.allow("b.io."));
    assert_eq!(rules.expression(), "^(?:[-a-zA-Z0-9_]*[.]b[.]io[.]|a[.]io[.]|c[.]io[.])$");
    // An empty element denies everything; one of stars allows even names that `*` of a selector does not match.
    assert!(!Rules::new([("", "")]).allow("a.io."));
    assert_eq!(Rules::new([("", "")]).expression(), "^-$");
    let every = Rules::new([("a.io", ""), ("", "*")]);
    assert!(every.allow(r"a\.b.io."));
    assert_eq!(every.expression(), "(?:)");
}

#[test]
fn rules_of_records_are_checked_by_server_and_port() {
    let restored = RestoredRules::from_record(&json!({
        "17891381": [
            {"Re": "^(?:[-a-zA-Z0-9_]*[.]a[.]io[.])$", "IPs": {"10.0.0.10": {}, "10.1.0.0/16": {}}},
            {"Re": "^(?:b[.]io[.])$", "IPs": null},
            {"Re": "^(?:c[.]io[.])$", "IPs": {}},
            {"Re": "(", "IPs": null},
        ],
        "17170485": null,
    }));
    let server: IpAddr = "10.0.0.10".parse().unwrap();
    let other: IpAddr = "10.2.0.10".parse().unwrap();
    assert!(restored.allow(17, 53, server, "x.a.io."));
    assert!(restored.allow(17, 53, "10.1.2.3".parse().unwrap(), "x.a.io."));
    assert!(!restored.allow(17, 53, other, "x.a.io."));
    assert!(restored.allow(17, 53, other, "b.io."));
    assert!(!restored.allow(6, 53, server, "b.io."));
    assert!(!restored.allow(17, 53, server, "c.io."));
    let servers = Some(vec!["10.0.0.10/32".parse().unwrap(), "fd00::/8".parse().unwrap()]);
    let of_servers = ServerRules { servers, names: Rules::new([("a.io", "")]) };
    let of_any = ServerRules { servers: None, names: Rules::Every };
    let rules = BTreeMap::from([(port_key(6, 53), vec![of_servers, of_any])]);
    let record = RestoredRules::to_record(&rules);
    let expected = json!({"17170485": [
        {"Re": "^(?:a[.]io[.])$", "IPs": {"10.0.0.10": {}, "fd00::/8": {}}},
        {"Re": "(?:)", "IPs": null},
    ]});
    assert_eq!(record, expected);
    assert!(RestoredRules::from_record(&record).allow(6, 53, other, "whatever."));
}

#[test]
fn rules_of_thousands_of_names_are_read_back() {
    let names: Vec<String> = (0..3000).map(|i| format!("service-{i}.*.of.an-example.io")).collect();
    let names = Rules::new(names.iter().map(|name| ("", name.as_str())));
    let rules = BTreeMap::from([(port_key(17, 53), vec![ServerRules { servers: None, names }])]);
    let restored = RestoredRules::from_record(&RestoredRules::to_record(&rules));
    assert!(restored.allow(17, 53, ip(1), "service-2999.x.of.an-example.io."));
    assert!(!restored.allow(17, 53, ip(1), "service-3000.x.of.an-example.io."));
}

#[test]
fn records_have_the_form_of_cilium() {
    let limits = Limits::default();
    let mut history = History::default();
    history.insert(lookup("A.io", &[1, 2], 10, 0), &limits);
    history.insert(lookup("b.io", &[3], 600, 0), &limits);
    history.collect(at(20), &limits, |_| true);
    let (lookups, zombies) = history.to_record();
    assert_eq!(
        json!(lookups),
        json!([{
            "fqdn": "b.io.", "lookup-time": "2027-01-15T08:00:00Z", "expiration-time": "2027-01-15T08:10:00Z",
            "ttl": 600, "ips": ["192.0.2.3"],
        }])
    );
    let zombie = |ip: &str| {
        json!({
            "names": ["a.io."], "ip": ip, "alive-at": "2027-01-15T08:00:20Z",
            "delete-pending-at": "2027-01-15T08:00:20Z",
        })
    };
    let deletes = json!({"192.0.2.1": zombie("192.0.2.1"), "192.0.2.2": zombie("192.0.2.2")});
    assert_eq!(json!(zombies), json!({"deletes": deletes}));
    let (restored, errors) = History::from_record(&lookups, &zombies);
    assert!(errors.is_empty());
    assert_eq!(restored, history);
}

#[test]
fn entries_of_records_that_cannot_be_read_are_left_out() {
    // Go writes local times and, for times that were never set, the year 1.
    let history = [
        json!({"fqdn": "a.io", "lookup-time": "2027-01-15T09:00:00.5+01:00",
               "expiration-time": "2027-01-15T09:01:00+01:00", "ttl": 60, "ips": ["192.0.2.1"]}),
        json!({"fqdn": 7}),
        json!({"fqdn": "b.io.", "ips": ["192.0.2.300"]}),
    ];
    let zombies = BTreeMap::from([(
        "deletes".to_owned(),
        json!({"192.0.2.9": {"names": ["z.io."], "ip": "192.0.2.9", "alive-at": "0001-01-01T00:00:00Z",
                             "delete-pending-at": "2027-01-15T09:01:00Z", "revisionAddedAt": 3}}),
    )]);
    let (restored, errors) = History::from_record(&history, &zombies);
    assert_eq!(errors.iter().map(|error| error.field).collect::<Vec<_>>(), ["DNSHistory", "DNSHistory"]);
    assert!(restored.contains("a.io.", ip(1)) && restored.contains("z.io.", ip(9)));
}

#[test]
fn addresses_are_kept_while_they_have_connections() {
    let limits = Limits::default();
    let mut history = History::default();
    history.insert(lookup("a.io", &[1, 2], 5, 0), &limits);
    // Expired, but the workload may just be about to connect.
    assert!(history.collect(at(60), &limits, |_| false).is_empty());
    // A connection to one address keeps its siblings.
    assert!(history.collect(at(120), &limits, |address| address == ip(1)).is_empty());
    assert_eq!(history.zombies().len(), 2);
    let removed = history.collect(at(180), &limits, |_| false);
    assert_eq!(removed, [("a.io.".into(), ip(1)), ("a.io.".into(), ip(2))]);
    assert!(history.names().is_empty());
    // An idle period keeps it longer.
    let limits = Limits { idle_grace_period: SignedDuration::from_secs(100), ..limits };
    history.insert(lookup("a.io", &[1], 5, 200), &limits);
    history.collect(at(260), &limits, |_| true);
    assert!(history.collect(at(359), &limits, |_| false).is_empty());
    assert_eq!(history.collect(at(420), &limits, |_| false).len(), 1);
}

/// A TTL of 0 with a minimum of 0 and of an hour.
#[test]
fn a_minimum_keeps_addresses_of_answers_that_expire_at_once() {
    for (min_ttl, is_kept) in [(0, false), (3600, true)] {
        let limits = Limits { min_ttl, ..Limits::default() };
        let mut history = History::default();
        history.insert(lookup("a.io", &[1], 0, 0), &limits);
        assert!(history.contains("a.io.", ip(1)), "until the first collection in any case");
        history.collect(at(60), &limits, |_| false);
        assert_eq!(history.zombies().is_empty(), is_kept, "{min_ttl}");
        history.collect(at(120), &limits, |_| false);
        history.collect(at(180), &limits, |_| false);
        assert_eq!(history.contains("a.io.", ip(1)), is_kept, "{min_ttl}");
        history.collect(at(3600), &limits, |_| true);
        assert_eq!(history.cache().addresses("a.io.").count(), 0, "the minimum is no longer than that");
    }
}

#[test]
fn a_new_lookup_ends_the_wait_for_connections() {
    let limits = Limits::default();
    let mut history = History::default();
    history.insert(lookup("a.io", &[1], 5, 0), &limits);
    history.collect(at(60), &limits, |_| true);
    history.insert(lookup("a.io", &[1], 5, 61), &limits);
    assert!(history.zombies().is_empty());
    assert!(history.contains("a.io.", ip(1)));
}

#[test]
fn those_that_expire_first_leave_when_a_name_has_too_many() {
    let limits = Limits { addresses_per_name: 2, ..Limits::default() };
    let mut history = History::default();
    for (last, ttl) in [(1, 600), (2, 300), (3, 500), (4, 400)] {
        history.insert(lookup("a.io", &[last], ttl, 0), &limits);
    }
    assert!(history.collect(at(10), &limits, |_| false).is_empty());
    assert_eq!(history.cache().addresses("a.io.").collect::<Vec<_>>(), [ip(1), ip(3)]);
    // The others are kept as long as connections, up to the limit again.
    assert_eq!(history.zombies().len(), 2);
    history.insert(lookup("a.io", &[5], 900, 20), &limits);
    let removed = history.collect(at(30), &limits, |address| address != ip(2));
    assert_eq!(removed, [("a.io.".into(), ip(2))], "the one without a connection");
}

#[test]
fn zombies_are_evicted_by_age_of_their_connection() {
    let limits = Limits { zombies: 2, ..Limits::default() };
    let mut history = History::default();
    for last in 1..=4 {
        history.insert(lookup(&format!("{last}.io"), &[last], u32::from(last), 0), &limits);
    }
    history.insert(lookup("four.io", &[4], 1, 0), &limits);
    let removed = history.collect(at(10), &limits, |address| address == ip(1));
    let names: Vec<&str> = removed.iter().map(|(name, _)| &**name).collect();
    // The first has a connection, the last has two names.
    assert_eq!(names, ["2.io.", "3.io."]);
}

#[test]
fn an_endpoint_cannot_fill_the_memory() {
    let limits = Limits { entries: 100, ..Limits::default() };
    let mut names = Names::new(limits);
    names.select(Selector::pattern("*"));
    for i in 0..2000_u16 {
        let [high, low] = i.to_be_bytes();
        let address = IpAddr::from([10, 0, high, low]);
        names.insert(1, Lookup::new(&format!("{i}.io"), vec![address], 3600, at(i.into())));
    }
    let history = names.history(1).unwrap();
    assert!(history.cache().len() <= 100 && history.zombies().len() <= 100);
    assert_eq!(names.all().len(), history.names().len());
    assert_eq!(names.selected().len(), names.all().len());
    assert!(names.history(1).unwrap().contains("1999.io.", [10, 0, 7, 207].into()), "the latest stays");
}

#[test]
fn names_of_one_address_with_a_connection_cannot_fill_the_memory() {
    let limits = Limits { entries: 100, ..Limits::default() };
    let mut names = Names::new(limits);
    names.select(Selector::pattern("*.io"));
    let is_bounded = |names: &Names| {
        let pairs = names.history(1).unwrap().zombies().pairs();
        names.all().len() <= 200
            && pairs <= 100
            && names.history(1).unwrap().names().len() == names.all().len()
    };
    for i in 0..2000 {
        names.insert(1, Lookup::new(&format!("{i}.io"), vec![ip(1)], 3600, at(i)));
        assert!(is_bounded(&names), "{i}");
    }
    assert!(names.history(1).unwrap().zombies().pairs() > 80);
    names.collect(at(10_000), |_, _| true);
    assert!(is_bounded(&names));
    assert!(names.selectors_of(ip(1)).is_some(), "the connection keeps the address");
    names.collect(at(20_000), |_, _| false);
    assert!(names.all().is_empty() && names.history(1).unwrap().zombies().pairs() == 0);
}

#[test]
fn many_names_of_one_address_do_not_cost_the_square_of_their_number() {
    let mut names = Names::new(Limits::default());
    for i in 0..4 {
        names.select(Selector::pattern(&format!("*{i}.io")));
    }
    let start = std::time::Instant::now();
    for i in 0..10_000 {
        // Half of them expire first.
        let ttl = 60 + 600 * (i % 2);
        names.insert(1, Lookup::new(&format!("{i}.io"), vec![ip(1)], ttl, at(0)));
    }
    assert_eq!(names.selectors_of(ip(1)).unwrap().len(), 4);
    names.collect(at(500), |_, _| false);
    names.collect(at(600), |_, _| false);
    assert_eq!(names.all().len(), 5000);
    assert_eq!(names.selectors_of(ip(1)).unwrap().len(), 2, "those of odd names");
    // The square takes minutes.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn selectors_apply_to_names_of_all_endpoints() {
    let mut names = Names::new(Limits::default());
    assert!(names.insert(1, lookup("www.a.io", &[1], 60, 0)).is_empty(), "no selector");
    let by_pattern = Selector::pattern("*.a.io");
    let by_name = Selector::name("WWW.a.io");
    let changes = names.select(by_pattern.clone());
    assert_eq!(*changes[&ip(1)], BTreeSet::from([by_pattern.clone()]), "looked up before the rule");
    assert_eq!(*names.select(by_name.clone())[&ip(1)], BTreeSet::from([by_name.clone(), by_pattern.clone()]));
    assert!(names.insert(2, lookup("www.a.io", &[1], 60, 1)).is_empty(), "known already");
    let changes = names.insert(2, lookup("b.a.io", &[1, 2], 60, 1));
    assert_eq!(changes.keys().collect::<Vec<_>>(), [&ip(2)]);
    // Another endpoint still has the name.
    assert!(names.remove_endpoint(1).is_empty());
    assert_eq!(*names.deselect(&by_name)[&ip(1)], BTreeSet::from([by_pattern.clone()]));
    let changes = names.clear(Some(&Pattern::parse("www.a.io")));
    assert!(changes.is_empty(), "the address has another name of the pattern");
    let changes = names.clear(None);
    assert!(changes.len() == 2 && changes.values().all(|selectors| selectors.is_empty()));
    assert!(names.selected().is_empty() && names.all().is_empty());
}

#[test]
fn an_empty_selector_selects_nothing() {
    let mut names = Names::new(Limits::default());
    names.insert(1, lookup("a.io", &[1], 60, 0));
    assert!(names.select(Selector::default()).is_empty());
    assert!(names.selectors().is_empty());
}

#[test]
fn a_restored_history_has_the_same_selectors() {
    let selector = Selector::name("a.io");
    let mut names = Names::new(Limits::default());
    names.select(selector.clone());
    names.insert(7, lookup("a.io", &[1], 5, 0));
    names.insert(7, lookup("a.io", &[2], 500, 0));
    names.collect(at(60), |_, address| address == ip(1));
    let (history, zombies) = names.history(7).unwrap().to_record();
    let mut restored = Names::new(Limits::default());
    restored.select(selector);
    let changes = restored.restore(7, History::from_record(&history, &zombies).0);
    assert_eq!(changes, names.selected());
    let (changes, count) = restored.collect(at(150), |_, _| false);
    assert_eq!((changes.len(), count), (1, 1));
}

/// A step of the random tests.
#[derive(Debug, Clone)]
enum Step {
    Lookup { endpoint: u16, name: u8, address: u8, ttl: u32 },
    Collect { connected: BTreeSet<(u16, u8)> },
    Remove { endpoint: u16 },
    Select(u8),
    Deselect(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let connected = proptest::collection::btree_set((0..3_u16, 0..6_u8), 0..4);
    prop_oneof![
        5 => (0..3_u16, 0..4_u8, 0..6_u8, 0..200_u32)
            .prop_map(|(endpoint, name, address, ttl)| Step::Lookup { endpoint, name, address, ttl }),
        2 => connected.prop_map(|connected| Step::Collect { connected }),
        1 => (0..3_u16).prop_map(|endpoint| Step::Remove { endpoint }),
        1 => (0..4_u8).prop_map(Step::Select),
        1 => (0..4_u8).prop_map(Step::Deselect),
    ]
}

/// Two by pattern, two by name; the names are `0.io` to `3.io`.
fn selector(index: u8) -> Selector {
    match index {
        0 => Selector::pattern("*"),
        1 => Selector::pattern("*2.io"),
        other => Selector::name(&format!("{other}.io")),
    }
}

/// A pair of an endpoint: when it expires, and since when it waits for connections.
#[derive(Debug, Clone, Copy)]
enum Held {
    Until(i64),
    Zombie { since: i64 },
}

/// Pairs by endpoint, name and address, without any index.
#[derive(Default)]
struct Model {
    held: BTreeMap<(u16, u8, u8), Held>,
    selectors: BTreeSet<u8>,
}

impl Model {
    fn collect(&mut self, now: i64, connected: &BTreeSet<(u16, u8)>) {
        let expired: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| matches!(held, Held::Until(t) if *t <= now))
            .map(|(k, _)| *k)
            .collect();
        for key in expired {
            self.held.insert(key, Held::Zombie { since: now });
            // Names of one address of an endpoint expire together: the latest counts.
            for ((endpoint, _, address), held) in &mut self.held {
                if (*endpoint, *address) == (key.0, key.2) && matches!(held, Held::Zombie { .. }) {
                    *held = Held::Zombie { since: now };
                }
            }
        }
        let zombies: Vec<((u16, u8, u8), i64)> = self
            .held
            .iter()
            .filter_map(
                |(key, held)| if let Held::Zombie { since } = held { Some((*key, *since)) } else { None },
            )
            .collect();
        let in_use: BTreeSet<(u16, u8)> = zombies
            .iter()
            .filter(|((endpoint, _, address), _)| connected.contains(&(*endpoint, *address)))
            .map(|((endpoint, name, _), _)| (*endpoint, *name))
            .collect();
        let dead = zombies.iter().filter(|((endpoint, _, address), since)| {
            // All names of an address stay with it.
            let mut names = zombies.iter().filter(|((e, _, a), _)| (e, a) == (endpoint, address));
            let is_needed = names.any(|((e, name, _), _)| in_use.contains(&(*e, *name)));
            !is_needed && now - since >= 60
        });
        for (key, _) in dead {
            self.held.remove(key);
        }
    }

    fn selected(&self) -> BTreeMap<IpAddr, BTreeSet<Selector>> {
        let mut selected: BTreeMap<IpAddr, BTreeSet<Selector>> = BTreeMap::new();
        for (_, name, address) in self.held.keys() {
            let text = format!("{name}.io.");
            for index in &self.selectors {
                let selector = selector(*index);
                let expression = Pattern::parse(selector.label_key()).expression();
                if Regex::new(&expression).unwrap().is_match(&text) {
                    selected.entry(ip(*address)).or_default().insert(selector);
                }
            }
        }
        selected
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn patterns_match_what_their_expressions_match(
        pattern in "([ab*]{0,3}\\.){0,3}[ab*]{1,3}\\.?|\\*{1,2}\\.?",
        name in "([abX-]{0,3}\\.){0,4}[ab\\\\]{0,2}\\.?",
    ) {
        let compiled = Pattern::parse(&pattern);
        let name = canonical(&name);
        let expression = Regex::new(&compiled.expression()).unwrap();
        prop_assert_eq!(compiled.matches(&name), expression.is_match(&name), "{} {}", pattern, name);
        let rules = Rules::new([("", pattern.as_str())]);
        let expression = Regex::new(&rules.expression()).unwrap();
        prop_assert_eq!(rules.allow(&name), expression.is_match(&name), "{} {}", pattern, name);
    }

    #[test]
    fn a_cache_holds_the_lookup_that_expires_last(
        lookups in proptest::collection::vec((0..4_u8, 0..4_u8, 0..50_u32, 0..100_i64), 0..40),
        now in 0..150_i64,
    ) {
        let mut cache = Cache::default();
        let mut model: BTreeMap<(String, IpAddr), i64> = BTreeMap::new();
        for (name, address, ttl, seconds) in lookups {
            let name = format!("{name}.io.");
            cache.insert(&lookup(&name, &[address], ttl, seconds));
            let expires = seconds + i64::from(ttl);
            let latest = model.entry((name, ip(address))).or_insert(expires);
            *latest = expires.max(*latest);
        }
        let expired = cache.expire(at(now)).len();
        let before = model.len();
        model.retain(|_, expires| *expires > now);
        prop_assert_eq!(expired, before - model.len());
        prop_assert_eq!(cache.len(), model.len());
        for ((name, address), expires) in &model {
            prop_assert!(cache.contains(name, *address));
            let lookup = cache.lookups().into_iter().find(|l| *l.name == **name && l.addresses.contains(address));
            prop_assert_eq!(lookup.unwrap().expiration_time, at(*expires));
        }
    }

    #[test]
    fn names_equal_a_naive_model_after_any_steps(steps in proptest::collection::vec(step(), 0..60)) {
        let mut names = Names::new(Limits::default());
        let mut model = Model::default();
        let mut seen: BTreeMap<IpAddr, BTreeSet<Selector>> = BTreeMap::new();
        for (now, step) in (0..).step_by(25).zip(steps) {
            let changes = match &step {
                Step::Lookup { endpoint, name, address, ttl } => {
                    let held = model.held.entry((*endpoint, *name, *address)).or_insert(Held::Until(0));
                    let expires = now + i64::from(*ttl);
                    *held = match held {
                        Held::Until(old) => Held::Until(expires.max(*old)),
                        Held::Zombie { .. } => Held::Until(expires),
                    };
                    names.insert(*endpoint, lookup(&format!("{name}.io"), &[*address], *ttl, now))
                }
                Step::Collect { connected } => {
                    model.collect(now, connected);
                    names.collect(at(now), |endpoint, address| {
                        connected.iter().any(|(e, a)| (*e, ip(*a)) == (endpoint, address))
                    }).0
                }
                Step::Remove { endpoint } => {
                    model.held.retain(|(of, _, _), _| of != endpoint);
                    names.remove_endpoint(*endpoint)
                }
                Step::Select(index) => {
                    model.selectors.insert(*index);
                    names.select(selector(*index))
                }
                Step::Deselect(index) => {
                    model.selectors.remove(index);
                    names.deselect(&selector(*index))
                }
            };
            for (address, selectors) in changes {
                match selectors.is_empty() {
                    true => prop_assert!(seen.remove(&address).is_some(), "a change without effect"),
                    false => prop_assert!(seen.insert(address, (*selectors).clone()) != Some((*selectors).clone())),
                }
            }
            prop_assert_eq!(&seen, &model.selected(), "after {:?} at {}", step, now);
        }
    }
}

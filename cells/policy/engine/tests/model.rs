//! Any order of changes yields the rows of a fresh engine, and rows have the verdicts of the rules.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use labels::{Label, LabelArray, LabelRef};
use policy_engine::{
    Action, Authentication, Change, CidrGroup, CidrGroups, CidrSelector, Decision, Direction, Enforcement,
    Engine, Entry, HOST, HttpRule, Kind, L7Rules, NamedPorts, Peers, Policy, Port, PortSpec, Ports,
    ProxyPorts, ProxyRules, Reason, Redirect, RedirectSpec, Requirement, Resolved, ResourceId, Row, Selector,
    SelectorRow, SelectorText, Settings, Subject, Test, Tier,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const INIT: u32 = 5;
const UNKNOWN: u32 = 59999;
const PODS: std::ops::Range<u32> = 100..106;
const PREFIXES: [&str; 4] = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "192.0.2.1/32"];
const LIMIT: usize = usize::MAX;

/// A change of an engine's input.
#[derive(Debug, Clone)]
enum Step {
    Set(Policy),
    Remove(ResourceId),
    Add(u32, LabelArray, NamedPorts),
    Gone(u32),
    Groups(CidrGroups),
    Settings(Settings),
}

/// The complete input of an engine.
#[derive(Debug, Clone, Default)]
struct World {
    settings: Settings,
    policies: BTreeMap<ResourceId, Policy>,
    identities: BTreeMap<u32, (LabelArray, NamedPorts)>,
    groups: CidrGroups,
}

impl World {
    fn apply(&mut self, engine: &mut Engine, step: Step) -> Change {
        match step {
            Step::Set(policy) => {
                self.policies.insert(policy.resource.clone(), policy.clone());
                engine.set(policy)
            }
            Step::Remove(resource) => {
                self.policies.remove(&resource);
                engine.remove(&resource)
            }
            Step::Add(id, labels, ports) => {
                self.identities.insert(id, (labels.clone(), ports.clone()));
                engine.add_identity(id, labels, ports)
            }
            Step::Gone(id) => {
                self.identities.remove(&id);
                engine.remove_identity(id)
            }
            Step::Groups(groups) => {
                self.groups = groups.clone();
                engine.set_cidr_groups(&groups)
            }
            Step::Settings(settings) => {
                self.settings = settings.clone();
                engine.set_settings(settings)
            }
        }
    }

    fn fresh(&self) -> Engine {
        let mut engine = Engine::new(self.settings.clone());
        engine.set_proxy_ports(Arc::new(Proxies));
        for (id, (labels, ports)) in &self.identities {
            engine.add_identity(*id, labels.clone(), ports.clone());
        }
        self.policies.values().for_each(|policy| drop(engine.set(policy.clone())));
        engine.set_cidr_groups(&self.groups);
        engine
    }

    /// Returns the labels of an identity, with those of the groups that contain its prefix.
    fn labels(&self, id: u32) -> Option<LabelArray> {
        let own = &self.identities.get(&id)?.0;
        let prefix = PREFIXES.iter().find(|prefix| own.iter().any(|label| label.key == **prefix));
        let prefix: Option<ipnetwork::IpNetwork> = prefix.map(|text| text.parse().unwrap());
        let is_in = |group: &CidrGroup| {
            let inside = |outer: &ipnetwork::IpNetwork| {
                prefix.is_some_and(|inner| outer.prefix() <= inner.prefix() && outer.contains(inner.ip()))
            };
            group.prefixes.iter().any(inside)
        };
        let mut all: Vec<Label> = own.iter().map(LabelRef::to_label).collect();
        for (name, group) in self.groups.iter().filter(|(_, group)| is_in(group)) {
            let (_, kind) = group.labels.first_key_value().unwrap();
            let name = format!("cidrgroup:io.cilium.policy.cidrgroupname/{name}");
            let texts = [name, format!("cidrgroup:kind={kind}"), format!("cidrgroup:kind+{kind}")];
            all.extend(texts.iter().map(|text| Label::parse(text)));
        }
        Some(all.into_iter().collect())
    }
}

fn labels(texts: &[&str]) -> LabelArray {
    texts.iter().map(|text| Label::parse(text)).collect()
}

fn any_ports() -> impl Strategy<Value = NamedPorts> {
    let port = (prop_oneof![Just("http"), Just("dns")], prop_oneof![Just(6u8), Just(17)], 79u16..84);
    proptest::collection::vec(port, 0..3).prop_map(NamedPorts::from_iter)
}

fn any_identity() -> impl Strategy<Value = (u32, LabelArray)> {
    let prefixes = (0..PREFIXES.len()).prop_map(|index| {
        (0x100_0001 + index as u32, labels(&[&format!("cidr:{}", PREFIXES[index]), "reserved:world"]))
    });
    let pods = (PODS, "[abc]", "[xy]").prop_map(|(id, app, namespace)| {
        let namespace = format!("k8s:io.kubernetes.pod.namespace={namespace}");
        (id, labels(&[&format!("k8s:app={app}"), &namespace]))
    });
    prop_oneof![
        1 => prop_oneof![Just(labels(&["reserved:host"])), Just(labels(&["reserved:host", "k8s:app=a"]))]
            .prop_map(|labels| (HOST, labels)),
        1 => Just((INIT, labels(&["reserved:init"]))),
        2 => prefixes,
        5 => pods,
    ]
}

fn any_cidr() -> impl Strategy<Value = Selector> {
    (0..PREFIXES.len(), proptest::collection::vec(0..PREFIXES.len(), 0..2)).prop_map(|(prefix, except)| {
        Selector::Cidr(CidrSelector {
            prefix: PREFIXES[prefix].parse().unwrap(),
            except: except.into_iter().map(|index| PREFIXES[index].parse().unwrap()).collect(),
            world: policy_engine::World::Any,
            bare: false,
        })
    })
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let requirement = |source: &str, key: &str, test| {
        Selector::Labels(vec![Requirement { source: source.to_owned(), key: key.to_owned(), test }])
    };
    prop_oneof![
        2 => Just(Selector::Labels(Vec::new())),
        4 => "[abc]".prop_map(|app| Selector::Labels(vec![Requirement::equals("any", "app", &app)])),
        1 => "[abc]".prop_map(move |app| requirement("k8s", "app", Test::NotIn(vec![app]))),
        1 => Just(requirement("k8s", "app", Test::In(vec!["a".to_owned(), "c".to_owned()]))),
        1 => Just(requirement("k8s", "io.kubernetes.pod.namespace", Test::Exists)),
        1 => Just(requirement("any", "app", Test::DoesNotExist)),
        1 => Just(Selector::reserved("host")),
        3 => any_cidr(),
        1 => "[gh]".prop_map(move |name| {
            requirement("cidrgroup", &format!("io.cilium.policy.cidrgroupname/{name}"), Test::Exists)
        }),
        1 => "[op]".prop_map(move |kind| requirement("cidrgroup", &format!("kind+{kind}"), Test::Exists)),
        1 => Just(Selector::None),
    ]
}

fn any_spec() -> impl Strategy<Value = PortSpec> {
    let name = (prop_oneof![Just("http"), Just("dns")], proptest::option::of(80u16..90));
    let port = prop_oneof![
        1 => Just(Port::All),
        3 => (76u16..86).prop_map(|port| Port::Range(port, port)),
        3 => (76u16..86, 0u16..9).prop_map(|(first, more)| Port::Range(first, first + more)),
        2 => name.prop_map(|(name, end)| Port::Named { name: name.into(), end }),
    ];
    let with_ports = (prop_oneof![Just(6u8), Just(17)], port);
    let icmp = (80u16..82).prop_map(|kind| (1u8, Port::Range(kind, kind)));
    prop_oneof![6 => with_ports, 1 => icmp].prop_map(|(protocol, port)| PortSpec { protocol, port })
}

/// Returns an action with tier, priority and default deny.
fn any_rank() -> impl Strategy<Value = (Action, Tier, u32, bool)> {
    let normal = (prop_oneof![3 => Just(Action::Allow), 1 => Just(Action::Deny)], prop::bool::weighted(0.7))
        .prop_map(|(action, default_deny)| (action, Tier::Normal, 0, default_deny));
    let action = prop_oneof![1 => Just(Action::Allow), 1 => Just(Action::Deny), 2 => Just(Action::Pass)];
    let other = (action, prop_oneof![Just(Tier::Admin), Just(Tier::Baseline)], 0u32..4)
        .prop_map(|(action, tier, priority)| (action, tier, priority, false));
    prop_oneof![3 => normal, 2 => other]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let subject = prop_oneof![
        5 => any_selector().prop_map(Subject::Endpoints),
        1 => any_selector().prop_map(Subject::Node),
    ];
    let peers = prop_oneof![
        2 => Just(Peers::All),
        1 => Just(Peers::Nothing),
        7 => proptest::collection::vec(any_selector(), 1..4).prop_map(Peers::Of),
    ];
    let ports = prop_oneof![
        2 => Just(Ports::All),
        5 => proptest::collection::vec(any_spec(), 0..4).prop_map(Ports::Of),
    ];
    let direction = prop_oneof![Just(Direction::Ingress), Just(Direction::Egress)];
    let redirects = prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(any_spec(), 1..3)];
    // One mode and one kind of rules: others contradict each other.
    let authentication = prop::option::weighted(0.2, Just(Authentication::Required));
    let to_proxy = (redirects, authentication);
    (subject, direction, any_rank(), peers, ports, to_proxy).prop_map(
        |(subject, direction, (action, tier, priority, default_deny), peers, ports, to_proxy)| Entry {
            redirects: match (action, &ports) {
                (Action::Allow, Ports::Of(_)) => to_proxy.0.into_iter().map(redirect).collect(),
                _ => Vec::new(),
            },
            services: Vec::new(),
            authentication: to_proxy.1.filter(|_| action == Action::Allow),
            subject,
            direction,
            action,
            tier,
            priority,
            default_deny,
            peers,
            ports,
            path: "".into(),
            labels: [].into(),
            log: "".into(),
        },
    )
}

fn redirect(port: PortSpec) -> RedirectSpec {
    let http = L7Rules::Http([HttpRule::default()].into());
    RedirectSpec { port, rules: Arc::new(ProxyRules { l7: http, ..ProxyRules::default() }) }
}

/// Proxies with a port that depends on the redirect.
#[derive(Debug)]
struct Proxies;

impl ProxyPorts for Proxies {
    fn port(&self, redirect: &Redirect) -> Option<u16> {
        Some(10_000 + redirect.port)
    }
}

fn resource(name: &str) -> ResourceId {
    let kind = Kind::CiliumClusterwideNetworkPolicy;
    ResourceId { kind, namespace: "".into(), name: name.into() }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    ("[pqr]", proptest::collection::vec(any_entry(), 1..5)).prop_map(|(name, mut entries)| {
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.path = format!("specs[{index}]").into();
        }
        Policy { resource: resource(&name), uid: "".into(), entries, warnings: Vec::new() }
    })
}

fn any_groups() -> impl Strategy<Value = CidrGroups> {
    let prefixes = proptest::collection::btree_set(0..PREFIXES.len(), 0..3);
    let group = ("[op]", prefixes).prop_map(|(kind, prefixes)| CidrGroup {
        labels: BTreeMap::from([("kind".to_owned(), kind)]),
        prefixes: prefixes.into_iter().map(|index| PREFIXES[index].parse().unwrap()).collect(),
    });
    proptest::collection::btree_map("[gh]".prop_map(Arc::from), group, 0..3)
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => any_groups().prop_map(Step::Groups),
        4 => any_policy().prop_map(Step::Set),
        1 => "[pqr]".prop_map(|name| Step::Remove(resource(&name))),
        6 => (any_identity(), any_ports()).prop_map(|((id, labels), ports)| Step::Add(id, labels, ports)),
        2 => any_identity().prop_map(|(id, _)| Step::Gone(id)),
        1 => any_settings().prop_map(Step::Settings),
    ]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let enforcement = prop_oneof![
        6 => Just(Enforcement::Default), 1 => Just(Enforcement::Always), 1 => Just(Enforcement::Never),
    ];
    (enforcement, any::<bool>(), any::<bool>()).prop_map(|(enforcement, host_firewall, allow_localhost)| {
        Settings { enforcement, host_firewall, allow_localhost, ..Settings::default() }
    })
}

/// Returns rows with their explanations, which must not depend on the order of changes.
fn explained(resolved: &Resolved) -> BTreeMap<String, (Row, String)> {
    let row = |(key, row): (&policy_engine::Key, &policy_engine::Row)| {
        let mut reason = resolved.reason(*row);
        if let Reason::Rules(matches) = &mut reason {
            matches.sort_by_key(|found| {
                (found.rule.resource.clone(), found.rule.path.clone(), found.selector.clone())
            });
        }
        (format!("{key:?}"), (Row { origin: 0, ..*row }, format!("{reason:?}")))
    };
    resolved.rows.iter().map(row).collect()
}

/// A model that decides by checking each rule.
struct Naive<'a> {
    world: &'a World,
    /// The labels of all identities in the world.
    labels: &'a BTreeMap<u32, LabelArray>,
    subject: u32,
    ports: &'a NamedPorts,
}

impl Naive<'_> {
    fn is_about(&self, direction: Direction, entry: &Entry) -> bool {
        let subject = &self.labels[&self.subject];
        entry.direction == direction
            && match &entry.subject {
                Subject::Endpoints(selector) => self.subject != HOST && selector.matches(subject),
                Subject::Node(selector) => self.subject == HOST && selector.matches(subject),
            }
    }

    fn rules(&self, direction: Direction) -> impl Iterator<Item = &Entry> {
        let all = self.world.policies.values().flat_map(|policy| &policy.entries);
        all.filter(move |entry| self.is_about(direction, entry))
    }

    /// Returns the denies that decide about a packet, or else the allows; empty if no rule does.
    fn decisive(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Vec<&Entry> {
        for tier in [Tier::Admin, Tier::Normal, Tier::Baseline] {
            let of_tier = self.rules(direction).filter(|rule| rule.tier == tier);
            let matching: Vec<_> = of_tier.filter(|rule| self.matches(rule, peer, protocol, port)).collect();
            let first = matching.iter().map(|rule| rule.priority).min();
            for action in [Action::Deny, Action::Allow] {
                let effective = |rule: &&Entry| Some(rule.priority) == first && rule.action == action;
                let found: Vec<_> = matching.iter().copied().filter(effective).collect();
                if !found.is_empty() {
                    return found;
                }
            }
        }
        Vec::new()
    }

    fn decide(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Decision {
        if self.subject == HOST && !self.world.settings.host_firewall
            || self.world.settings.enforcement == Enforcement::Never
        {
            return Decision::Allow;
        }
        let rules: Vec<&Entry> = self.rules(direction).collect();
        let always = self.world.settings.enforcement == Enforcement::Always || self.subject == INIT;
        if rules.is_empty() {
            return if always { Decision::NoMatch } else { Decision::Allow };
        }
        if let Some(rule) = self.decisive(direction, peer, protocol, port).first() {
            return if rule.action == Action::Deny { Decision::Deny } else { Decision::Allow };
        }
        let localhost =
            self.world.settings.allow_localhost && self.subject != HOST && direction == Direction::Ingress;
        let default_deny = always || rules.iter().any(|rule| rule.default_deny);
        match () {
            () if !default_deny => Decision::Allow,
            () if localhost && peer == HOST => Decision::Allow,
            () if rules.iter().any(|rule| rule.action == Action::Pass) => Decision::Deny,
            () => Decision::NoMatch,
        }
    }

    /// Whether a rule matches the packet, for a proxy or not.
    fn matches(&self, rule: &Entry, peer: u32, protocol: u8, port: u16) -> bool {
        let plain = match &rule.ports {
            Ports::All => true,
            Ports::Of(list) => self.matches_one(list.iter(), rule, peer, protocol, port),
        };
        self.matches_peer(rule, peer) && plain || self.redirects(rule, peer, protocol, port)
    }

    /// Whether a rule sends the packet to a proxy.
    fn redirects(&self, rule: &Entry, peer: u32, protocol: u8, port: u16) -> bool {
        let specs = rule.redirects.iter().map(|redirect| &redirect.port);
        self.matches_peer(rule, peer) && self.matches_one(specs, rule, peer, protocol, port)
    }

    fn matches_peer(&self, rule: &Entry, peer: u32) -> bool {
        let labels = self.labels.get(&peer);
        let everyone = Selector::Labels(Vec::new());
        match &rule.peers {
            Peers::All => true,
            Peers::Nothing => false,
            Peers::Of(list) => list.iter().any(|selector| {
                *selector == everyone || labels.is_some_and(|labels| selector.matches(labels))
            }),
        }
    }

    fn matches_one<'a>(
        &self,
        mut specs: impl Iterator<Item = &'a PortSpec>,
        rule: &Entry,
        peer: u32,
        protocol: u8,
        port: u16,
    ) -> bool {
        let known = self.world.identities.get(&peer);
        let by_port = |spec: &PortSpec| {
            let of_name = |ports: &NamedPorts, name: &str| ports.port(name, protocol);
            spec.protocol == protocol
                && match &spec.port {
                    Port::All => true,
                    Port::Range(first, last) => (*first..=*last).contains(&port),
                    Port::Named { name, end } if rule.direction == Direction::Ingress => {
                        of_name(self.ports, name)
                            .is_some_and(|first| (first..=end.unwrap_or(first).max(first)).contains(&port))
                    }
                    Port::Named { name, .. } => {
                        known.and_then(|(_, ports)| of_name(ports, name)) == Some(port)
                    }
                }
        };
        specs.any(by_port)
    }
}

/// Returns the number of random sets: with `FULL=1` as many as a release is tested with.
fn cases() -> u32 {
    if std::env::var_os("FULL").is_some_and(|full| !full.is_empty()) { 10_000 } else { 300 }
}

/// Returns the seed of the random sets: `SEED`, else another one for each run, which is printed with a failure's output.
#[expect(clippy::print_stdout, reason = "a failure is repeated with it")]
fn seed() -> RngSeed {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("SEED={seed} repeats these sets");
    RngSeed::Fixed(seed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), rng_seed: seed(), ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_changes_yields_the_rows_of_a_fresh_engine(
        settings in any_settings(),
        own in any_ports(),
        steps in proptest::collection::vec(any_step(), 1..25),
    ) {
        let mut engine = Engine::new(settings.clone());
        engine.set_proxy_ports(Arc::new(Proxies));
        let mut world = World { settings, ..World::default() };
        let mut kept: BTreeMap<u32, Resolved> = BTreeMap::new();
        let mut listed: [BTreeMap<SelectorText, SelectorRow>; 2] = Default::default();
        for (n, step) in steps.into_iter().enumerate() {
            let before = engine.revision();
            let of_identity = matches!(step, Step::Add(..) | Step::Gone(_) | Step::Groups(_));
            let change = world.apply(&mut engine, step);
            prop_assert_eq!(change.revision, engine.revision());
            prop_assert!(!of_identity || before == engine.revision());
            kept.retain(|id, _| world.identities.contains_key(id));
            for id in &change.refresh {
                if let Some(resolved) = kept.get_mut(id) {
                    let old = resolved.rows.clone();
                    let changed = engine.refresh(resolved, &change.peers, LIMIT).unwrap();
                    // The reported changes are exactly the differences.
                    let mut replayed = old;
                    for (key, row) in changed {
                        let old = match row {
                            Some(row) => replayed.insert(key, row),
                            None => replayed.remove(&key),
                        };
                        prop_assert!(old.is_none_or(|old| row.is_none_or(|row| !row.same_effect(old))));
                    }
                    prop_assert!(replayed.keys().eq(resolved.rows.keys()));
                    prop_assert!(replayed.values().zip(resolved.rows.values()).all(|(a, b)| a.same_effect(*b)));
                }
            }
            for id in &change.subjects {
                if world.identities.contains_key(id) {
                    kept.insert(*id, engine.resolve(*id, &own, LIMIT).unwrap());
                }
            }
            let fresh = world.fresh();
            prop_assert_eq!(kept.keys().collect::<Vec<_>>(), world.identities.keys().collect::<Vec<_>>());
            for (id, resolved) in &kept {
                let new = fresh.resolve(*id, &own, LIMIT).unwrap();
                prop_assert_eq!(explained(resolved), explained(&new));
                prop_assert_eq!(
                    (resolved.ingress_enforced, resolved.egress_enforced),
                    (new.ingress_enforced, new.egress_enforced)
                );
            }
            // Endpoints with the same basis must have the same rows, because they are computed once.
            let mut of_basis = HashMap::new();
            for (id, resolved) in &kept {
                let (first, rows) = of_basis
                    .entry(engine.basis(*id).unwrap())
                    .or_insert_with(|| (*id, explained(resolved)));
                prop_assert_eq!(&*rows, &explained(resolved));
                prop_assert_eq!(engine.filters(*first), engine.filters(*id));
            }
            prop_assert_eq!(engine.selectors(), fresh.selectors());
            prop_assert_eq!(engine.subject_selectors(), fresh.subject_selectors());
            prop_assert_eq!(engine.prefixes(), fresh.prefixes());
            // Changes are taken after some steps only, and must be complete.
            if n % 3 != 2 {
                continue;
            }
            let changes = [engine.take_selector_changes(), engine.take_subject_selector_changes()];
            for (listed, changes) in listed.iter_mut().zip(changes) {
                for (text, row) in changes {
                    match row {
                        Some(row) => _ = listed.insert(text, row),
                        None => _ = listed.remove(&text),
                    }
                }
            }
            prop_assert!(listed[0].values().eq(fresh.selectors().iter()));
            prop_assert!(listed[1].values().eq(fresh.subject_selectors().iter()));
            prop_assert!(engine.take_selector_changes().is_empty());
        }
    }

    #[test]
    fn rows_have_the_verdicts_of_the_rules(
        settings in any_settings(),
        own in any_ports(),
        identities in proptest::collection::vec((any_identity(), any_ports()), 1..8),
        policies in proptest::collection::vec(any_policy(), 0..4),
        groups in any_groups(),
    ) {
        let mut world = World { settings, ..World::default() };
        let mut engine = Engine::new(world.settings.clone());
        engine.set_proxy_ports(Arc::new(Proxies));
        for ((id, labels), ports) in identities {
            world.apply(&mut engine, Step::Add(id, labels, ports));
        }
        for policy in policies {
            world.apply(&mut engine, Step::Set(policy));
        }
        world.apply(&mut engine, Step::Groups(groups));
        let known = world.identities.keys();
        let labels = known.map(|id| (*id, world.labels(*id).unwrap())).collect::<BTreeMap<_, _>>();
        for subject in world.identities.keys().copied() {
            let resolved = engine.resolve(subject, &own, LIMIT).unwrap();
            let naive = Naive { world: &world, labels: &labels, subject, ports: &own };
            for direction in [Direction::Ingress, Direction::Egress] {
                for peer in world.identities.keys().copied().chain([UNKNOWN]) {
                    for (protocol, port) in (75..91).flat_map(|port| [(6, port), (17, port), (1, port), (132, port)]) {
                        let found = resolved.explain(direction, peer, protocol, port);
                        let right = naive.decide(direction, peer, protocol, port);
                        prop_assert_eq!(
                            found.decision, right,
                            "{} {:?} {} {}/{}: {}", subject, direction, peer, protocol, port, found
                        );
                        if let Some((_, row, Reason::Rules(matches))) = &found.row {
                            prop_assert!(!matches.is_empty());
                            let decisive = naive.decisive(direction, peer, protocol, port);
                            let to_proxy = decisive.iter().any(|e| naive.redirects(e, peer, protocol, port));
                            prop_assert_eq!(row.proxy_port > 0, to_proxy && !row.deny, "{}", found);
                            let asks = |entry: &&Entry| entry.authentication.is_some();
                            // Beside allows that take precedence authentication still holds.
                            let mut matching = naive.rules(direction).filter(|e| naive.matches(e, peer, protocol, port));
                            prop_assert!(matching.any(|entry| asks(&entry)) || found.auth == 0, "{}", found);
                            let none_is_plain = decisive.iter().all(asks);
                            prop_assert!(row.deny || !none_is_plain || found.auth != 0, "{}", found);
                            for found in matches {
                                let index: usize = found.rule.path[6..found.rule.path.len() - 1].parse().unwrap();
                                let entry = &world.policies[&found.rule.resource].entries[index];
                                prop_assert_eq!(entry.action == Action::Deny, row.deny);
                                prop_assert!(naive.matches(entry, peer, protocol, port));
                            }
                        }
                    }
                }
            }
        }
    }
}

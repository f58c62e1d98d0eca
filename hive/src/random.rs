//! Random graphs against a model so simple that it is plainly right: who gets which object, in which order constructors
//! run, at most once, and which faults are found.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::cell::{Cell, Repr, config, group};
use crate::constructor::{Constructor, Erased};
use crate::error::{GraphError, HiveError, Place, Site};
use crate::hive_type::Hive;
use crate::key::Key;
use crate::outputs::{Call, Out, Outs, Sink, Value};
use crate::param::{Cx, Dep, Deps};

/// A way to ask for one of the types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Required(usize),
    Optional(usize),
    Group(usize),
}

/// A way to give one of the types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Give {
    Plain(usize),
    /// As an `Option`, there or not.
    Maybe(usize, bool),
    Member(usize),
}

#[derive(Clone, Debug)]
enum Gen {
    Provide {
        private: bool,
        asks: Vec<Ask>,
        gives: Vec<Give>,
    },
    Invoke(Vec<Ask>),
    DecorateAll {
        asks: Vec<Ask>,
        gives: Give,
    },
    Decorate {
        asks: Vec<Ask>,
        gives: Give,
        inside: Vec<Gen>,
    },
    Module(Vec<Gen>),
    /// On if this switch stands so.
    When(usize, bool, Vec<Gen>),
}

const TYPES: usize = 4;

struct T<const I: usize>;

fn one(of: usize) -> Key {
    [Key::of::<T<0>>(), Key::of::<T<1>>(), Key::of::<T<2>>(), Key::of::<T<3>>()][of]
}

fn many(of: usize) -> Key {
    [Key::group::<T<0>>(), Key::group::<T<1>>(), Key::group::<T<2>>(), Key::group::<T<3>>()][of]
}

impl Ask {
    fn key(self) -> Key {
        match self {
            Ask::Required(of) | Ask::Optional(of) => one(of),
            Ask::Group(of) => many(of),
        }
    }
}

impl Give {
    fn key(self) -> Key {
        match self {
            Give::Plain(of) | Give::Maybe(of, _) => one(of),
            Give::Member(of) => many(of),
        }
    }
}

#[derive(hive::Config)]
struct Switches {
    a: bool,
    b: bool,
}

impl Switches {
    fn stands(&self, switch: usize) -> bool {
        if switch == 0 { self.a } else { self.b }
    }
}

/// What a run was given: for each parameter the numbers of the nodes that made it.
type Log = Arc<Mutex<Vec<(usize, Vec<Vec<usize>>)>>>;

/// A constructor whose types are known at run time only.
struct Dynamic {
    number: usize,
    asks: Vec<Ask>,
    gives: Vec<Give>,
    log: Log,
}

impl Erased for Dynamic {
    fn deps(&self, deps: &mut Deps) {
        let dep = |ask: &Ask| Dep { key: ask.key(), optional: matches!(ask, Ask::Optional(_)) };
        deps.list.extend(self.asks.iter().map(dep));
    }

    fn outs(&self, outs: &mut Outs) {
        let out = |give: &Give| Out { key: give.key(), maybe: matches!(give, Give::Maybe(..)) };
        outs.list.extend(self.gives.iter().map(out));
    }

    fn call(&self, cx: &mut Cx<'_>, sink: &mut Sink) -> Call {
        let value = |slot: &crate::param::Slot| -> Option<usize> {
            cx.values[slot.out].as_ref()?.downcast_ref().copied()
        };
        let got = |edge: &crate::param::Edge| edge.slots().iter().filter_map(value).collect();
        self.log.lock().push((self.number, cx.edges.iter().map(got).collect()));
        let give = |give: &Give| -> Option<Value> {
            (!matches!(give, Give::Maybe(_, false))).then(|| Arc::new(self.number) as Value)
        };
        sink.values.extend(self.gives.iter().map(give));
        Call::Ready(Ok(()))
    }
}

/// The cells of a generated graph. Nodes are numbered in order of registration.
struct Cells {
    log: Log,
    nodes: usize,
    modules: usize,
}

/// The name of a node, by which errors tell of it.
fn name(number: usize) -> &'static str {
    const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    NAMES.get(number).copied().unwrap_or_else(|| Box::leak(number.to_string().into_boxed_str()))
}

impl Cells {
    fn constructor(&mut self, asks: &[Ask], gives: &[Give]) -> Constructor {
        let number = self.nodes;
        self.nodes += 1;
        let place = Place { function: name(number), at: Location::caller() };
        let (asks, gives, log) = (asks.to_vec(), gives.to_vec(), self.log.clone());
        Constructor { place, erased: Arc::new(Dynamic { number, asks, gives, log }) }
    }

    fn all(&mut self, gens: &[Gen]) -> Vec<Cell> {
        gens.iter().map(|cell| self.cell(cell)).collect()
    }

    fn cell(&mut self, cell: &Gen) -> Cell {
        let repr = match cell {
            Gen::Provide { private, asks, gives } => {
                Repr::Provide { constructor: self.constructor(asks, gives), private: *private }
            }
            Gen::Invoke(asks) => Repr::Invoke(self.constructor(asks, &[])),
            Gen::DecorateAll { asks, gives } => Repr::DecorateAll(self.constructor(asks, &[*gives])),
            Gen::Decorate { asks, gives, inside } => {
                let constructor = self.constructor(asks, &[*gives]);
                Repr::Decorate { constructor, cells: self.all(inside) }
            }
            Gen::Module(inside) => {
                self.modules += 1;
                let id = format!("m{}", self.modules);
                return crate::cell::module(id, "x", self.all(inside));
            }
            Gen::When(switch, stands, inside) => {
                let (switch, stands) = (*switch, *stands);
                return group(self.all(inside)).when(move |s: &Switches| s.stands(switch) == stands);
            }
        };
        Cell(Arc::new(repr))
    }
}

/// A node of the model: where it stands, as the list of scopes around it.
struct Node {
    path: Vec<usize>,
    is_on: bool,
    asks: Vec<Ask>,
    gives: Vec<Give>,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Provide,
    Private,
    Invoke,
    Decorate,
    DecorateAll,
}

/// Of what kind, about which key, whose; and how often.
type Faults = BTreeMap<(&'static str, String, usize), usize>;

struct Model {
    nodes: Vec<Node>,
    scopes: usize,
    switches: [bool; 2],
}

impl Model {
    fn of(gens: &[Gen], switches: [bool; 2]) -> Model {
        let mut model = Model { nodes: vec![], scopes: 0, switches };
        model.take(gens, &[], true);
        model
    }

    fn take(&mut self, gens: &[Gen], path: &[usize], is_on: bool) {
        for cell in gens {
            self.scopes += 1;
            let inner = [path, &[self.scopes]].concat();
            let mut push = |role, path: &[usize], asks: &[Ask], gives: &[Give]| {
                let (path, asks, gives) = (path.to_vec(), asks.to_vec(), gives.to_vec());
                self.nodes.push(Node { path, is_on, asks, gives, role });
            };
            match cell {
                Gen::Provide { private: true, asks, gives } => push(Role::Private, path, asks, gives),
                Gen::Provide { asks, gives, .. } => push(Role::Provide, path, asks, gives),
                Gen::Invoke(asks) => push(Role::Invoke, path, asks, &[]),
                Gen::DecorateAll { asks, gives } => push(Role::DecorateAll, path, asks, &[*gives]),
                Gen::Decorate { asks, gives, inside } => {
                    push(Role::Decorate, &inner, asks, &[*gives]);
                    self.take(inside, &inner, is_on);
                }
                Gen::Module(inside) => self.take(inside, &inner, is_on),
                Gen::When(switch, stands, inside) => {
                    let met = self.switches[*switch] == *stands;
                    self.take(inside, path, is_on && met);
                }
            }
        }
    }

    /// Nodes that give a key into a scope, as providers or as decorators.
    fn giving(&self, scope: &[usize], key: Key, decorators: bool) -> Vec<usize> {
        let gives = |node: &Node| {
            let (into, decorates) = match node.role {
                Role::Provide => (&[][..], false),
                Role::Private => (&node.path[..], false),
                Role::Decorate => (&node.path[..], true),
                Role::DecorateAll => (&[][..], true),
                Role::Invoke => return false,
            };
            node.is_on && into == scope && decorates == decorators
        };
        let count = |node: &Node| node.gives.iter().filter(|give| give.key() == key).count();
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| gives(node));
        nodes.flat_map(|(number, node)| std::iter::repeat_n(number, count(node))).collect()
    }

    /// The scopes in which a node looks for a key, from the inside out.
    fn views(&self, number: usize, key: Key) -> Vec<Vec<usize>> {
        let node = &self.nodes[number];
        let own = node.role == Role::DecorateAll && node.gives.iter().any(|give| give.key() == key);
        let path = if own { &[][..] } else { &node.path };
        (0..=path.len()).rev().map(|length| path[..length].to_vec()).collect()
    }

    /// Who serves a parameter.
    fn served(&self, number: usize, key: Key) -> Vec<usize> {
        let mut members = vec![];
        for scope in self.views(number, key) {
            // Of several, which is a fault, the last.
            let decorator = self.giving(&scope, key, true).last().copied().filter(|other| *other != number);
            let providers = self.giving(&scope, key, false);
            match (decorator, key.is_group()) {
                (Some(decorator), true) => {
                    members.push(decorator);
                    break;
                }
                (None, true) => members.extend(providers),
                (Some(decorator), false) => return vec![decorator],
                (None, false) if !providers.is_empty() => return vec![providers[0]],
                (None, false) => {}
            }
        }
        members.sort_unstable();
        members
    }

    /// Whether a node may give nothing for a key.
    fn is_maybe(&self, number: usize, key: Key) -> bool {
        let give = self.nodes[number].gives.iter().find(|give| give.key() == key);
        matches!(give, Some(Give::Maybe(..)))
    }

    /// Nodes that are needed, each behind those that it needs; and whether some need each other.
    fn order(&self) -> (Vec<usize>, bool) {
        let (mut order, mut open, mut cyclic) = (vec![], vec![], false);
        for (number, node) in self.nodes.iter().enumerate() {
            if node.role == Role::Invoke && node.is_on {
                self.visit(number, &mut order, &mut open, &mut cyclic);
            }
        }
        (order, cyclic)
    }

    fn visit(&self, number: usize, order: &mut Vec<usize>, open: &mut Vec<usize>, cyclic: &mut bool) {
        if order.contains(&number) {
            return;
        }
        if open.contains(&number) {
            *cyclic = true;
            return;
        }
        open.push(number);
        for ask in &self.nodes[number].asks {
            for other in self.served(number, ask.key()) {
                self.visit(other, order, open, cyclic);
            }
        }
        open.pop();
        order.push(number);
    }

    /// The faults apart from cycles: what kind, about which key, whose.
    fn faults(&self) -> Faults {
        let mut faults = BTreeMap::new();
        let mut add =
            |kind, key: Key, number| *faults.entry((kind, key.to_string(), number)).or_default() += 1;
        let scopes: BTreeSet<&[usize]> =
            self.nodes.iter().map(|node| &node.path[..]).chain([&[][..]]).collect();
        for scope in &scopes {
            for of in 0..TYPES {
                for second in self.giving(scope, one(of), false).into_iter().skip(1) {
                    add("duplicate", one(of), second);
                }
                for key in [one(of), many(of)] {
                    for second in self.giving(scope, key, true).into_iter().skip(1) {
                        add("ambiguous", key, second);
                    }
                }
            }
        }
        for number in self.order().0 {
            for ask in &self.nodes[number].asks {
                let Ask::Required(of) = *ask else { continue };
                match self.served(number, one(of))[..] {
                    [] => add(self.why_missing(number, one(of)), one(of), number),
                    [other] if self.is_maybe(other, one(of)) => add("uncertain", one(of), number),
                    _ => {}
                }
            }
        }
        faults
    }

    fn why_missing(&self, number: usize, key: Key) -> &'static str {
        let path = &self.nodes[number].path;
        let gives = |node: &&Node| node.gives.iter().any(|give| give.key() == key);
        let mut givers = self.nodes.iter().filter(gives);
        let off_in_sight = |node: &Node| {
            !node.is_on
                && (node.role == Role::Provide || node.role == Role::Private && path.starts_with(&node.path))
        };
        if givers.clone().any(off_in_sight) {
            return "off";
        }
        match givers.any(|node| node.is_on && matches!(node.role, Role::Provide | Role::Private)) {
            true => "private",
            false => "missing",
        }
    }

    /// What each constructor gets, in the order in which they run.
    fn runs(&self) -> Vec<(usize, Vec<Vec<usize>>)> {
        let there = |key: Key, number: &usize| {
            !self.nodes[*number]
                .gives
                .iter()
                .any(|give| give.key() == key && matches!(give, Give::Maybe(_, false)))
        };
        let gets = |number: usize, ask: &Ask| {
            self.served(number, ask.key()).into_iter().filter(|other| there(ask.key(), other)).collect()
        };
        let run =
            |number: usize| (number, self.nodes[number].asks.iter().map(|ask| gets(number, ask)).collect());
        self.order().0.into_iter().map(run).collect()
    }
}

/// The faults that the hive found, as the model counts them; cycles apart.
fn found(errors: &[GraphError]) -> (Faults, Vec<Vec<(usize, Key)>>) {
    let (mut faults, mut cycles) = (BTreeMap::new(), vec![]);
    let number = |site: &Site| site.place.function.parse::<usize>().unwrap();
    for error in errors {
        let (kind, key, site) = match error {
            GraphError::Duplicate { key, second, .. } => ("duplicate", key, second),
            GraphError::Ambiguous { key, second, .. } => ("ambiguous", key, second),
            GraphError::Uncertain { key, needed_by, .. } => ("uncertain", key, needed_by),
            GraphError::Private { key, needed_by, .. } => ("private", key, needed_by),
            GraphError::Missing { key, needed_by, hints } => {
                let off = hints.iter().any(|hint| hint.contains(" is off: option"));
                (if off { "off" } else { "missing" }, key, needed_by)
            }
            GraphError::Cycle { steps } => {
                cycles.push(steps.iter().map(|(site, key)| (number(site), *key)).collect());
                continue;
            }
            other => panic!("{other}"),
        };
        *faults.entry((kind, key.to_string(), number(site))).or_default() += 1;
    }
    (faults, cycles)
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let ask = (0..TYPES, 0..3_u8).prop_map(|(of, how)| match how {
        0 => Ask::Required(of),
        1 => Ask::Optional(of),
        _ => Ask::Group(of),
    });
    vec(ask, 0..3)
}

fn give() -> impl Strategy<Value = Give> {
    (0..TYPES, 0..8_u8).prop_map(|(of, how)| match how {
        0 => Give::Maybe(of, true),
        1 => Give::Maybe(of, false),
        2..=4 => Give::Member(of),
        _ => Give::Plain(of),
    })
}

fn decoration() -> impl Strategy<Value = Give> {
    (0..TYPES, any::<bool>()).prop_map(|(of, one)| if one { Give::Plain(of) } else { Give::Member(of) })
}

fn gens() -> impl Strategy<Value = Vec<Gen>> {
    let leaf = prop_oneof![
        5 => (any::<bool>(), asks(), vec(give(), 1..3))
            .prop_map(|(private, asks, gives)| Gen::Provide { private, asks, gives }),
        3 => asks().prop_map(Gen::Invoke),
        1 => (asks(), decoration()).prop_map(|(asks, gives)| Gen::DecorateAll { asks, gives }),
    ];
    let tree = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(Gen::Module),
            (0..2_usize, any::<bool>(), vec(inner.clone(), 1..3))
                .prop_map(|(switch, stands, inside)| Gen::When(switch, stands, inside)),
            (asks(), decoration(), vec(inner, 1..4)).prop_map(|(asks, gives, inside)| Gen::Decorate {
                asks,
                gives,
                inside
            }),
        ]
    });
    vec(tree, 1..7)
}

#[test]
fn as_the_model_says() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen_by_run = std::cell::RefCell::new(&mut seen);
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(gens(), any::<[bool; 2]>()), |(gens, switches)| {
        let log = Log::default();
        let cells = Cells { log: log.clone(), nodes: 0, modules: 0 }.all(&gens);
        let model = Model::of(&gens, switches);
        let built = Hive::builder([group(cells), config::<Switches>()])
            .set("a", switches[0])
            .set("b", switches[1])
            .build();
        let (order, cyclic) = model.order();
        let faults = model.faults();
        let count = |what| *seen_by_run.borrow_mut().entry(what).or_default() += 1;
        match built {
            Ok(mut hive) => {
                prop_assert!(faults.is_empty() && !cyclic, "not found: {:?}, cycle: {}", faults, cyclic);
                runtime.block_on(hive.populate()).unwrap();
                prop_assert_eq!(&*log.lock(), &model.runs());
                count(if order.len() > 3 { "built with more than three" } else { "built" });
            }
            Err(HiveError::Graph(errors)) => {
                let (found, cycles) = found(&errors);
                prop_assert_eq!(&found, &faults);
                prop_assert_eq!(!cycles.is_empty(), cyclic, "{:?}", cycles);
                for steps in cycles {
                    count("cycle");
                    for (position, (from, key)) in steps.iter().enumerate() {
                        let (to, _) = steps[(position + 1) % steps.len()];
                        prop_assert!(model.served(*from, *key).contains(&to), "{:?}", steps);
                    }
                }
                found.keys().for_each(|(kind, ..)| count(kind));
                prop_assert!(log.lock().is_empty(), "nothing runs of a wrong graph");
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        Ok(())
    });
    result.unwrap();
    // The graphs were worth it.
    let kinds = [
        "built",
        "built with more than three",
        "cycle",
        "duplicate",
        "ambiguous",
        "uncertain",
        "private",
        "missing",
        "off",
    ];
    for kind in kinds {
        assert!(seen.get(kind).is_some_and(|count| *count >= 20), "{kind} in {seen:?}");
    }
}

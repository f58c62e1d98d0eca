//! The model: which object each node gets, in which order constructors and hooks run, and the expected errors, simple
//! enough to be evidently correct.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::cells::{Ask, Gen, Give, HookRan, Hooks, LIVES, TYPES, many, one};
use crate::key::Key;

/// A node of the model, with its position: the list of scopes around it.
pub(super) struct Node {
    path: Vec<usize>,
    /// The prefix of the path that has a lifecycle of its own: its exports are visible only inside.
    life: Vec<usize>,
    is_on: bool,
    asks: Vec<Ask>,
    gives: Vec<Give>,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Provide,
    Private,
    Invoke,
    Decorate,
    DecorateAll,
}

/// Errors by kind, key and node, with their count.
pub(super) type Faults = BTreeMap<(&'static str, String, usize), usize>;

pub(super) struct Model {
    nodes: Vec<Node>,
    scopes: usize,
    /// The scopes with a lifecycle of their own, by index.
    lives: Vec<Vec<usize>>,
    switches: [bool; 2],
}

impl Model {
    pub(super) fn of(gens: &[Gen], switches: [bool; 2]) -> Model {
        let mut model = Model { nodes: vec![], scopes: 0, lives: vec![], switches };
        model.take(gens, &[], &[], true);
        model
    }

    fn take(&mut self, gens: &[Gen], path: &[usize], life: &[usize], is_on: bool) {
        for cell in gens {
            self.scopes += 1;
            let inner = [path, &[self.scopes]].concat();
            let mut push = |role, path: &[usize], asks: &[Ask], gives: &[Give]| {
                let (path, life) = (path.to_vec(), life.to_vec());
                let (asks, gives) = (asks.to_vec(), gives.to_vec());
                self.nodes.push(Node { path, life, is_on, asks, gives, role });
            };
            match cell {
                Gen::Provide { private: true, asks, gives } => push(Role::Private, path, asks, gives),
                Gen::Provide { asks, gives, .. } => push(Role::Provide, path, asks, gives),
                Gen::Invoke(asks) => push(Role::Invoke, path, asks, &[]),
                Gen::DecorateAll { asks, gives } => push(Role::DecorateAll, path, asks, &[*gives]),
                Gen::Decorate { asks, gives, inside } => {
                    push(Role::Decorate, &inner, asks, &[*gives]);
                    self.take(inside, &inner, life, is_on);
                }
                Gen::Scope(inside) if self.lives.len() < LIVES => {
                    self.lives.push(inner.clone());
                    self.take(inside, &inner, &inner, is_on);
                }
                Gen::Module(inside) | Gen::Scope(inside) => self.take(inside, &inner, life, is_on),
                Gen::When(switch, stands, inside) => {
                    let met = self.switches[*switch] == *stands;
                    self.take(inside, path, life, is_on && met);
                }
            }
        }
    }

    /// Returns the nodes that provide a key in a scope, as providers or as decorators.
    fn giving(&self, scope: &[usize], key: Key, decorators: bool) -> Vec<usize> {
        let gives = |node: &Node| {
            let (into, decorates) = match node.role {
                Role::Provide => (&node.life[..], false),
                Role::Private => (&node.path[..], false),
                Role::Decorate => (&node.path[..], true),
                Role::DecorateAll => (&node.life[..], true),
                Role::Invoke => return false,
            };
            node.is_on && into == scope && decorates == decorators
        };
        let count = |node: &Node| node.gives.iter().filter(|give| give.key() == key).count();
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| gives(node));
        nodes.flat_map(|(number, node)| std::iter::repeat_n(number, count(node))).collect()
    }

    /// Returns the scopes in which a key is resolved for a node, innermost first.
    fn views(&self, number: usize, key: Key) -> Vec<Vec<usize>> {
        let node = &self.nodes[number];
        let own = node.role == Role::DecorateAll && node.gives.iter().any(|give| give.key() == key);
        let path = if own { &node.life } else { &node.path };
        (0..=path.len()).rev().map(|length| path[..length].to_vec()).collect()
    }

    /// Returns the providers of a parameter.
    pub(super) fn served(&self, number: usize, key: Key) -> Vec<usize> {
        let mut members = vec![];
        for scope in self.views(number, key) {
            // Several decorators are an error; the hive then uses the last one.
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

    /// Whether a node's result for a key is optional.
    fn is_maybe(&self, number: usize, key: Key) -> bool {
        let give = self.nodes[number].gives.iter().find(|give| give.key() == key);
        matches!(give, Some(Give::Maybe(..)))
    }

    /// Returns the needed nodes, each after its dependencies; and whether there is a cycle.
    pub(super) fn order(&self) -> (Vec<usize>, bool) {
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

    /// Returns the errors except cycles, by kind, key and node.
    pub(super) fn faults(&self) -> Faults {
        let mut faults = BTreeMap::new();
        let mut add =
            |kind, key: Key, number| *faults.entry((kind, key.to_string(), number)).or_default() += 1;
        let scopes: BTreeSet<&[usize]> =
            self.nodes.iter().flat_map(|node| [&node.path[..], &node.life[..]]).chain([&[][..]]).collect();
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
                && match node.role {
                    Role::Provide => path.starts_with(&node.life),
                    Role::Private => path.starts_with(&node.path),
                    _ => false,
                }
        };
        if givers.clone().any(off_in_sight) {
            return "off";
        }
        match givers.any(|node| node.is_on && matches!(node.role, Role::Provide | Role::Private)) {
            true => "private",
            false => "missing",
        }
    }

    /// Returns the arguments of each constructor of a lifecycle, in the order in which they run.
    pub(super) fn runs(&self, life: &[usize]) -> Vec<(usize, Vec<Vec<usize>>)> {
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
        self.order().0.into_iter().filter(|number| self.nodes[*number].life == life).map(run).collect()
    }

    /// Returns the path of a scope with a lifecycle, by its index.
    pub(super) fn life(&self, number: usize) -> &[usize] {
        &self.lives[number]
    }

    /// Returns when the hooks of the hive's own constructors begin and end: none before its dependencies, which are
    /// - those before it in the same constructor,
    /// - those of all its constructor's direct and indirect dependencies,
    /// - if it is not parallel, all hooks added before it, and otherwise only those of them that are not parallel.
    pub(super) fn hooks(&self, hooks: &Hooks) -> Vec<HookRan> {
        let mut ran: Vec<(HookRan, bool)> = vec![];
        for number in self.order().0.into_iter().filter(|number| self.nodes[*number].life.is_empty()) {
            let used = self.uses(number);
            for (at, hook) in hooks.of(number).iter().enumerate() {
                let waits_for = |(other, is_parallel): &&(HookRan, bool)| {
                    !hook.parallel || !is_parallel || other.hook.0 == number || used.contains(&other.hook.0)
                };
                let begin =
                    ran.iter().filter(waits_for).map(|(other, _)| other.end).max().unwrap_or_default();
                let end = begin + Duration::from_millis(hook.millis);
                ran.push((HookRan { hook: (number, at), begin, end }, hook.parallel));
            }
        }
        ran.into_iter().map(|(ran, _)| ran).collect()
    }

    /// Returns the direct and indirect dependencies of a node.
    pub(super) fn uses(&self, number: usize) -> BTreeSet<usize> {
        let (mut all, mut next) = (BTreeSet::new(), vec![number]);
        while let Some(number) = next.pop() {
            for ask in &self.nodes[number].asks {
                next.extend(self.served(number, ask.key()).into_iter().filter(|used| all.insert(*used)));
            }
        }
        all
    }
}

//! Registration: cells become nodes in scopes. Nothing of the user's runs here, nothing panics; faults are collected.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use crate::cell::{Cell, Repr};
use crate::config::ConfigCell;
use crate::constructor::Constructor;
use crate::error::{GraphError, Place, Site};
use crate::key::Key;
use crate::outputs::{Out, Outs, Value};
use crate::param::{Dep, Deps, Slot};

/// What a node does when it is built.
pub(crate) enum What {
    Construct(Constructor),
    Config(ConfigCell),
    Ready(Option<Vec<Option<Value>>>),
}

/// Which cell a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Provide,
    Private,
    Invoke,
    Decorate,
    Config,
    BuiltIn,
    Replacement,
}

pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) place: Place,
    pub(crate) scope: usize,
    pub(crate) deps: Vec<Dep>,
    pub(crate) outs: Vec<Out>,
    pub(crate) what: What,
}

pub(crate) struct Scope {
    pub(crate) parent: Option<usize>,
    pub(crate) module: Arc<str>,
    pub(crate) description: Arc<str>,
    /// Whether this scope is a module of its own, not the inside of a decoration.
    pub(crate) own: bool,
    pub(crate) providers: HashMap<Key, Slot>,
    groups: HashMap<Key, Vec<Slot>>,
    decorators: HashMap<Key, Slot>,
    modules: HashMap<String, &'static Location<'static>>,
}

/// The registered cells of a hive.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) invokes: Vec<usize>,
    pub(crate) errors: Vec<GraphError>,
}

/// The scope that everybody sees.
pub(crate) const ROOT: usize = 0;

impl Graph {
    pub(crate) fn new() -> Self {
        let mut graph = Graph { nodes: vec![], scopes: vec![], invokes: vec![], errors: vec![] };
        graph.open(None, "".into(), "".into(), true);
        graph
    }

    fn open(&mut self, parent: Option<usize>, module: Arc<str>, description: Arc<str>, own: bool) -> usize {
        self.scopes.push(Scope {
            parent,
            module,
            description,
            own,
            providers: HashMap::new(),
            groups: HashMap::new(),
            decorators: HashMap::new(),
            modules: HashMap::new(),
        });
        self.scopes.len() - 1
    }

    /// Registers cells in a scope.
    pub(crate) fn register(&mut self, cells: &[Cell], scope: usize) {
        for cell in cells {
            match &*cell.0 {
                Repr::Group(cells) => self.register(cells, scope),
                Repr::Module { id, description, at, cells } => {
                    let inner = self.module(id, description, at, scope);
                    self.register(cells, inner);
                }
                Repr::Provide { constructor, private } => {
                    let kind = if *private { NodeKind::Private } else { NodeKind::Provide };
                    let node = self.constructor(constructor, kind, scope);
                    self.export(node, if *private { scope } else { ROOT });
                }
                Repr::Invoke(constructor) => {
                    let node = self.constructor(constructor, NodeKind::Invoke, scope);
                    self.invokes.push(node);
                }
                Repr::Decorate { constructor, cells } => self.decorate(constructor, cells, scope),
                Repr::Config(cell) => {
                    let outs = vec![Out { key: cell.key, maybe: false }];
                    let what = What::Config(cell.clone());
                    let node = self.push(NodeKind::Config, cell.place, scope, vec![], outs, what);
                    self.export(node, ROOT);
                }
            }
        }
    }

    fn module(
        &mut self,
        id: &str,
        description: &str,
        at: &'static Location<'static>,
        parent: usize,
    ) -> usize {
        if !valid_module_id(id) {
            self.errors.push(GraphError::ModuleId { id: id.to_owned(), at });
        }
        let path = match &*self.scopes[parent].module {
            "" => id.to_owned(),
            outer => format!("{outer}.{id}"),
        };
        // The inside of a decoration is no module: its modules are siblings of those outside.
        let mut owner = parent;
        while let (false, Some(outer)) = (self.scopes[owner].own, self.scopes[owner].parent) {
            owner = outer;
        }
        if let Some(first) = self.scopes[owner].modules.insert(id.to_owned(), at) {
            self.errors.push(GraphError::DuplicateModule { module: path.clone(), first, second: at });
        }
        self.open(Some(parent), path.into(), description.into(), true)
    }

    fn decorate(&mut self, constructor: &Constructor, cells: &[Cell], parent: usize) {
        let module = self.scopes[parent].module.clone();
        let scope = self.open(Some(parent), module, "".into(), false);
        let node = self.constructor(constructor, NodeKind::Decorate, scope);
        for out in 0..self.nodes[node].outs.len() {
            let key = self.nodes[node].outs[out].key;
            self.scopes[scope].decorators.insert(key, Slot { node, out });
        }
        self.register(cells, scope);
    }

    fn constructor(&mut self, constructor: &Constructor, kind: NodeKind, scope: usize) -> usize {
        let (mut deps, mut outs) = (Deps::default(), Outs::default());
        constructor.erased.deps(&mut deps);
        constructor.erased.outs(&mut outs);
        let what = What::Construct(constructor.clone());
        self.push(kind, constructor.place, scope, deps.list, outs.list, what)
    }

    fn push(
        &mut self,
        kind: NodeKind,
        place: Place,
        scope: usize,
        deps: Vec<Dep>,
        outs: Vec<Out>,
        what: What,
    ) -> usize {
        self.nodes.push(Node { kind, place, scope, deps, outs, what });
        self.nodes.len() - 1
    }

    fn export(&mut self, node: usize, scope: usize) {
        for out in 0..self.nodes[node].outs.len() {
            let (key, slot) = (self.nodes[node].outs[out].key, Slot { node, out });
            if key.is_group() {
                self.scopes[scope].groups.entry(key).or_default().push(slot);
            } else if let Some(first) = self.scopes[scope].providers.insert(key, slot) {
                self.scopes[scope].providers.insert(key, first);
                let (first, second) = (self.site(first.node), self.site(node));
                self.errors.push(GraphError::Duplicate { key, first, second });
            }
        }
    }

    /// Adds a value that every hive has.
    #[track_caller]
    pub(crate) fn built_in<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        let node = self.ready(Key::of::<T>(), NodeKind::BuiltIn, "built into the hive", Box::new(value));
        self.export(node, ROOT);
    }

    /// Puts a value in the place of every provider of `key`, also private ones; without any it becomes the provider.
    #[track_caller]
    pub(crate) fn replace(&mut self, key: Key, value: Value) {
        let node = self.ready(key, NodeKind::Replacement, "replaced in a test", value);
        let slot = Slot { node, out: 0 };
        self.scopes[ROOT].providers.insert(key, slot);
        for scope in &mut self.scopes {
            if let Some(provider) = scope.providers.get_mut(&key) {
                *provider = slot;
            }
        }
    }

    #[track_caller]
    fn ready(&mut self, key: Key, kind: NodeKind, function: &'static str, value: Value) -> usize {
        let place = Place { function, at: Location::caller() };
        let outs = vec![Out { key, maybe: false }];
        self.push(kind, place, ROOT, vec![], outs, What::Ready(Some(vec![Some(value)])))
    }

    pub(crate) fn site(&self, node: usize) -> Site {
        let node = &self.nodes[node];
        Site { place: node.place, module: self.scopes[node.scope].module.clone() }
    }

    /// The scope and those around it, the innermost first.
    pub(crate) fn around(&self, scope: usize) -> impl Iterator<Item = &Scope> {
        std::iter::successors(Some(scope), |s| self.scopes[*s].parent).map(|s| &self.scopes[s])
    }

    /// Who provides `key` to `node`: the nearest decorator that is not the node itself, else the nearest provider.
    pub(crate) fn lookup(&self, node: usize, key: &Key) -> Option<Slot> {
        let scope = self.nodes[node].scope;
        let decorator =
            self.around(scope).find_map(|s| s.decorators.get(key).filter(|slot| slot.node != node));
        decorator.or_else(|| self.around(scope).find_map(|s| s.providers.get(key))).copied()
    }

    /// The members of a group that a scope sees, in the order of registration.
    pub(crate) fn members(&self, scope: usize, key: &Key) -> Vec<Slot> {
        let groups = self.around(scope).filter_map(|s| s.groups.get(key));
        let mut members: Vec<Slot> = groups.flatten().copied().collect();
        members.sort_unstable_by_key(|slot| (slot.node, slot.out));
        members
    }
}

fn valid_module_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    let allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_' || *b == b'-';
    (1..=31).contains(&bytes.len()) && bytes[0].is_ascii_lowercase() && bytes.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::valid_module_id;

    #[test]
    fn module_ids() {
        for good in ["a", "ipam", "x2", "endpoint-manager", "a_b", &"a".repeat(31)] {
            assert!(valid_module_id(good), "{good}");
        }
        for bad in ["", "A", "2x", "-a", "a.b", "a b", "\u{e4}", &"a".repeat(32)] {
            assert!(!valid_module_id(bad), "{bad}");
        }
    }
}

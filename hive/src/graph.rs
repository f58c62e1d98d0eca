//! Registration: cells become nodes in scopes. No user code runs here and no code panics; errors are collected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::cell::{Cell, Repr};
use crate::conditional::Condition;
use crate::config::ConfigCell;
use crate::constructor::Constructor;
use crate::error::{GraphError, Place, Site};
use crate::hints::nearest;
use crate::key::{Key, KeyMap};
use crate::missing::to_do;
use crate::outputs::{Out, Outs, Value};
use crate::param::{Dep, Deps, Slot};
use crate::scope::MakeScope;

/// The action of building a node.
pub(crate) enum What {
    Construct(Constructor),
    Config(Box<ConfigCell>),
    Ready(Value),
    /// Creates the handle that starts and stops this scope.
    Scope {
        inner: usize,
        make: MakeScope,
    },
}

/// The kind of cell of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Provide,
    Private,
    Invoke,
    Decorate,
    DecorateAll,
    Scope,
    Config,
    BuiltIn,
    Replacement,
}

pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) place: Place,
    pub(crate) scope: usize,
    /// The innermost condition around it.
    pub(crate) switch: Option<usize>,
    /// Its range in the dependencies of all nodes.
    deps: Range<usize>,
    /// Its range in the outputs of all nodes.
    pub(crate) outs: Range<usize>,
    pub(crate) what: What,
}

pub(crate) struct Scope {
    pub(crate) parent: Option<usize>,
    pub(crate) module: Arc<str>,
    pub(crate) description: Arc<str>,
    /// Where the module is declared; `None` for the root and for the inside of a decoration, which is no module.
    pub(crate) at: Option<&'static Location<'static>>,
    /// The innermost condition around it.
    pub(crate) switch: Option<usize>,
    /// The scope whose lifecycle it shares: itself, if it has one of its own.
    pub(crate) life: usize,
    pub(crate) providers: KeyMap<Slot>,
    pub(crate) groups: KeyMap<Vec<Slot>>,
    pub(crate) decorators: KeyMap<Slot>,
}

/// A condition on cells, and its outcome.
pub(crate) struct Switch {
    pub(crate) condition: Condition,
    /// The condition around this one.
    pub(crate) outer: Option<usize>,
    /// The scope in which the condition stands.
    scope: usize,
    /// The module that it applies to, if it applies to a whole one.
    pub(crate) module: Option<usize>,
    /// Whether this condition or one around it is false.
    pub(crate) is_off: bool,
    /// Whether this condition itself is false.
    pub(crate) is_unmet: bool,
}

/// The registered cells of a hive.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    deps: Deps,
    outs: Outs,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) invokes: Vec<usize>,
    pub(crate) errors: Vec<GraphError>,
}

/// A module that is left out of the cells around which this stands, or replaced in them.
struct Edit<'a> {
    /// Its id, or the end of its path.
    module: &'a str,
    at: &'static Location<'static>,
    with: Option<&'a Cell>,
    /// The edit around this one.
    outer: Option<usize>,
    is_used: bool,
}

/// The place where a cell is registered.
#[derive(Clone, Copy)]
struct Inside {
    scope: usize,
    switch: Option<usize>,
    /// The innermost edit around it.
    edit: Option<usize>,
}

/// The outermost scope, visible to all nodes.
pub(crate) const ROOT: usize = 0;

impl Graph {
    pub(crate) fn new() -> Self {
        let (nodes, deps, outs) = (vec![], Deps::default(), Outs::default());
        let (scopes, switches, invokes, errors) = (vec![], vec![], vec![], vec![]);
        let mut graph = Graph { nodes, deps, outs, scopes, switches, invokes, errors };
        graph.open(None, None, "".into(), "".into(), None);
        graph
    }

    fn open(
        &mut self,
        parent: Option<usize>,
        switch: Option<usize>,
        module: Arc<str>,
        description: Arc<str>,
        at: Option<&'static Location<'static>>,
    ) -> usize {
        let life = parent.map_or(ROOT, |parent| self.scopes[parent].life);
        self.scopes.push(Scope {
            parent,
            module,
            description,
            at,
            switch,
            life,
            providers: KeyMap::default(),
            groups: KeyMap::default(),
            decorators: KeyMap::default(),
        });
        self.scopes.len() - 1
    }

    /// Creates nodes and scopes from cells. Dependencies are resolved later, by [`link`](Graph::link).
    pub(crate) fn register(&mut self, cells: &[Cell]) {
        let mut edits = vec![];
        let mut stack = vec![(cells.iter(), Inside { scope: ROOT, switch: None, edit: None })];
        while let Some((cells, inside)) = stack.last_mut() {
            let inside = *inside;
            match cells.next() {
                Some(cell) => {
                    let further = self.register_cell(cell, inside, &mut edits);
                    stack.extend(further.map(|(cells, inside)| (cells.iter(), inside)));
                }
                None => drop(stack.pop()),
            }
        }
        self.check_edits(&edits);
    }

    /// The edit that concerns a cell: the innermost whose module the cell is, alone or under conditions.
    fn edit_of(&self, cell: &Cell, inside: Inside, edits: &[Edit<'_>]) -> Option<usize> {
        inside.edit?;
        let mut inner = cell;
        while let Repr::When { cell, .. } = &*inner.0 {
            inner = cell;
        }
        let (Repr::Module { id, .. } | Repr::Scope { id, .. }) = &*inner.0 else { return None };
        let path = self.path(id, inside);
        let ends_so = |edit: &Edit<'_>| match path.strip_suffix(edit.module) {
            Some(before) => before.is_empty() || before.ends_with('.'),
            None => false,
        };
        std::iter::successors(inside.edit, |edit| edits[*edit].outer).find(|edit| ends_so(&edits[*edit]))
    }

    /// Reports the edits that concern no module.
    fn check_edits(&mut self, edits: &[Edit<'_>]) {
        let unused = edits.iter().filter(|edit| !edit.is_used);
        let faults = unused.map(|edit| {
            let paths = self.scopes.iter().flat_map(|scope| [scope.name(), &*scope.module]);
            let nearest = nearest(edit.module, paths).map(str::to_owned);
            GraphError::NoSuchModule { module: edit.module.to_owned(), at: edit.at, nearest }
        });
        let mut faults = faults.collect();
        self.errors.append(&mut faults);
    }

    /// Registers one cell; returns the cells in it and their place.
    fn register_cell<'a>(
        &mut self,
        cell: &'a Cell,
        inside: Inside,
        edits: &mut Vec<Edit<'a>>,
    ) -> Option<(&'a [Cell], Inside)> {
        if let Some(edit) = self.edit_of(cell, inside, edits) {
            let Edit { with, outer, is_used, .. } = &mut edits[edit];
            *is_used = true;
            let inside = Inside { edit: *outer, ..inside };
            return with.map(|with| (std::slice::from_ref(with), inside));
        }
        match &*cell.0 {
            Repr::Edit { cell, module, at, with } => {
                edits.push(Edit { module, at, with: with.as_ref(), outer: inside.edit, is_used: false });
                let edit = Some(edits.len() - 1);
                return Some((std::slice::from_ref(cell), Inside { edit, ..inside }));
            }
            Repr::Group(cells) => return Some((cells, inside)),
            Repr::Module { id, description, at, cells } => {
                let scope = self.module(id, description, at, inside);
                return Some((cells, Inside { scope, ..inside }));
            }
            Repr::Scope { id, description, at, place, key, make, cells } => {
                let scope = self.module(id, description, at, inside);
                self.scopes[scope].life = scope;
                let what = What::Scope { inner: scope, make: *make };
                self.give(*key, NodeKind::Scope, *place, inside, what);
                return Some((cells, Inside { scope, ..inside }));
            }
            Repr::Provide { constructor, private } => {
                let kind = if *private { NodeKind::Private } else { NodeKind::Provide };
                self.constructor(constructor, kind, inside);
            }
            Repr::Invoke(constructor) => self.constructor(constructor, NodeKind::Invoke, inside),
            Repr::Decorate { constructor, cells } => {
                let module = self.scopes[inside.scope].module.clone();
                let scope = self.open(Some(inside.scope), inside.switch, module, "".into(), None);
                let inside = Inside { scope, ..inside };
                self.constructor(constructor, NodeKind::Decorate, inside);
                return Some((cells, inside));
            }
            Repr::DecorateAll(constructor) => self.constructor(constructor, NodeKind::DecorateAll, inside),
            Repr::Config(cell) => {
                self.give(
                    cell.key,
                    NodeKind::Config,
                    cell.place,
                    inside,
                    What::Config(Box::new(cell.clone())),
                );
            }
            Repr::When { condition, cell } => {
                // The scope of a module comes before those inside of it.
                let module = matches!(&*cell.0, Repr::Module { .. }).then_some(self.scopes.len());
                let (condition, Inside { scope, switch: outer, .. }) = (condition.clone(), inside);
                let switch = self.switches.len();
                let (is_off, is_unmet) = (false, false);
                self.switches.push(Switch { condition, outer, scope, module, is_off, is_unmet });
                return Some((std::slice::from_ref(cell), Inside { switch: Some(switch), ..inside }));
            }
        }
        None
    }

    fn module(
        &mut self,
        id: &str,
        description: &str,
        at: &'static Location<'static>,
        inside: Inside,
    ) -> usize {
        if !valid_module_id(id) {
            self.errors.push(GraphError::ModuleId { id: id.to_owned(), at });
        }
        let path = self.path(id, inside).into();
        self.open(Some(inside.scope), inside.switch, path, description.into(), Some(at))
    }

    /// The path of a module with this id.
    fn path(&self, id: &str, inside: Inside) -> String {
        match &*self.scopes[inside.scope].module {
            "" => id.to_owned(),
            outer => [outer, ".", id].concat(),
        }
    }

    fn constructor(&mut self, constructor: &Constructor, kind: NodeKind, inside: Inside) {
        let (deps, outs) = (self.deps.list.len(), self.outs.list.len());
        constructor.erased.deps(&mut self.deps);
        constructor.erased.outs(&mut self.outs);
        let (deps, outs) = (deps..self.deps.list.len(), outs..self.outs.list.len());
        let Inside { scope, switch, .. } = inside;
        let (place, what) = (constructor.place, What::Construct(constructor.clone()));
        if outs.is_empty() && matches!(kind, NodeKind::Provide | NodeKind::Private) {
            let site = Site { place, module: self.scopes[scope].module.clone() };
            self.errors.push(GraphError::GivesNothing { site });
        }
        self.nodes.push(Node { kind, place, scope, switch, deps, outs, what });
    }

    /// Adds a node without dependencies and with one result.
    fn give(&mut self, key: Key, kind: NodeKind, place: Place, inside: Inside, what: What) -> Slot {
        let Inside { scope, switch, .. } = inside;
        let slot = Slot { node: self.nodes.len(), out: self.outs.list.len() };
        self.outs.list.push(Out { key, maybe: false });
        let outs = slot.out..slot.out + 1;
        self.nodes.push(Node { kind, place, scope, switch, deps: 0..0, outs, what });
        slot
    }

    /// Returns the dependencies of a node.
    pub(crate) fn deps(&self, node: &Node) -> &[Dep] {
        &self.deps.list[node.deps.clone()]
    }

    /// Returns the outputs of a node.
    pub(crate) fn outs(&self, node: &Node) -> &[Out] {
        &self.outs.list[node.outs.clone()]
    }

    /// Returns the content of a slot.
    pub(crate) fn out(&self, slot: Slot) -> &Out {
        &self.outs.list[slot.out]
    }

    /// Whether any cell provides or requires this key, built or not.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        self.deps.list.iter().any(|dep| dep.key == *key) || self.outs.list.iter().any(|out| out.key == *key)
    }

    /// Returns the number of dependencies of all nodes.
    pub(crate) fn needs(&self) -> usize {
        self.deps.list.len()
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.outs.list.len()
    }

    /// Evaluates the conditions. The configuration structs must have been built.
    pub(crate) fn decide(&mut self) {
        let mut configs = KeyMap::default();
        for node in &self.nodes {
            if let (NodeKind::Config, What::Ready(config)) = (node.kind, &node.what) {
                configs.insert(self.outs(node)[0].key, config);
            }
        }
        for index in 0..self.switches.len() {
            let Switch { condition, outer, scope, .. } = &self.switches[index];
            let site = Site { place: condition.place, module: self.scopes[*scope].module.clone() };
            let answer = match configs.get(&condition.key) {
                Some(config) => {
                    condition.is_met(config).map_err(|panic| GraphError::Condition { site, panic })
                }
                None => Err(GraphError::Missing {
                    key: condition.key,
                    needed_by: site,
                    hints: vec![to_do(&condition.key)],
                }),
            };
            let outer_off = outer.is_some_and(|outer| self.switches[outer].is_off);
            let is_unmet = answer.as_ref().is_ok_and(|met| !met);
            self.errors.extend(answer.err());
            let switch = &mut self.switches[index];
            (switch.is_unmet, switch.is_off) = (is_unmet, is_unmet || outer_off);
        }
    }

    /// Whether no condition disables the node.
    pub(crate) fn is_on(&self, switch: Option<usize>) -> bool {
        switch.is_none_or(|switch| !self.switches[switch].is_off)
    }

    /// Makes the outputs of cells visible to others, except for cells that conditions disable.
    pub(crate) fn link(&mut self) {
        self.check_modules();
        self.scopes[ROOT].providers.reserve(self.nodes.len());
        for node in 0..self.nodes.len() {
            let Node { kind, scope, switch, .. } = self.nodes[node];
            let life = self.scopes[scope].life;
            if !self.is_on(switch) && kind != NodeKind::Config {
                continue;
            }
            match kind {
                NodeKind::Config | NodeKind::BuiltIn => self.export(node, ROOT),
                NodeKind::Provide | NodeKind::Scope => self.export(node, life),
                NodeKind::Private => self.export(node, scope),
                NodeKind::Invoke => self.invokes.push(node),
                NodeKind::Decorate => self.decorate(node, scope),
                NodeKind::DecorateAll => self.decorate(node, life),
                NodeKind::Replacement => {}
            }
        }
    }

    /// Returns the scope in whose lifecycle a node is built.
    pub(crate) fn life(&self, node: usize) -> usize {
        self.scopes[self.nodes[node].scope].life
    }

    fn check_modules(&mut self) {
        let (mut names, mut faults) = (HashMap::new(), vec![]);
        for scope in self.scopes.iter().filter(|scope| self.is_on(scope.switch)) {
            let (Some(at), Some(parent)) = (scope.at, scope.parent) else { continue };
            // The inside of a decoration is no module: its modules are siblings of those outside.
            let mut owner = parent;
            while let (None, Some(outer)) = (self.scopes[owner].at, self.scopes[owner].parent) {
                owner = outer;
            }
            if let Some(first) = names.insert((owner, scope.name()), at) {
                let module = scope.module.to_string();
                faults.push(GraphError::DuplicateModule { module, first, second: at });
            }
        }
        self.errors.append(&mut faults);
    }

    fn export(&mut self, node: usize, scope: usize) {
        for out in self.nodes[node].outs.clone() {
            let (key, slot) = (self.outs.list[out].key, Slot { node, out });
            if key.is_group() {
                self.scopes[scope].groups.entry(key).or_default().push(slot);
                continue;
            }
            match self.scopes[scope].providers.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(slot);
                }
                Entry::Occupied(entry) => {
                    let first = entry.get().node;
                    let (first, second) = (self.site(first), self.site(node));
                    self.errors.push(GraphError::Duplicate { key, first, second });
                }
            }
        }
    }

    fn decorate(&mut self, node: usize, scope: usize) {
        for out in self.nodes[node].outs.clone() {
            let (key, slot) = (self.outs.list[out].key, Slot { node, out });
            if let Some(first) = self.scopes[scope].decorators.insert(key, slot) {
                let (first, second) = (self.site(first.node), self.site(node));
                self.errors.push(GraphError::Ambiguous { key, first, second });
            }
        }
    }

    /// Adds a value that every hive has.
    #[track_caller]
    pub(crate) fn built_in<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        let place = Place { function: "built into the hive", at: Location::caller() };
        self.ready(Key::of::<T>(), NodeKind::BuiltIn, place, Arc::new(value));
    }

    /// Adds a node for an existing value.
    pub(crate) fn ready(&mut self, key: Key, kind: NodeKind, place: Place, value: Value) -> Slot {
        self.give(key, kind, place, Inside { scope: ROOT, switch: None, edit: None }, What::Ready(value))
    }

    pub(crate) fn site(&self, node: usize) -> Site {
        let node = &self.nodes[node];
        Site { place: node.place, module: self.scopes[node.scope].module.clone() }
    }

    /// Returns a description of a condition.
    pub(crate) fn subject(&self, switch: &Switch) -> String {
        match switch.module {
            Some(module) => format!("module `{}`", self.scopes[module].module),
            None => {
                let at = switch.condition.place.at;
                format!("the cell at {}:{}", at.file(), at.line())
            }
        }
    }

    /// Iterates over the scope and its parents, the innermost first.
    pub(crate) fn around(&self, scope: usize) -> impl Iterator<Item = &Scope> {
        std::iter::successors(Some(scope), |s| self.scopes[*s].parent).map(|s| &self.scopes[s])
    }

    /// Returns the scope from which a node resolves `key`: its own, or the root if the node decorates it for the whole
    /// hive.
    fn view(&self, node: usize, key: &Key) -> usize {
        let node = &self.nodes[node];
        let is_own = node.kind == NodeKind::DecorateAll && self.outs(node).iter().any(|out| out.key == *key);
        if is_own { self.scopes[node.scope].life } else { node.scope }
    }

    /// Returns the provider of `key` for `node`: the nearest decorator that is not the node itself, or the provider.
    pub(crate) fn lookup(&self, node: usize, key: &Key) -> Option<Slot> {
        self.around(self.view(node, key)).find_map(|scope| {
            let decorator = scope.decorators.get(key).filter(|slot| slot.node != node);
            decorator.or_else(|| scope.providers.get(key)).copied()
        })
    }

    /// Returns the members of a group that a node sees, in order of registration. A decorator replaces all members from
    /// its scope outwards.
    pub(crate) fn members(&self, node: usize, key: &Key) -> Vec<Slot> {
        let mut members = vec![];
        for scope in self.around(self.view(node, key)) {
            if let Some(decorator) = scope.decorators.get(key).filter(|slot| slot.node != node) {
                members.push(*decorator);
                break;
            }
            members.extend(scope.groups.get(key).into_iter().flatten());
        }
        members.sort_unstable_by_key(|slot| slot.out);
        members
    }
}

impl Scope {
    /// Returns the last segment of the module's path.
    pub(crate) fn name(&self) -> &str {
        self.module.rsplit('.').next().unwrap_or_default()
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

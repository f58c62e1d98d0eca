//! The graph as pictures, for people and for comparisons. No constructor runs.

mod dot;
mod json;
mod mermaid;
mod timeline;
mod tree;

use std::collections::HashSet;

use crate::error::{GraphError, Site};
use crate::graph::{Node, NodeKind, Scope};
use crate::hive_type::Hive;
use crate::key::{Key, short};
use crate::outputs::Out;
use crate::plan::plan_from;
pub use timeline::{Span, Step, Timeline};

/// A constructor that nothing needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unused {
    /// The constructor.
    pub site: Site,
    /// Its result.
    pub outputs: Vec<Key>,
    /// The errors that a dependency on it would cause; empty if it could be built.
    pub faults: Vec<GraphError>,
}

impl Hive {
    /// Returns constructors that no invocation needs, directly or indirectly, with the reasons why some of them could
    /// not be built. Disabled constructors are not among them.
    pub fn unused(&self) -> Vec<Unused> {
        let view = View::of(self);
        let idle = (0..self.graph.nodes.len()).filter(|node| view.state(*node) == Use::Unused);
        idle.filter(|node| self.graph.nodes[*node].kind.is_of_a_cell())
            .map(|node| Unused {
                site: self.graph.site(node),
                outputs: self.graph.outs(&self.graph.nodes[node]).iter().map(|out| out.key).collect(),
                faults: plan_from(&self.graph, self.settings(), &[node]).1,
            })
            .collect()
    }

    /// Returns the modules as a tree, with every constructor, its parameters and results.
    pub fn tree(&self) -> String {
        tree::draw(&View::of(self))
    }

    /// Returns the graph in graphviz's language: a cluster for each module, private constructors and decorators
    /// included, optional dependencies dashed, groups as diamonds, unused constructors in grey.
    pub fn dot(&self) -> String {
        dot::draw(&View::of(self))
    }

    /// Returns the graph in the language of mermaid, in the same shapes as [`dot`](Hive::dot).
    pub fn mermaid(&self) -> String {
        mermaid::draw(&View::of(self))
    }

    /// Returns the graph as JSON for comparisons: a diff contains only nodes and modules that were added, removed or
    /// changed, since the output has neither indexes nor line numbers.
    pub fn json(&self) -> String {
        json::draw(&View::of(self))
    }
}

impl NodeKind {
    fn label(self) -> &'static str {
        match self {
            NodeKind::Provide => "provide",
            NodeKind::Private => "private",
            NodeKind::Invoke => "invoke",
            NodeKind::Decorate => "decorate",
            NodeKind::DecorateAll => "decorate-all",
            NodeKind::Scope => "scope",
            NodeKind::Config => "config",
            NodeKind::BuiltIn => "built-in",
            NodeKind::Replacement => "replaced",
        }
    }

    fn is_of_a_cell(self) -> bool {
        !matches!(self, NodeKind::BuiltIn | NodeKind::Replacement)
    }
}

/// Whether a constructor will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    Unused,
    /// A condition disables it.
    Off,
}

impl Use {
    fn label(self) -> &'static str {
        match self {
            Use::Used => "used",
            Use::Unused => "not used",
            Use::Off => "off",
        }
    }
}

/// A dependency and the nodes that provide it.
struct Need {
    key: Key,
    optional: bool,
    from: Vec<usize>,
}

/// Queries that all pictures use.
struct View<'a> {
    hive: &'a Hive,
    used: HashSet<usize>,
}

impl<'a> View<'a> {
    fn of(hive: &'a Hive) -> Self {
        let mut used: HashSet<usize> = hive.plan.order.iter().copied().collect();
        // A struct that a condition reads has an effect even if no constructor takes it.
        let asked: HashSet<Key> = hive.graph.switches.iter().map(|switch| switch.condition.key).collect();
        let is_asked =
            |node: &Node| node.kind == NodeKind::Config && asked.contains(&hive.graph.outs(node)[0].key);
        let nodes = hive.graph.nodes.iter().enumerate();
        used.extend(nodes.filter(|(_, node)| is_asked(node)).map(|(index, _)| index));
        View { hive, used }
    }

    fn state(&self, node: usize) -> Use {
        let Node { kind, switch, .. } = self.hive.graph.nodes[node];
        match self.used.contains(&node) {
            true => Use::Used,
            false if kind == NodeKind::Config || self.hive.graph.is_on(switch) => Use::Unused,
            false => Use::Off,
        }
    }

    /// Iterates over the nodes of a scope that a picture shows; the built-in ones only if another node takes them.
    fn nodes(&self, scope: usize) -> impl Iterator<Item = (usize, &'a Node)> {
        let nodes = self.hive.graph.nodes.iter().enumerate();
        nodes.filter(move |(index, node)| {
            node.scope == scope && (node.kind.is_of_a_cell() || self.used.contains(index))
        })
    }

    /// Iterates over the scopes inside of a scope.
    fn inner(&self, scope: usize) -> impl Iterator<Item = (usize, &'a Scope)> {
        let scopes = self.hive.graph.scopes.iter().enumerate();
        scopes.filter(move |(_, inner)| inner.parent == Some(scope))
    }

    /// Returns why a module is off, if it is off by a condition of its own.
    fn why_off(&self, index: usize) -> Option<String> {
        let graph = &self.hive.graph;
        let scope = &graph.scopes[index];
        let own = graph.switches.iter().filter(|switch| switch.module == Some(index) && switch.is_unmet);
        let options: Vec<String> =
            own.flat_map(|switch| switch.condition.culprits(self.hive.settings())).collect();
        match options.is_empty() {
            true if graph.is_on(scope.switch) => None,
            true => Some("off".to_owned()),
            false => Some(format!("off: {}", options.join(", "))),
        }
    }

    fn needs(&self, index: usize) -> Vec<Need> {
        let graph = &self.hive.graph;
        let from = |key: &Key| match key.is_group() {
            true => graph.members(index, key).iter().map(|slot| slot.node).collect(),
            false => graph.lookup(index, key).iter().map(|slot| slot.node).collect(),
        };
        let needs = graph.deps(&graph.nodes[index]).iter();
        needs.map(|dep| Need { key: dep.key, optional: dep.optional, from: from(&dep.key) }).collect()
    }

    fn outs(&self, index: usize) -> impl Iterator<Item = &'a Out> {
        let graph = &self.hive.graph;
        graph.outs(&graph.nodes[index]).iter()
    }

    /// Returns the results of a node; each in `Option<..>` if it is optional.
    fn gives(&self, index: usize) -> Vec<String> {
        self.outs(index).map(|out| perhaps(out.key.short(), out.maybe)).collect()
    }
}

fn perhaps(name: String, maybe: bool) -> String {
    if maybe { format!("Option<{name}>") } else { name }
}

/// Returns a function's name without the path of its module; a closure's together with its enclosing function.
fn function(path: &str) -> String {
    let named = path.trim_end_matches("::{{closure}}");
    let closures = (path.len() - named.len()) / "::{{closure}}".len();
    short(named) + &"::{{closure}}".repeat(closures)
}

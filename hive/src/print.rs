//! The graph as text: a tree of modules, a graph for graphviz, and what is not used. No constructor runs.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::error::{GraphError, Site};
use crate::graph::{Node, NodeKind};
use crate::hive_type::Hive;
use crate::key::{Key, short};
use crate::plan::plan_from;

/// A constructor that nothing needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// The constructor.
    pub site: Site,
    /// What it would give.
    pub outputs: Vec<Key>,
    /// Why it could not be built if something did need it; empty if it could.
    pub faults: Vec<GraphError>,
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
}

impl Hive {
    /// Constructors that no invocation needs, directly or through others, and why those that could not be built could
    /// not.
    pub fn unused(&self) -> Vec<Unused> {
        let used: BTreeSet<usize> = self.plan.order.iter().copied().collect();
        let asked: Vec<Key> = self.graph.switches.iter().map(|switch| switch.condition.key).collect();
        let interesting = |node: &usize| {
            let node = &self.graph.nodes[*node];
            let invoked = matches!(node.kind, NodeKind::Invoke | NodeKind::BuiltIn | NodeKind::Replacement);
            let asked = node.outs.iter().any(|out| asked.contains(&out.key));
            !invoked && !asked && self.graph.is_on(node.switch)
        };
        let idle = (0..self.graph.nodes.len()).filter(|node| !used.contains(node)).filter(interesting);
        idle.map(|node| Unused {
            site: self.graph.site(node),
            outputs: self.graph.nodes[node].outs.iter().map(|out| out.key).collect(),
            faults: plan_from(&self.graph, self.settings(), &[node]).1,
        })
        .collect()
    }

    /// The modules as a tree, with every constructor, what it takes and gives.
    pub fn tree(&self) -> String {
        let mut text = String::new();
        let used: BTreeSet<usize> = self.plan.order.iter().copied().collect();
        self.tree_of(crate::graph::ROOT, 0, &used, &mut text);
        text
    }

    fn tree_of(&self, scope: usize, depth: usize, used: &BTreeSet<usize>, text: &mut String) {
        let graph = &self.graph;
        let pad = "    ".repeat(depth);
        for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.scope == scope) {
            let idle = if used.contains(&index) { "" } else { " (not used)" };
            let place = node.place;
            let function = short(place.function);
            let at = match node.kind {
                NodeKind::BuiltIn | NodeKind::Replacement => String::new(),
                _ => format!(" ({}:{})", place.at.file(), place.at.line()),
            };
            let _ = writeln!(text, "{pad}{} {function}{at}{idle}", node.kind.label());
            for (arrow, keys) in [("<-", dependencies(node)), ("->", outputs(node))] {
                if !keys.is_empty() {
                    let _ = writeln!(text, "{pad}    {arrow} {}", keys.join(", "));
                }
            }
        }
        for (index, inner) in graph.scopes.iter().enumerate().filter(|(_, inner)| inner.parent == Some(scope))
        {
            if inner.at.is_some() {
                let name = inner.name();
                let _ = writeln!(text, "{pad}module {name}: {}", inner.description);
            } else {
                let _ = writeln!(text, "{pad}decorated");
            }
            self.tree_of(index, depth + 1, used, text);
        }
    }

    /// The graph in graphviz's language: a cluster for each module, private constructors and decorators included,
    /// optional dependencies dashed, groups as diamonds, constructors that are not used in grey.
    pub fn dot(&self) -> String {
        let used: BTreeSet<usize> = self.plan.order.iter().copied().collect();
        let mut text =
            String::from("digraph hive {\n  rankdir=LR;\n  node [shape=box, fontname=monospace];\n");
        self.dot_scope(crate::graph::ROOT, 1, &used, &mut text);
        let mut groups = BTreeSet::new();
        for index in 0..self.graph.nodes.len() {
            self.dot_edges(index, &mut groups, &mut text);
        }
        for group in groups {
            let _ = writeln!(text, "  {} [shape=diamond];", quote(&group));
        }
        text + "}\n"
    }

    fn dot_scope(&self, scope: usize, depth: usize, used: &BTreeSet<usize>, text: &mut String) {
        let pad = "  ".repeat(depth);
        for (index, node) in self.graph.nodes.iter().enumerate().filter(|(_, node)| node.scope == scope) {
            let label = quote(&format!("{}\n{}", node.kind.label(), short(node.place.function)));
            let style = match (used.contains(&index), node.kind) {
                (false, _) => ", color=grey, fontcolor=grey",
                (true, NodeKind::Private) => ", style=rounded",
                (true, NodeKind::Invoke) => ", style=bold",
                (true, _) => "",
            };
            let _ = writeln!(text, "{pad}n{index} [label={label}{style}];");
        }
        let inner = self.graph.scopes.iter().enumerate().filter(|(_, inner)| inner.parent == Some(scope));
        for (index, inner) in inner {
            let label = if inner.at.is_some() { quote(&inner.module) } else { quote("decorated") };
            let _ = writeln!(text, "{pad}subgraph cluster_{index} {{\n{pad}  label={label};");
            self.dot_scope(index, depth + 1, used, text);
            let _ = writeln!(text, "{pad}}}");
        }
    }

    fn dot_edges(&self, index: usize, groups: &mut BTreeSet<String>, text: &mut String) {
        let node = &self.graph.nodes[index];
        for dep in &node.deps {
            let label = dep.key.short();
            if dep.key.is_group() {
                let _ = writeln!(text, "  {} -> n{index};", quote(&label));
                groups.insert(label);
            } else if let Some(slot) = self.graph.lookup(index, &dep.key) {
                let dashed = if dep.optional { ", style=dashed" } else { "" };
                let _ = writeln!(text, "  n{} -> n{index} [label={}{dashed}];", slot.node, quote(&label));
            }
        }
        for out in node.outs.iter().filter(|out| out.key.is_group()) {
            let group = out.key.short();
            let _ = writeln!(text, "  n{index} -> {};", quote(&group));
            groups.insert(group);
        }
    }
}

fn dependencies(node: &Node) -> Vec<String> {
    let name = |dep: &crate::param::Dep| match dep.optional {
        true => format!("Option<{}>", dep.key.short()),
        false => dep.key.short(),
    };
    node.deps.iter().map(name).collect()
}

fn outputs(node: &Node) -> Vec<String> {
    node.outs.iter().map(|out| out.key.short()).collect()
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

//! The graph in graphviz's language.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Use, View, function};
use crate::graph::{NodeKind, ROOT};

pub(super) fn draw(view: &View<'_>) -> String {
    let mut text = String::from("digraph hive {\n  rankdir=LR;\n  node [shape=box, fontname=monospace];\n");
    scope(view, ROOT, 1, &mut text);
    let mut groups = BTreeSet::new();
    for index in 0..view.hive.graph.nodes.len() {
        edges(view, index, &mut groups, &mut text);
    }
    for group in groups {
        let _ = writeln!(text, "  {} [shape=diamond];", quote(&group));
    }
    text + "}\n"
}

fn scope(view: &View<'_>, index: usize, depth: usize, text: &mut String) {
    let pad = "  ".repeat(depth);
    for (index, node) in view.nodes(index) {
        let label = quote(&format!("{}\n{}", node.kind.label(), function(node.place.function)));
        let style = match (view.state(index), node.kind) {
            (Use::Off, _) => ", color=grey, fontcolor=grey, style=dashed",
            (Use::Unused, _) => ", color=grey, fontcolor=grey",
            (Use::Used, NodeKind::Private) => ", style=rounded",
            (Use::Used, NodeKind::Invoke) => ", style=bold",
            (Use::Used, _) => "",
        };
        let _ = writeln!(text, "{pad}n{index} [label={label}{style}];");
    }
    for (index, inner) in view.inner(index) {
        let mut label = if inner.at.is_some() { inner.module.to_string() } else { "decorated".to_owned() };
        if let Some(why) = view.why_off(index) {
            let _ = write!(label, "\n{why}");
        }
        let _ = writeln!(text, "{pad}subgraph cluster_{index} {{\n{pad}  label={};", quote(&label));
        scope(view, index, depth + 1, text);
        let _ = writeln!(text, "{pad}}}");
    }
}

fn edges(view: &View<'_>, index: usize, groups: &mut BTreeSet<String>, text: &mut String) {
    // A disabled cell has no edges.
    if view.state(index) == Use::Off {
        return;
    }
    for need in view.needs(index) {
        let label = need.key.short();
        if need.key.is_group() {
            let _ = writeln!(text, "  {} -> n{index};", quote(&label));
            groups.insert(label);
        } else {
            let dashed = if need.optional { ", style=dashed" } else { "" };
            for from in need.from {
                let _ = writeln!(text, "  n{from} -> n{index} [label={}{dashed}];", quote(&label));
            }
        }
    }
    for out in view.outs(index).filter(|out| out.key.is_group()) {
        let group = out.key.short();
        let _ = writeln!(text, "  n{index} -> {};", quote(&group));
        groups.insert(group);
    }
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

//! The graph in the language of mermaid, which code hosts draw.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Use, View, function};
use crate::graph::{NodeKind, ROOT};

pub(super) fn draw(view: &View<'_>) -> String {
    let mut text = String::from("flowchart LR\n");
    scope(view, ROOT, 1, &mut text);
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    let mut group = |name: String, text: &mut String| -> usize {
        let next = groups.len();
        *groups.entry(name).or_insert_with_key(|name| {
            let _ = writeln!(text, "  g{next}{{{}}}", quote(name));
            next
        })
    };
    for index in 0..view.hive.graph.nodes.len() {
        // A disabled cell has no edges.
        if view.state(index) == Use::Off {
            continue;
        }
        for need in view.needs(index) {
            if need.key.is_group() {
                let from = group(need.key.short(), &mut text);
                let _ = writeln!(text, "  g{from} --> n{index}");
                continue;
            }
            let arrow = if need.optional { "-.->" } else { "-->" };
            for from in need.from {
                let _ = writeln!(text, "  n{from} {arrow}|{}| n{index}", quote(&need.key.short()));
            }
        }
        for out in view.outs(index).filter(|out| out.key.is_group()) {
            let to = group(out.key.short(), &mut text);
            let _ = writeln!(text, "  n{index} --> g{to}");
        }
    }
    let idle = view
        .hive
        .graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(index, node)| node.kind.is_of_a_cell() && view.state(*index) != Use::Used);
    let idle: Vec<String> = idle.map(|(index, _)| format!("n{index}")).collect();
    if !idle.is_empty() {
        let _ = writeln!(
            text,
            "  classDef idle color:grey,stroke:grey,stroke-dasharray:4\n  class {} idle",
            idle.join(",")
        );
    }
    text
}

fn scope(view: &View<'_>, index: usize, depth: usize, text: &mut String) {
    let pad = "  ".repeat(depth);
    for (index, node) in view.nodes(index) {
        let label = quote(&format!("{}<br>{}", node.kind.label(), escape(&function(node.place.function))));
        let _ = match node.kind {
            NodeKind::Private => writeln!(text, "{pad}n{index}({label})"),
            NodeKind::Invoke => writeln!(text, "{pad}n{index}[[{label}]]"),
            _ => writeln!(text, "{pad}n{index}[{label}]"),
        };
    }
    for (index, inner) in view.inner(index) {
        let mut label = if inner.at.is_some() { inner.module.to_string() } else { "decorated".to_owned() };
        if let Some(why) = view.why_off(index) {
            let _ = write!(label, " ({why})");
        }
        let _ = writeln!(text, "{pad}subgraph s{index}[{}]", quote(&label));
        scope(view, index, depth + 1, text);
        let _ = writeln!(text, "{pad}end");
    }
}

/// Labels are HTML to mermaid.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn quote(text: &str) -> String {
    let text = if text.contains("<br>") { text.to_owned() } else { escape(text) };
    format!("\"{}\"", text.replace('"', "&quot;"))
}

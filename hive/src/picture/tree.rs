//! The graph as an indented text.

use std::fmt::Write;

use super::{Use, View, function, perhaps};
use crate::graph::{NodeKind, ROOT};

pub(super) fn draw(view: &View<'_>) -> String {
    let mut text = String::new();
    scope(view, ROOT, 0, &mut text);
    text
}

fn scope(view: &View<'_>, index: usize, depth: usize, text: &mut String) {
    let pad = "    ".repeat(depth);
    for (index, node) in view.nodes(index) {
        let state = match view.state(index) {
            Use::Used => String::new(),
            other => format!(" ({})", other.label()),
        };
        let at = match node.kind {
            NodeKind::BuiltIn => String::new(),
            _ => format!(" ({}:{})", node.place.at.file(), node.place.at.line()),
        };
        let _ = writeln!(text, "{pad}{} {}{at}{state}", node.kind.label(), function(node.place.function));
        let needs = view.hive.graph.deps(node).iter();
        let needs: Vec<String> = needs.map(|dep| perhaps(dep.key.short(), dep.optional)).collect();
        for (arrow, keys) in [("<-", needs), ("->", view.gives(index))] {
            if !keys.is_empty() {
                let _ = writeln!(text, "{pad}    {arrow} {}", keys.join(", "));
            }
        }
    }
    for (index, inner) in view.inner(index) {
        if inner.at.is_some() {
            let off = view.why_off(index).map(|why| format!(" ({why})")).unwrap_or_default();
            let _ = writeln!(text, "{pad}module {}: {}{off}", inner.name(), inner.description);
        } else {
            let _ = writeln!(text, "{pad}decorated");
        }
        scope(view, index, depth + 1, text);
    }
}

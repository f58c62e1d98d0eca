//! The graph as JSON, with a minimal diff between two versions of a graph.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Need, Use, View, function, perhaps};
use crate::graph::{Node, NodeKind};

pub(super) fn draw(view: &View<'_>) -> String {
    let names = names(view);
    let graph = &view.hive.graph;
    let modules = graph.scopes.iter().enumerate().filter(|(_, scope)| scope.at.is_some());
    let modules = modules.map(|(index, scope)| {
        json!({ "path": &*scope.module, "description": &*scope.description, "off": view.why_off(index) })
    });
    let nodes = (0..graph.scopes.len()).flat_map(|scope| view.nodes(scope));
    let nodes = nodes.map(|(index, node)| self::node(view, index, node, &names));
    let picture = json!({ "modules": modules.collect::<Vec<_>>(), "nodes": nodes.collect::<Vec<_>>() });
    format!("{picture:#}\n")
}

/// Returns a name for each node: its module and function, with a counter as suffix if several have the same.
fn names(view: &View<'_>) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |node: &Node| {
        let module = &view.hive.graph.scopes[node.scope].module;
        let function = match node.kind {
            // All of these have the same function, and each has one output.
            NodeKind::BuiltIn | NodeKind::Replacement => view.hive.graph.outs(node)[0].key.short(),
            _ => function(node.place.function),
        };
        let name = if module.is_empty() { function } else { format!("{module}/{function}") };
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}#{count}") }
    };
    view.hive.graph.nodes.iter().map(name).collect()
}

fn node(view: &View<'_>, index: usize, node: &Node, names: &[String]) -> Value {
    let state = view.state(index);
    let need = |Need { key, optional, from }: Need| {
        let from: Vec<&str> = match state {
            // A disabled cell has no edges.
            Use::Off => vec![],
            _ => from.iter().map(|from| names[*from].as_str()).collect(),
        };
        json!({ "key": perhaps(key.short(), optional), "from": from })
    };
    json!({
        "name": names[index],
        "kind": node.kind.label(),
        "module": &*view.hive.graph.scopes[node.scope].module,
        "file": node.kind.is_of_a_cell().then(|| node.place.at.file()),
        "state": state.label(),
        "needs": view.needs(index).into_iter().map(need).collect::<Vec<_>>(),
        "gives": view.gives(index),
    })
}

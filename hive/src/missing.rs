//! Reasons for a missing object: disabled, private to another module, or provided under another type.

use std::collections::HashSet;

use crate::config::Settings;
use crate::error::GraphError;
use crate::graph::{Graph, NodeKind};
use crate::hints::likeness;
use crate::key::{Key, short};
use crate::param::Slot;

/// Returns the hint how to provide a key.
pub(crate) fn to_do(key: &Key) -> String {
    match key.is_config() {
        true => format!("hint: list `config::<{}>()` in the module that owns it", short(key.type_name())),
        false => format!(
            "hint: no cell in the list provides it; add the module that does, or a constructor that gives {}",
            key.short()
        ),
    }
}

/// Returns the error of a node with a dependency that is not visible to it.
pub(crate) fn missing(graph: &Graph, settings: &Settings, node: usize, key: &Key) -> GraphError {
    let needed_by = graph.site(node);
    let off = switched_off(graph, settings, node, key);
    if !off.is_empty() {
        return GraphError::Missing { key: *key, needed_by, hints: off };
    }
    if let Some(slot) = graph.scopes.iter().find_map(|scope| scope.providers.get(key)) {
        return GraphError::Private { key: *key, needed_by, provider: graph.site(slot.node) };
    }
    let mut hints = alike(graph, key);
    if hints.is_empty() || key.is_config() {
        hints.push(to_do(key));
    }
    GraphError::Missing { key: *key, needed_by, hints }
}

/// Returns a hint for each condition that disables a provider of the key for the node.
fn switched_off(graph: &Graph, settings: &Settings, node: usize, key: &Key) -> Vec<String> {
    let around: HashSet<usize> =
        std::iter::successors(Some(graph.nodes[node].scope), |scope| graph.scopes[*scope].parent).collect();
    let mut hints: Vec<String> = vec![];
    for (index, provider) in graph.nodes.iter().enumerate() {
        let scope = match provider.kind {
            NodeKind::Provide => graph.life(index),
            NodeKind::Private => provider.scope,
            _ => continue,
        };
        if !around.contains(&scope) || !graph.outs(provider).iter().any(|out| out.key == *key) {
            continue;
        }
        let chain = std::iter::successors(provider.switch, |switch| graph.switches[*switch].outer);
        let unmet = chain.map(|switch| &graph.switches[switch]).filter(|switch| switch.is_unmet);
        for hint in unmet.map(|switch| format!("hint: {}", graph.why_off(switch, settings))) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
    }
    hints
}

impl Graph {
    /// Returns why a condition is not met: `module `lb` is off: option enable-lb=false`.
    pub(crate) fn why_off(&self, switch: &crate::graph::Switch, settings: &Settings) -> String {
        let options = switch.condition.culprits(settings);
        let word = if options.len() == 1 { "option" } else { "options" };
        match options.is_empty() {
            true => format!("{} is off", self.subject(switch)),
            false => format!("{} is off: {word} {}", self.subject(switch), options.join(", ")),
        }
    }
}

/// Returns hints at provided types of similar names.
fn alike(graph: &Graph, key: &Key) -> Vec<String> {
    let want = short(key.type_name());
    let provided: HashSet<(Key, Slot)> =
        graph.scopes.iter().flat_map(|scope| scope.providers.iter().map(|(k, s)| (*k, *s))).collect();
    let mut near: Vec<_> = provided
        .into_iter()
        .filter(|(have, _)| have.is_config() == key.is_config())
        .filter_map(|(have, slot)| {
            Some((likeness(&want, &short(have.type_name()))?, slot.node, slot.out, have))
        })
        .collect();
    near.sort_unstable_by_key(|(likeness, node, out, _)| (*likeness, *node, *out));
    let hint = |(_, node, _, have): &(usize, usize, usize, Key)| {
        let provider = graph.site(*node);
        if have.type_name() == key.type_name() {
            format!("hint: {provider} gives a type of the same name: are there two versions of its crate?")
        } else if want.starts_with("dyn ") && !have.type_name().starts_with("dyn ") {
            format!("hint: {provider} provides {have}; if that is meant, let it give {} as well", key.short())
        } else {
            format!("hint: did you mean {have}, provided by {provider}?")
        }
    };
    near.iter().take(3).map(hint).collect()
}

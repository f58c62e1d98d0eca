//! Replacements of providers in tests.

use std::panic::Location;

use crate::error::{GraphError, Place};
use crate::graph::{Graph, NodeKind, ROOT, Scope};
use crate::hints::nearest;
use crate::key::Key;
use crate::outputs::Value;

/// A value that replaces providers in a test.
pub(crate) struct Replacement {
    pub(crate) key: Key,
    pub(crate) value: Value,
    /// The module whose providers are replaced; `None` for all modules.
    pub(crate) within: Option<String>,
    pub(crate) at: &'static Location<'static>,
}

impl Graph {
    /// Replaces providers by a value; one for the whole hive becomes a provider if cells only take the type.
    pub(crate) fn replace(&mut self, replacement: Replacement) {
        let Replacement { key, value, within, at } = replacement;
        if within.is_none() && !self.knows(&key) {
            self.errors.push(GraphError::ReplacesNothing { key, at });
            return;
        }
        let place = Place { function: "replaced in a test", at };
        let slot = self.ready(key, NodeKind::Replacement, place, value);
        let Some(module) = within else {
            self.scopes[ROOT].providers.insert(key, slot);
            for scope in &mut self.scopes {
                if let Some(provider) = scope.providers.get_mut(&key) {
                    *provider = slot;
                }
            }
            return;
        };
        let inside = |scope: &Scope| {
            scope.module.strip_prefix(&*module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let of_module: Vec<bool> = self.scopes.iter().map(inside).collect();
        let mut found = false;
        for scope in &mut self.scopes {
            if let Some(provider) = scope.providers.get_mut(&key)
                && of_module[self.nodes[provider.node].scope]
            {
                *provider = slot;
                found = true;
            }
        }
        if !found {
            let hint = self.replacement_hint(&key, &module, of_module.contains(&true));
            self.errors.push(GraphError::NothingToReplace { key, module, at, hint });
        }
    }

    fn replacement_hint(&self, key: &Key, module: &str, is_there: bool) -> String {
        if !is_there {
            let near = nearest(module, self.scopes.iter().map(|scope| &*scope.module));
            return match near {
                Some(near) => format!("there is no such module; did you mean `{near}`?"),
                None => "there is no such module".to_owned(),
            };
        }
        let others: Vec<String> = self
            .scopes
            .iter()
            .filter_map(|scope| scope.providers.get(key))
            .map(|slot| self.site(slot.node).to_string())
            .collect();
        match others.is_empty() {
            true => "nothing provides it; for a trait write `.replace_in::<dyn Trait>(..)`".to_owned(),
            false => format!("it is provided by {}", others.join(", ")),
        }
    }
}

//! What objects of a kind have to look like, and what is wrong with one that does not.
//!
//! The facts are in `schemas/*.schema`, one line a field, read at the first use: those of `cilium.io` are what its
//! CustomResourceDefinitions say, those of Kubernetes' own kinds what the API server asks as far as the agent reads them.

mod check;
mod definition;
mod format;
mod notation;
mod rules;

use std::sync::LazyLock;

use serde_json::Value;

pub use check::nearest;
pub use definition::{
    custom_resource_definition, custom_resource_definition_files, custom_resource_definitions,
};
use notation::Definition;
pub(crate) use notation::{Node, Schemas, Shape};

use crate::{Kind, Problem};

/// Faults that are reported of one object; the rest is counted.
pub const MAX_PROBLEMS: usize = 20;

/// The strictness of validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// A field that no one knows is wrong: somebody wrote it.
    Manifest,
    /// A field that no one knows is skipped: a newer server or another version may have it.
    Server,
}

pub(crate) static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    Schemas::read(&[include_str!("../schemas/core.schema"), include_str!("../schemas/cilium.schema")])
});

/// What is wrong with an object: each fault with its path and what would be right, at most [`MAX_PROBLEMS`] and how many
/// there are besides. It takes time and memory by the size of the object alone.
///
/// ```
/// use k8s_types::{Kind, schema::{Strictness, check}};
///
/// let pod = serde_json::json!({"metadata": {"name": "a"}, "spec": {"hostNetwrok": true, "containers": [{"name": "c", "ports": [{"containerPort": 0}]}]}});
/// let faults: Vec<String> = check(Kind::Pod, &pod, Strictness::Manifest).iter().map(ToString::to_string).collect();
/// assert_eq!(faults, [
///     "spec.hostNetwrok: is no field; did you mean hostNetwork?",
///     "spec.containers[0].ports[0].containerPort: expected a whole number from 1 to 65535, found 0",
/// ]);
/// ```
pub fn check(kind: Kind, object: &Value, strictness: Strictness) -> Vec<Problem> {
    let schemas = &*SCHEMAS;
    match schemas.definition(kind) {
        Some(definition) => check::check(schemas, definition, kind, object, strictness),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod definition_tests;
#[cfg(test)]
mod tests;

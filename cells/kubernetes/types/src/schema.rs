//! Schemas of objects: validation, and CustomResourceDefinitions.
//!
//! The schemas are in `schemas/*.schema`, one line per field, parsed at the first use. Those of `cilium.io` are
//! complete and the source of its CustomResourceDefinitions; those of Kubernetes' own kinds have the fields that the
//! agent reads.

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

/// The maximum number of reported problems of an object; further ones are counted.
pub const MAX_PROBLEMS: usize = 20;

/// The strictness of validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// An unknown field is a problem: it is probably a typo and has no effect.
    Manifest,
    /// An unknown field is ignored: a newer server or another version may have it.
    Server,
}

pub(crate) static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    Schemas::read(&[include_str!("../schemas/core.schema"), include_str!("../schemas/cilium.schema")])
});

/// Validates an object; returns each problem with its path and its remedy, at most [`MAX_PROBLEMS`], and the number of
/// further ones. Time and memory are linear in the size of the object.
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

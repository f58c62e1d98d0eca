//! Errors with an API server's messages.

use k8s_types::{ApiError, Key, Kind};

use crate::types::Gvr;

pub(crate) fn not_found(gvr: &Gvr, name: &Key) -> ApiError {
    ApiError::NotFound(format!("{} \"{}\" not found", gvr.qualified(), name.name))
}

pub(crate) fn already_exists(gvr: &Gvr, name: &Key) -> ApiError {
    ApiError::AlreadyExists(format!("{} \"{}\" already exists", gvr.qualified(), name.name))
}

/// Returns the error of a version conflict.
pub(crate) fn changed(gvr: &Gvr, name: &Key) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(&gvr.qualified(), name, why)
}

/// Returns the error of a change with another uid.
pub(crate) fn other_uid(gvr: &Gvr, name: &Key, expected: &str, found: &str) -> ApiError {
    let why = format!("Precondition failed: UID in precondition: {expected}, UID in object meta: {found}");
    conflict(&gvr.qualified(), name, &why)
}

/// Returns the error of a delete with another uid or version, in which servers name the kind.
pub(crate) fn deletion(
    kind: Kind,
    name: &Key,
    field_name: &str,
    [expected, found]: [&str; 2],
    happened: &str,
) -> ApiError {
    let differs = format!(
        "the {field_name} in the precondition ({expected}) does not match the {field_name} in record ({found})"
    );
    conflict(kind.name(), name, &format!("{differs}. The object might have been {happened}"))
}

fn conflict(resource: &str, name: &Key, why: &str) -> ApiError {
    let name = &name.name;
    ApiError::Conflict(format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
}

//! Errors in the words of an API server.

use k8s_types::{ApiError, Key};

use crate::types::Gvr;

pub(crate) fn not_found(gvr: &Gvr, name: &Key) -> ApiError {
    ApiError::NotFound(format!("{} \"{}\" not found", gvr.qualified(), name.name))
}

pub(crate) fn already_exists(gvr: &Gvr, name: &Key) -> ApiError {
    ApiError::AlreadyExists(format!("{} \"{}\" already exists", gvr.qualified(), name.name))
}

/// Another version is there.
pub(crate) fn changed(gvr: &Gvr, name: &Key) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(gvr, name, why)
}

/// It is not the object that was meant.
pub(crate) fn precondition(gvr: &Gvr, name: &Key, what: &str, wanted: &str, found: &str) -> ApiError {
    conflict(
        gvr,
        name,
        &format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"),
    )
}

fn conflict(gvr: &Gvr, name: &Key, why: &str) -> ApiError {
    let (resource, name) = (gvr.qualified(), &name.name);
    ApiError::Conflict(format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
}

//! Backends of other clusters: whether a service includes them, and which clusters it prefers. Exporting services to
//! other clusters (`service.cilium.io/shared`) is not a task of this agent.

use statedb::Obj;

use crate::model::annotations;
use crate::model::backend::{Backend, BackendState};
use crate::model::service::Service;
use crate::writer::select::{Fitting, Place};

/// Whether the service includes backends of other clusters (annotation `service.cilium.io/global`).
pub(crate) fn is_global(service: &Service) -> bool {
    annotation(service, annotations::GLOBAL).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether a value of the annotation `service.cilium.io/affinity` is a valid preference.
pub(crate) fn is_affinity(text: &str) -> bool {
    ["local", "remote", "none", ""].iter().any(|right| text.eq_ignore_ascii_case(right))
}

/// Removes the backends of this cluster or those of others, by the annotation `service.cilium.io/affinity`, while a
/// preferred one is healthy.
pub(crate) fn prefer_cluster(service: &Service, place: &Place, rows: &mut Fitting) {
    let Some(affinity) = annotation(service, annotations::AFFINITY) else { return };
    let remote = match affinity {
        _ if affinity.eq_ignore_ascii_case("local") => false,
        _ if affinity.eq_ignore_ascii_case("remote") => true,
        _ => return,
    };
    let is_preferred = |row: &Obj<Backend>| place.is_remote(row) == remote;
    let is_well = |row: &Obj<Backend>| row.state == BackendState::Active && !row.unhealthy;
    if rows.iter().any(|row| is_preferred(row) && is_well(row)) {
        rows.retain(|row| is_preferred(row));
    }
}

/// Returns the value of an annotation, by its current or former name.
fn annotation<'s>(service: &'s Service, names: [&str; 2]) -> Option<&'s str> {
    names.iter().find_map(|name| service.annotations.get(name)).map(|value| value.as_str())
}

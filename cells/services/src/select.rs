//! Which of a service's backends a frontend uses.

use statedb::Obj;

use crate::address::Scope;
use crate::backend::Backend;
use crate::frontend::{FrontendParams, FrontendType};
use crate::service::{Service, TrafficPolicy};

/// The backends of a frontend, by address. `rows` are all rows of the service in the table's order: by address, the most
/// believed source first.
pub(crate) fn select<'r>(
    frontend: &FrontendParams,
    service: &Service,
    node: &str,
    rows: impl Iterator<Item = &'r Obj<Backend>>,
) -> Vec<Obj<Backend>> {
    let local = local_only(frontend, service);
    let mut chosen: Vec<Obj<Backend>> = Vec::new();
    let mut last = None;
    for row in rows {
        // Of one address only the first row counts, whether it is chosen or not.
        if last.replace(row.address) == Some(row.address) {
            continue;
        }
        let fits = row.address.protocol == frontend.address.protocol
            && row.address.ip.is_ipv4() == frontend.address.ip.is_ipv4()
            && row.serves(&frontend.port_name)
            && (!local || row.node_name.is_empty() || &*row.node_name == node);
        if fits {
            chosen.push(row.clone());
        }
    }
    chosen
}

/// Whether only backends of this node count. The cluster address has only the external scope and obeys the internal
/// policy.
fn local_only(frontend: &FrontendParams, service: &Service) -> bool {
    let policy = match (frontend.kind, frontend.address.scope) {
        (FrontendType::ClusterIP, _) | (_, Scope::Internal) => service.int_traffic_policy,
        (_, Scope::External) => service.ext_traffic_policy,
    };
    policy == TrafficPolicy::Local
}

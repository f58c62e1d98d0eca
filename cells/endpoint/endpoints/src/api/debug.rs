//! The endpoints' part of the debug information.

use std::sync::Arc;

use api::DebugSource;
use statedb::Obj;

use crate::model::endpoint::Endpoint;
use crate::requests::service::Endpoints;

/// Lists the endpoints that have no datapath yet.
pub(crate) fn ongoing_creations(endpoints: &Arc<Endpoints>) -> DebugSource {
    let table = endpoints.table();
    DebugSource::new("ongoing-endpoint-creations", move || {
        let snapshot = table.snapshot();
        let ongoing = table.all(&snapshot).filter(|endpoint| endpoint.builds == 0);
        let line = |endpoint: &Obj<Endpoint>| {
            let (id, record, state) = (endpoint.id().0, &endpoint.record, endpoint.state);
            format!("{id} {} {}: {state}\n", record.cni_attachment_id(), record.pod_name())
        };
        ongoing.map(line).collect()
    })
}

//! Endpoints that nobody removes: those whose interface has gone without a word from the plugin.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::id::EndpointId;
use crate::service::Endpoints;
use crate::start::Links;
use crate::state::State;

/// How often interfaces are looked at.
pub(crate) const INTERVAL: Duration = Duration::from_secs(300);

/// Removes endpoints whose interface was gone at two looks in a row: a plugin that is at work has time to say so.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    marked: BTreeSet<EndpointId>,
}

impl Sweep {
    /// One look.
    pub(crate) async fn run(&mut self, endpoints: &Endpoints, links: &Links) {
        let table = endpoints.table();
        let snapshot = table.snapshot();
        let gone = |endpoint: &&Endpoint| {
            endpoint.state == State::Ready
                && endpoint.record.has_interface()
                && links
                    .get(&endpoint.record.if_name)
                    .is_none_or(|link| link.index != endpoint.record.if_index)
        };
        let rows = table.all(&snapshot).map(|row| &**row).filter(gone);
        let seen: Vec<(EndpointId, String)> =
            rows.map(|endpoint| (endpoint.id(), endpoint.record.if_name.clone())).collect();
        for (id, interface) in seen.iter().filter(|(id, _)| self.marked.contains(id)) {
            tracing::info!(endpointID = id.0, %interface, "Removing endpoint whose interface is gone");
            endpoints.remove(*id).await;
        }
        self.marked = seen.into_iter().map(|(id, _)| id).collect();
    }
}

/// Takes rows of removed endpoints out of the table when their removal succeeds after its request has ended.
pub(crate) async fn forget_removed(endpoints: &Endpoints) {
    let mut changes = endpoints.table().changes();
    loop {
        for change in changes.next().await.iter() {
            if !change.deleted && change.object.state == State::Disconnected {
                endpoints.remove(change.object.id()).await;
            }
        }
    }
}

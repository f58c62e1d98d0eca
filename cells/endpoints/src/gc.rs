//! Endpoints that nobody removes: those whose interface has gone without a word from the plugin.

use std::collections::BTreeSet;

use crate::endpoint::Endpoint;
use crate::id::EndpointId;
use crate::record::Record;
use crate::service::Endpoints;
use crate::start::Links;
use crate::state::State;

/// Removes endpoints whose interface was gone at two looks in a row: a plugin that is at work has time to say so.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    marked: BTreeSet<EndpointId>,
}

impl Sweep {
    /// One look. Gives the interfaces that were missing at this one, by endpoint: those go with the next.
    pub(crate) async fn run(&mut self, endpoints: &Endpoints, links: &Links) -> Vec<(EndpointId, String)> {
        let table = endpoints.table();
        let snapshot = table.snapshot();
        let gone = |endpoint: &&Endpoint| {
            endpoint.state == State::Ready
                && endpoint.record.has_interface()
                && !has_interface(links, &endpoint.record)
        };
        let rows = table.all(&snapshot).map(|row| &**row).filter(gone);
        let seen: Vec<(EndpointId, String)> =
            rows.map(|endpoint| (endpoint.id(), endpoint.record.if_name.clone())).collect();
        let (twice, once): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(id, _)| self.marked.contains(id));
        for (id, interface) in twice {
            tracing::info!(endpointID = id.0, %interface, "Removing endpoint whose interface is gone");
            endpoints.remove(id).await;
        }
        self.marked = once.iter().map(|(id, _)| *id).collect();
        once
    }
}

/// Whether the endpoint's interface is there: by number, and by name or address, as somebody may have renamed it.
fn has_interface(links: &Links, record: &Record) -> bool {
    links.iter().any(|(name, link)| {
        link.index == record.if_index
            && (*name == record.if_name || link.mac.is_some() && link.mac == record.node_mac)
    })
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

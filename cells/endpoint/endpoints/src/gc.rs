//! Garbage collection of endpoints whose interface has gone without a request of the plugin.

use std::collections::BTreeSet;
use std::time::SystemTime;

use statedb::Batch;

use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::model::state::State;
use crate::requests::service::Endpoints;
use crate::restore::start::{Link, Links};

/// Why an endpoint is made again.
const ANOTHER_NUMBER: &str = "another number of its interface";

/// Removes endpoints whose interface was gone at two looks in a row: a plugin that is at work has time to say so.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    marked: BTreeSet<EndpointId>,
}

impl Sweep {
    /// One sweep. Returns the interfaces that were missing at this one, by endpoint: those are removed by the next.
    pub(crate) async fn run(&mut self, endpoints: &Endpoints, links: &Links) -> Vec<(EndpointId, String)> {
        let table = endpoints.table();
        let snapshot = table.snapshot();
        let gone = |endpoint: &&Endpoint| {
            endpoint.state == State::Ready
                && endpoint.record.has_interface()
                && !has_interface(links, &endpoint.record)
        };
        let rows = table.all(&snapshot).map(|row| &**row).filter(gone);
        let named = |record: &Record| match links.contains_key(&record.if_name) {
            true => format!("{} (another has its name)", record.if_name),
            false => record.if_name.clone(),
        };
        let seen: Vec<(EndpointId, String)> =
            rows.map(|endpoint| (endpoint.id(), named(&endpoint.record))).collect();
        let (twice, once): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(id, _)| self.marked.contains(id));
        for (id, interface) in twice {
            tracing::info!(endpointID = id.0, %interface, "Removing endpoint whose interface is gone");
            endpoints.remove(id).await;
        }
        self.marked = once.iter().map(|(id, _)| *id).collect();
        once
    }
}

/// Takes up interfaces that another process has made anew with the name and the address that they had: only their
/// number is another. What has the name and another address is not the pod's.
pub(crate) fn take_up(endpoints: &Endpoints, links: &Links) {
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let rows = table.all(&snapshot).filter(|row| row.state == State::Ready && row.record.has_interface());
    for row in rows.filter(|row| !has_interface(links, &row.record)) {
        let made_anew = |link: &&Link| link.mac.is_some() && link.mac == row.record.node_mac;
        let Some(link) = links.get(&row.record.if_name).filter(made_anew) else { continue };
        let (id, interface, index) = (row.id(), &row.record.if_name, link.index);
        tracing::info!(endpointID = id.0, %interface, index, "The interface of an endpoint was made anew");
        endpoints.change(id, |endpoint| {
            let record = Record { if_index: index, ..(*endpoint.record).clone() };
            endpoint.with_record(record).triggered("interface", ANOTHER_NUMBER, SystemTime::now())
        });
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
pub(crate) async fn forget_removed(endpoints: &Endpoints, changes: &Batch<Endpoint>) {
    for change in changes {
        if !change.deleted && change.object.state == State::Disconnected {
            endpoints.remove(change.object.id()).await;
        }
    }
}

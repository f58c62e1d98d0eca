//! Records for monitors, with what the tables of the node know of both ends.

use std::net::IpAddr;
use std::sync::Arc;

use endpoints::Endpoint;
use identity::Identity;
use labels::{Label, LabelRef};
use local_node::LocalNode;
use monitor::Monitor;
use monitor_events::record::{ObservationPoint, Party, Record, access_log};
use statedb::{Snapshot, Table};

use crate::access_log::record::Logged;

/// Publishes records. Without a subscription to the monitor, nothing is looked up.
#[derive(Clone)]
pub(crate) struct Records {
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) node: Arc<Table<LocalNode>>,
}

impl Records {
    /// Publishes a record.
    pub(crate) fn publish(&self, logged: Logged) {
        self.monitor.publish(|| access_log(&self.complete(logged)));
    }

    fn complete(&self, logged: Logged) -> Record {
        let Logged { endpoint, mut record } = logged;
        let snapshot = self.endpoints.snapshot();
        for party in [&mut record.source, &mut record.destination] {
            party.id = party.address.map_or(0, |address| self.endpoint(&snapshot, address));
            party.labels = self.labels(&snapshot, party.identity);
        }
        // The address of the endpoint that the policy is of may be another one of it than that of the connection.
        let is_response = record.kind == monitor_events::record::RecordKind::Response;
        let is_receiver = (record.point == ObservationPoint::Ingress) != is_response;
        let ours: &mut Party = if is_receiver { &mut record.destination } else { &mut record.source };
        if let (0, Some(address)) = (ours.id, endpoint) {
            ours.id = self.endpoint(&snapshot, address);
        }
        let node = self.node.get(&snapshot, LocalNode::query());
        record.node = [
            node.and_then(|node| node.ipv4).map(|address| address.to_string()).unwrap_or_default(),
            node.and_then(|node| node.ipv6).map(|address| address.to_string()).unwrap_or_default(),
        ];
        record.metadata = self.monitor.labels().to_vec();
        record
    }

    fn endpoint(&self, snapshot: &Snapshot, address: IpAddr) -> u64 {
        self.endpoints.get(snapshot, Endpoint::by_address(address)).map_or(0, |row| row.record.id.into())
    }

    fn labels(&self, snapshot: &Snapshot, identity: u64) -> Vec<Label> {
        let Ok(identity) = u32::try_from(identity) else { return Vec::new() };
        match self.identities.get(snapshot, Identity::by_id(identity)) {
            Some(row) => row.labels.iter().map(LabelRef::to_label).collect(),
            None => datapath_abi::identity::label(identity).map(Label::reserved).into_iter().collect(),
        }
    }
}

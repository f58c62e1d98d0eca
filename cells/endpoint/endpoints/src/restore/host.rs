//! The host's own endpoint, with the labels of its node.

use std::sync::Arc;
use std::time::SystemTime;

use datapath_abi::identity::HOST;
use devices::HOST_DEVICE;
use hive::JobCx;
use identity::Identities;
use labels::{Filter, K8S, Label, LabelArray, Labels};
use local_node::LocalNode;
use statedb::Table;

use crate::links::{Link, Links};
use crate::model::endpoint::Endpoint;
use crate::model::op_labels::OpLabels;
use crate::model::options::Options;
use crate::model::record::{OptionMap, Record, SecurityLabel};
use crate::requests::service::Endpoints;

/// Upserts the host's endpoint: its interface and MAC address are those of `cilium_host`. Called before the programs
/// are loaded, since its id is a constant of theirs, and again when the interface exists.
pub(crate) fn upsert(endpoints: &Endpoints, links: &Links, options: &Options) {
    let Link { index: if_index, mac, .. } = links.get(HOST_DEVICE).copied().unwrap_or_default();
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let known = table.all(&snapshot).find(|endpoint| endpoint.record.is_host());
    let before = known.map(|endpoint| (*endpoint.record).clone()).unwrap_or_else(|| {
        let options = OptionMap { map: options.clone() };
        labelled(Record { options, ..Record::default() }, Labels::default(), Labels::default())
    });
    let record = Record { if_name: HOST_DEVICE.to_owned(), if_index, mac, node_mac: mac, ..before };
    match known {
        Some(endpoint) => endpoints.change(endpoint.id(), |endpoint| endpoint.with_record(record)),
        None => drop(endpoints.insert_own(record)),
    }
}

/// Returns the record with these labels of the node beside that of the host.
fn labelled(record: Record, identity: Labels, info: Labels) -> Record {
    let host = Label::reserved("host");
    let with_host = |labels: Labels| labels.0.into_values().chain([host.clone()]).collect::<Labels>();
    let (identity, info) = (with_host(identity), with_host(info));
    Record {
        op_labels: OpLabels {
            orchestration_identity: identity.clone(),
            orchestration_info: info,
            ..OpLabels::default()
        },
        sec_label: Some(SecurityLabel { id: HOST, labels: identity }),
        ..record
    }
}

/// Gives the host's identity the labels of the host's endpoint: policies of nodes select it by them. Called before
/// policy reads identities, so that a start finds the labels of the previous run.
pub(crate) fn label_identity(endpoints: &Table<Endpoint>, identities: &Identities) {
    let snapshot = endpoints.snapshot();
    let host = endpoints.all(&snapshot).find(|endpoint| endpoint.record.is_host());
    if let Some(label) = host.and_then(|endpoint| endpoint.record.sec_label.as_ref()) {
        identities.set_host_labels(LabelArray::from(&label.labels));
    }
}

/// The job that keeps the labels of the host's endpoint equal to those of the node that count for identities.
pub(crate) struct HostLabels {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) identities: Identities,
    pub(crate) node: Table<LocalNode>,
    pub(crate) filter: Arc<Filter>,
}

impl HostLabels {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let table = self.endpoints.table();
        loop {
            let snapshot = self.node.snapshot();
            let (node, node_changed) = self.node.get_watch(&snapshot, LocalNode::query());
            let (_, rows_changed) = table.all_watch(&table.snapshot());
            let is_there = id(&table).is_some();
            // A node is without labels until its object is known: those of the previous run stay until then.
            if let Some(node) = node.filter(|node| !node.uid.is_empty() || !node.labels.is_empty()) {
                self.set(node);
            }
            drop(snapshot);
            tokio::select! {
                () = node_changed.changed() => {}
                () = rows_changed.changed(), if !is_there => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    fn set(&self, node: &LocalNode) {
        let label = |(key, value): (&String, &String)| Label {
            source: K8S.to_owned(),
            key: key.clone(),
            value: value.clone(),
        };
        let (identity, info) = self.filter.split(&node.labels.iter().map(label).collect());
        let table = self.endpoints.table();
        let snapshot = table.snapshot();
        let Some(host) = table.all(&snapshot).find(|endpoint| endpoint.record.is_host()) else { return };
        let record = labelled((*host.record).clone(), identity, info);
        if *host.record != record {
            let reason = "updated security labels";
            self.endpoints.change(host.id(), |host| {
                host.with_record(record.clone()).triggered(reason, reason, SystemTime::now())
            });
            label_identity(&table, &self.identities);
        }
    }
}

/// Returns the id of the host's endpoint, after [`upsert`].
pub(crate) fn id(endpoints: &Table<Endpoint>) -> Option<u16> {
    let snapshot = endpoints.snapshot();
    endpoints.all(&snapshot).map(|endpoint| &endpoint.record).find(|record| record.is_host()).map(|r| r.id)
}

//! The host's own endpoint.

use datapath_abi::identity::HOST;
use devices::HOST_DEVICE;
use labels::{Label, Labels};
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
    let label: Labels = [Label::reserved("host")].into_iter().collect();
    let before = known
        .map(|endpoint| (*endpoint.record).clone())
        .unwrap_or_else(|| Record { options: OptionMap { map: options.clone() }, ..Record::default() });
    let record = Record {
        if_name: HOST_DEVICE.to_owned(),
        if_index,
        mac,
        node_mac: mac,
        op_labels: OpLabels {
            orchestration_identity: label.clone(),
            orchestration_info: label,
            ..OpLabels::default()
        },
        sec_label: Some(SecurityLabel::reserved(HOST, "host")),
        ..before
    };
    match known {
        Some(endpoint) => endpoints.change(endpoint.id(), |endpoint| endpoint.with_record(record)),
        None => endpoints.insert_own(record),
    }
}

/// Returns the id of the host's endpoint, after [`upsert`].
pub(crate) fn id(endpoints: &Table<Endpoint>) -> Option<u16> {
    let snapshot = endpoints.snapshot();
    endpoints.all(&snapshot).map(|endpoint| &endpoint.record).find(|record| record.is_host()).map(|r| r.id)
}

//! Requests as changes of records, validated field by field and against the other endpoints.

use std::net::{Ipv4Addr, Ipv6Addr};

use api_models::EndpointChangeRequest;
use statedb::TableTxn;

use crate::model::endpoint::Endpoint;
use crate::model::error::{BadParameter, Invalid};
use crate::model::id::EndpointId;
use crate::model::mac::Mac;
use crate::model::op_labels::OpLabels;
use crate::model::record::{DatapathConfiguration, Record};
use crate::model::state::State;
use labels::{Filter, GENERATED, Label, Labels, PORTS, RESERVED};

/// Returns the record that a request describes. Its id is the requested one, zero for any.
pub(crate) fn record(request: &EndpointChangeRequest) -> Result<Record, BadParameter> {
    let addressing = request.addressing.clone().unwrap_or_default();
    let datapath = request.datapath_configuration.clone().unwrap_or_default();
    Ok(Record {
        id: number("id", request.id)?,
        container_id: request.container_id.clone(),
        container_netns_path: request.container_netns_path.clone(),
        if_name: request.interface_name.clone(),
        if_index: number("interface-index", request.interface_index)?,
        parent_if_index: number("parent-interface-index", request.parent_interface_index)?,
        container_if_name: request.container_interface_name.clone(),
        disable_legacy_identifiers: request.disable_legacy_identifiers,
        mac: mac(&request.mac)?,
        ipv6: ipv6(&addressing.ipv6)?,
        ipv6_pool: addressing.ipv6_pool_name,
        ipv4: ipv4(&addressing.ipv4)?,
        ipv4_pool: addressing.ipv4_pool_name,
        node_mac: mac(&request.host_mac)?,
        k8s_pod_name: request.k8s_pod_name.clone(),
        k8s_namespace: request.k8s_namespace.clone(),
        k8s_uid: request.k8s_uid.clone(),
        datapath_configuration: DatapathConfiguration {
            disable_sip_verification: datapath.disable_sip_verification,
            external_ipam: datapath.external_ipam,
            install_endpoint_route: datapath.install_endpoint_route,
            require_arp_passthrough: datapath.require_arp_passthrough,
            require_egress_prog: datapath.require_egress_prog,
            require_routing: datapath.require_routing,
        },
        properties: request.properties.clone(),
        netns_cookie: cookie(&request.netns_cookie),
        ..Record::default()
    })
}

/// Returns the labels of a new endpoint; `reserved:init` if there are none yet.
pub(crate) fn labels(texts: &[String], filter: &Filter) -> Result<OpLabels, Invalid> {
    let wished = Labels::parse(texts.iter().map(String::as_str));
    refuse_own(&wished)?;
    let (mut orchestration_identity, orchestration_info) = filter.split(&wished);
    if orchestration_identity.is_empty() {
        if !wished.is_empty() {
            return Err(Invalid::NoLabels);
        }
        orchestration_identity = [Label::reserved("init")].into_iter().collect();
    }
    Ok(OpLabels { orchestration_identity, orchestration_info, ..OpLabels::default() })
}

/// Returns the labels of an endpoint after a client has set the custom ones to `user`.
pub(crate) fn relabelled(labels: &OpLabels, user: &[String]) -> Result<OpLabels, Invalid> {
    let wished = Labels::parse(user.iter().map(String::as_str));
    let added = Labels(
        wished
            .0
            .iter()
            .filter(|(key, _)| !labels.custom.0.contains_key(*key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    );
    refuse_own(&added)?;
    let mut relabelled = OpLabels { custom: wished, ..labels.clone() };
    if !relabelled.custom.is_empty() && labels.is_init() {
        relabelled.orchestration_identity.0.remove("init");
    }
    if relabelled.identity().is_empty() {
        relabelled.orchestration_identity = [Label::reserved("init")].into_iter().collect();
    }
    Ok(relabelled)
}

fn refuse_own(labels: &Labels) -> Result<(), Invalid> {
    let reserved = labels.of_source(RESERVED);
    if !reserved.is_empty() {
        return Err(Invalid::ReservedLabels(reserved.to_string()));
    }
    let generated = [GENERATED, PORTS].map(|source| labels.of_source(source));
    match generated.into_iter().find(|labels| !labels.is_empty()) {
        None => Ok(()),
        Some(generated) => Err(Invalid::GeneratedLabels(generated.to_string())),
    }
}

/// Checks that a new endpoint may have this record beside the existing ones.
pub(crate) fn check(txn: &TableTxn<'_, Endpoint>, record: &Record) -> Result<(), Invalid> {
    if record.id != 0 && txn.get(Endpoint::by_id(EndpointId(record.id))).is_some() {
        return Err(Invalid::IdInUse(EndpointId(record.id)));
    }
    let attachment = record.cni_attachment_id();
    if !attachment.is_empty() && txn.get(Endpoint::by_attachment(&attachment)).is_some() {
        return Err(Invalid::AttachmentInUse(attachment));
    }
    check_interface(txn, record)?;
    let ipv4 = record.ipv4.map(|address| ("ipv4", address.into()));
    let ipv6 = record.ipv6.map(|address| ("ipv6", address.into()));
    for (prefix, address) in ipv4.into_iter().chain(ipv6) {
        if txn.get(Endpoint::by_address(address)).is_some() {
            return Err(Invalid::AddressInUse(format!("{prefix}:{address}")));
        }
    }
    Ok(())
}

/// Checks that no other endpoint has the record's interface: its packets would get the verdicts of the other's policy.
/// Scans all endpoints, which takes a few microseconds.
pub(crate) fn check_interface(txn: &TableTxn<'_, Endpoint>, record: &Record) -> Result<(), Invalid> {
    let index = record.if_index;
    let has_it = |other: &&Endpoint| {
        let gone = other.state == State::Disconnected || other.record.id == record.id;
        !gone && other.record.has_interface() && other.record.if_index == index
    };
    match txn.all().map(|row| &**row).find(has_it) {
        Some(other) if index != 0 => Err(Invalid::InterfaceInUse { index, owner: other.id() }),
        _ => Ok(()),
    }
}

/// Returns the record after a PATCH: the fields of the request replace the old ones. `None` if nothing changes.
pub(crate) fn patched(old: &Record, new: Record) -> Option<Record> {
    let mut record = old.clone();
    let text = |new: String, old: &mut String| {
        if !new.is_empty() {
            *old = new;
        }
    };
    text(new.if_name, &mut record.if_name);
    text(new.k8s_pod_name, &mut record.k8s_pod_name);
    text(new.k8s_namespace, &mut record.k8s_namespace);
    text(new.k8s_uid, &mut record.k8s_uid);
    if new.if_index != 0 {
        record.if_index = new.if_index;
    }
    record.mac = new.mac.or(record.mac);
    record.node_mac = new.node_mac.or(record.node_mac);
    record.ipv4 = new.ipv4.or(record.ipv4);
    record.ipv6 = new.ipv6.or(record.ipv6);
    (record != *old).then_some(record)
}

fn number<T: TryFrom<i64>>(field: &'static str, value: i64) -> Result<T, BadParameter> {
    T::try_from(value).map_err(|_| BadParameter::Range { field, value })
}

fn mac(text: &str) -> Result<Option<Mac>, BadParameter> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

fn ipv4(text: &str) -> Result<Option<Ipv4Addr>, BadParameter> {
    match (text, text.parse(), text.parse::<Ipv6Addr>()) {
        ("", ..) => Ok(None),
        (_, Ok(address), _) => Ok(Some(address)),
        (_, Err(_), Ok(_)) => Err(BadParameter::Family { family: "IPv4", text: text.to_owned() }),
        _ => Err(not_an_address(text)),
    }
}

fn ipv6(text: &str) -> Result<Option<Ipv6Addr>, BadParameter> {
    match (text, text.parse(), text.parse::<Ipv4Addr>()) {
        ("", ..) => Ok(None),
        (_, Ok(address), _) => Ok(Some(address)),
        (_, Err(_), Ok(_)) => Err(BadParameter::Family { family: "IPv6", text: text.to_owned() }),
        _ => Err(not_an_address(text)),
    }
}

fn not_an_address(text: &str) -> BadParameter {
    BadParameter::Address { text: text.to_owned(), reason: "unable to parse IP" }
}

/// Parses the cookie of a network namespace. Returns zero if it cannot be parsed: features that need it are disabled
/// for the endpoint, which is better than to refuse the endpoint.
fn cookie(text: &str) -> u64 {
    match text.parse() {
        Ok(cookie) => cookie,
        Err(_) if text.is_empty() => 0,
        Err(error) => {
            tracing::warn!(cookie = text, %error, "Unreadable network namespace cookie of an endpoint");
            0
        }
    }
}

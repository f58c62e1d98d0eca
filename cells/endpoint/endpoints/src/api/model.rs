//! Endpoints as models of the REST API.

use api::ControllerUuids;
use api_models as models;
use models::{List, Required};

use crate::api::policy_model::PolicyView;
use crate::model::endpoint::Endpoint;
use crate::model::log::{Change, Code};
use crate::model::record::Record;
use crate::model::state::State;
use labels::Labels;

/// Returns the whole endpoint.
pub(crate) fn endpoint(
    endpoint: &Endpoint,
    policy: &PolicyView,
    uuids: &ControllerUuids,
) -> models::Endpoint {
    let record = &*endpoint.record;
    let status = models::EndpointStatus {
        controllers: vec![regeneration(endpoint, uuids)],
        external_identifiers: Some(identifiers(record)),
        health: Some(health(endpoint, policy)),
        identity: identity(record),
        labels: Some(label_status(record)),
        log: endpoint.log.last().map(change).into_iter().collect(),
        networking: Some(networking(record)),
        policy: Some(policy.model(endpoint)),
        realized: Some(configuration(record)),
        state: Required(endpoint.state.name().to_owned()),
        ..models::EndpointStatus::default()
    };
    models::Endpoint { id: record.id.into(), spec: Some(configuration(record)), status: Some(status) }
}

/// Returns the state of the endpoint's regeneration as a controller, Cilium's term for a reconciler.
fn regeneration(endpoint: &Endpoint, uuids: &ControllerUuids) -> models::ControllerStatus {
    let name = format!("endpoint-{}-regeneration-recovery", endpoint.record.id);
    let outcomes = || endpoint.log.newest_first().filter(|change| change.code != Code::Warning);
    let failures = || outcomes().filter(|change| change.code == Code::Failure);
    let (consecutive, all) =
        (outcomes().take_while(|change| change.code == Code::Failure).count(), failures().count());
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let last = failures().next();
    let runs = models::ControllerRuns {
        consecutive_failure_count: count(consecutive),
        failure_count: count(all),
        last_failure_msg: last.map(|change| change.message.to_string()).unwrap_or_default(),
        last_failure_timestamp: last.map(|change| change.at.into()).unwrap_or_default(),
        last_success_timestamp: match endpoint.status.is_done() {
            true => endpoint.status.updated_at().into(),
            false => models::DateTime::default(),
        },
        success_count: i64::try_from(endpoint.builds).unwrap_or(i64::MAX),
    };
    let configuration = models::ControllerConfiguration { error_retry: true, ..Default::default() };
    let uuid = uuids.of(&name);
    models::ControllerStatus { configuration: Some(configuration), name, status: Some(runs), uuid }
}

/// Returns the identity, if there is one.
pub(crate) fn identity(record: &Record) -> Option<models::Identity> {
    let identity = record.sec_label.as_ref()?;
    let labels = identity.labels.texts();
    Some(models::Identity { id: identity.id.into(), labels, ..models::Identity::default() })
}

/// Returns options and the labels that clients have set.
pub(crate) fn configuration(record: &Record) -> models::EndpointConfigurationSpec {
    models::EndpointConfigurationSpec {
        label_configuration: Some(user_labels(record)),
        options: record.options.map.words(),
    }
}

/// Returns labels, requested and realized.
pub(crate) fn labels(record: &Record) -> models::LabelConfiguration {
    models::LabelConfiguration { spec: Some(user_labels(record)), status: Some(label_status(record)) }
}

/// Returns the log, newest first.
pub(crate) fn log(endpoint: &Endpoint) -> Vec<models::EndpointStatusChange> {
    endpoint.log.newest_first().map(change).collect()
}

/// Returns the endpoint's health, by part.
pub(crate) fn health(endpoint: &Endpoint, policy: &PolicyView) -> models::EndpointHealth {
    let (bpf, policy, connected, overall) = match endpoint.state {
        State::WaitingForIdentity => ("Disabled", "Bootstrap", true, "Disabled"),
        State::WaitingToRegenerate | State::Regenerating | State::Disconnecting => {
            ("Pending", "Pending", true, "Pending")
        }
        State::Disconnected | State::Invalid => ("Disabled", "Disabled", false, "Disabled"),
        State::Ready | State::Restoring if policy.failing => ("OK", "Failure", true, "Failure"),
        State::Ready | State::Restoring if endpoint.is_failing() => ("Failure", "OK", true, "Failure"),
        State::Ready | State::Restoring => ("OK", "OK", true, "OK"),
    };
    models::EndpointHealth {
        bpf: bpf.to_owned(),
        connected,
        overall_health: overall.to_owned(),
        policy: policy.to_owned(),
    }
}

fn change(change: &Change) -> models::EndpointStatusChange {
    models::EndpointStatusChange {
        code: change.code.name().to_owned(),
        message: change.message.to_string(),
        state: change.state.name().to_owned(),
        timestamp: change.timestamp(),
    }
}

fn identifiers(record: &Record) -> models::EndpointIdentifiers {
    let legacy = |text: String| if record.disable_legacy_identifiers { String::new() } else { text };
    models::EndpointIdentifiers {
        cni_attachment_id: record.cni_attachment_id(),
        container_id: legacy(record.container_id.clone()),
        k8s_namespace: record.k8s_namespace.clone(),
        k8s_pod_name: record.k8s_pod_name.clone(),
        pod_name: legacy(record.pod_name()),
        ..models::EndpointIdentifiers::default()
    }
}

fn user_labels(record: &Record) -> models::LabelConfigurationSpec {
    models::LabelConfigurationSpec { user: record.op_labels.custom.texts() }
}

fn label_status(record: &Record) -> models::LabelConfigurationStatus {
    let labels = &record.op_labels;
    models::LabelConfigurationStatus {
        derived: labels.orchestration_info.texts(),
        disabled: labels.disabled.texts(),
        realized: Some(user_labels(record)),
        security_relevant: Labels::texts(&labels.identity()),
    }
}

fn networking(record: &Record) -> models::EndpointNetworking {
    let mut pair = models::AddressPair::default();
    if let Some(address) = record.ipv4 {
        pair.ipv4 = address.to_string();
        pair.ipv4_pool_name = record.ipv4_pool.clone();
    }
    if let Some(address) = record.ipv6 {
        pair.ipv6 = address.to_string();
        pair.ipv6_pool_name = record.ipv6_pool.clone();
    }
    models::EndpointNetworking {
        addressing: List(Some(vec![pair])),
        container_interface_name: record.container_if_name.clone(),
        host_addressing: None,
        host_mac: record.node_mac.map(|mac| mac.to_string()).unwrap_or_default(),
        interface_index: record.if_index.into(),
        interface_name: record.if_name.clone(),
        mac: record.mac.map(|mac| mac.to_string()).unwrap_or_default(),
    }
}

//! The panels of the page as JSON, from the agent's API and shell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, bail};
use api_models::{Endpoint, EndpointStatus, PolicyRule, StatusResponse};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::Agent;
use crate::client::shell::{Connection, Reply};
use crate::commands::statedb::rows;

/// Labels of the rules of an endpoint that come from Kubernetes.
const KIND: &str = "k8s:io.cilium.k8s.policy.derived-from=";
const NAMESPACE: &str = "k8s:io.cilium.k8s.policy.namespace=";
const NAME: &str = "k8s:io.cilium.k8s.policy.name=";

/// A row of the table `health`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Report {
    #[serde(rename = "ID")]
    id: ReportId,
    level: String,
    message: String,
    error: String,
    #[serde(rename = "Final")]
    last_message: String,
    updated: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ReportId {
    module: Vec<String>,
    component: Vec<String>,
}

/// A row of the table `endpoint-policies`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyRow {
    subject: Subject,
    state: String,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Subject {
    endpoint: i64,
}

/// Returns the state of the agent and of its parts, those that do not work first.
pub(super) fn node(agent: &mut Agent) -> anyhow::Result<Value> {
    let status: StatusResponse = agent.get("/healthz").context("cannot get the status")?;
    let parts = [
        ("Agent", status.cilium.as_ref().map(|part| (&part.state, &part.msg))),
        ("Kubernetes", status.kubernetes.as_ref().map(|part| (&part.state, &part.msg))),
        ("Hubble", status.hubble.as_ref().map(|part| (&part.state, &part.msg))),
    ];
    let parts = parts.into_iter().filter_map(|(name, part)| {
        let (state, message) = part?;
        Some(json!({"name": name, "state": state, "message": message}))
    });
    let parts: Vec<Value> = parts.collect();
    let failing: Vec<Value> = status
        .controllers
        .iter()
        .filter_map(|controller| {
            let status = controller.status.as_ref().filter(|status| status.consecutive_failure_count > 0)?;
            Some(json!({"name": controller.name, "error": status.last_failure_msg}))
        })
        .collect();
    let mut reports: Vec<Report> = rows(agent, "health")?;
    reports.sort_by_key(|report| (report.level == "OK", report.level == "Stopped"));
    let report = |report: &Report| {
        let message = [&report.message, &report.error, &report.last_message];
        let message: Vec<&str> =
            message.into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let path: Vec<&str> =
            report.id.module.iter().chain(&report.id.component).map(String::as_str).collect();
        json!({"id": path.join("."), "level": report.level, "message": message.join(": "), "updated": report.updated})
    };
    Ok(json!({
        "name": status.cluster.map(|cluster| cluster.self_name).unwrap_or_default(),
        "parts": parts,
        "controllers": failing,
        "health": reports.iter().map(report).collect::<Vec<_>>(),
    }))
}

/// Returns the endpoints with their policies.
pub(super) fn endpoints(agent: &mut Agent) -> anyhow::Result<Value> {
    let found: Option<Vec<Endpoint>> = agent.find("/endpoint").context("cannot get endpoints")?;
    let policies: Vec<PolicyRow> = rows(agent, "endpoint-policies")?;
    let policies: BTreeMap<i64, PolicyRow> =
        policies.into_iter().map(|row| (row.subject.endpoint, row)).collect();
    let mut endpoints = found.unwrap_or_default();
    endpoints.sort_by_key(|endpoint| endpoint.id);
    let endpoint = |Endpoint { id, status, .. }: &Endpoint| {
        let status = status.as_ref()?;
        let addressing = status.networking.iter().flat_map(|networking| networking.addressing.iter());
        let addresses = addressing.flat_map(|pair| [pair.ipv4.clone(), pair.ipv6.clone()]);
        let identity = status.identity.as_ref();
        let policy = status.policy.as_ref().and_then(|policy| policy.realized.as_ref());
        let row = policies.get(id);
        Some(json!({
            "id": id,
            "name": name_of(status),
            "state": &*status.state,
            "health": status.health.as_ref().map(|health| &health.overall_health),
            "identity": identity.map_or(0, |identity| identity.id),
            "labels": identity.map(|identity| &identity.labels),
            "addresses": addresses.filter(|address| !address.is_empty()).collect::<Vec<_>>(),
            "enforced": policy.map(|policy| &policy.policy_enabled),
            "revision": policy.map(|policy| policy.policy_revision),
            "policies": policy_names(status),
            "policy_state": row.map(|row| &row.state),
            "policy_error": row.and_then(|row| row.error.as_ref()),
        }))
    };
    Ok(json!({"endpoints": endpoints.iter().filter_map(endpoint).collect::<Vec<_>>()}))
}

/// Returns the pod of an endpoint, or the labels of its identity.
fn name_of(status: &EndpointStatus) -> String {
    let names = status.external_identifiers.as_ref();
    match names.filter(|names| !names.k8s_pod_name.is_empty()) {
        Some(names) => format!("{}/{}", names.k8s_namespace, names.k8s_pod_name),
        None => status
            .identity
            .iter()
            .flat_map(|identity| identity.labels.iter().cloned())
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Returns the policies with rules about an endpoint, as `KIND/NAMESPACE/NAME`.
fn policy_names(status: &EndpointStatus) -> BTreeSet<String> {
    let policy = status.policy.as_ref().and_then(|policy| policy.realized.as_ref());
    let lists = policy.into_iter().flat_map(|policy| {
        let l4 = policy.l4.iter().flat_map(|l4| [&l4.ingress, &l4.egress]);
        l4.chain(policy.cidr_policy.iter().flat_map(|cidr| [&cidr.ingress, &cidr.egress]))
    });
    let sources = |rule: &PolicyRule| {
        let value = |labels: &[String], key: &str| {
            labels.iter().find_map(|label| label.strip_prefix(key)).map(str::to_owned)
        };
        let name = |labels: &Vec<String>| {
            let parts = [KIND, NAMESPACE, NAME].map(|key| value(labels, key));
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            if parts.is_empty() { labels.join(" ") } else { parts.join("/") }
        };
        rule.derived_from_rules.iter().map(name).collect::<Vec<_>>()
    };
    lists.flat_map(|list| list.iter()).flat_map(sources).filter(|name| !name.is_empty()).collect()
}

/// Returns the sizes of maps, and the pressure of those that have one.
pub(super) fn maps(agent: &mut Agent, shell: &Path) -> anyhow::Result<Value> {
    #[derive(Deserialize)]
    struct Sample {
        labels: BTreeMap<String, String>,
        value: Value,
    }
    let status: StatusResponse = agent.get("/healthz").context("cannot get the status")?;
    let sizes = status.bpf_maps.iter().flat_map(|maps| maps.maps.iter());
    let sizes: Vec<Value> = sizes.map(|map| json!({"name": map.name, "size": map.size})).collect();
    let mut answer = Vec::new();
    let mut connection = Connection::open_once(shell)?;
    match connection.command("metrics --format=json bpf_map_pressure", &mut answer)? {
        Reply::Done => {}
        Reply::Failed => bail!("the agent's shell: {}", String::from_utf8_lossy(&answer).trim()),
    }
    let samples: Option<Vec<Sample>> =
        serde_json::from_slice(&answer).context("metrics of the agent cannot be decoded")?;
    let pressure = samples.unwrap_or_default().into_iter().map(|sample| {
        let name = sample.labels.get("map_name").cloned().unwrap_or_default();
        json!({"name": name, "pressure": sample.value})
    });
    Ok(json!({"pressure": pressure.collect::<Vec<_>>(), "sizes": sizes}))
}

/// Returns the start of the agent as a picture.
pub(super) fn timeline(agent: &mut Agent) -> anyhow::Result<Vec<u8>> {
    let response = agent.call_plain("GET", "/apiary/timeline")?;
    if response.status != 200 {
        bail!(response.words());
    }
    Ok(response.body)
}

//! Invalid fields of Services and EndpointSlices: each field with its value. A server of another version or without
//! validation may send such fields; the rest of the object applies.

use hive::health::summarize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use hive::Health;
use k8s_tables::core::{EndpointSlice, Service};
use k8s_tables::selector::LabelRequirements;
use k8s_tables::{Problem, SmolStr};

use crate::model::annotations;
use crate::model::service::ForwardingMode;
use crate::reflectors::convert;
use crate::writer::mesh;

/// The maximum number of objects that a health report names.
const MAX_REPORTED_OBJECTS: usize = 8;
/// The maximum number of errors of an object in a report.
const MAX_REPORTED_FIELDS: usize = 4;

/// Objects that are served partially.
#[derive(Default)]
pub(super) struct InvalidFields {
    /// The invalid fields of each, by kind and key.
    objects: BTreeMap<(&'static str, SmolStr), String>,
    is_reported: bool,
}

impl InvalidFields {
    /// Whether no object has invalid fields.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Records the invalid fields of an object and logs new ones; true if there are new ones.
    pub(super) fn note(&mut self, kind: &'static str, key: &SmolStr, problems: &[Problem]) -> bool {
        if problems.is_empty() {
            if !self.objects.is_empty() {
                self.objects.remove(&(kind, key.clone()));
            }
            return false;
        }
        let error = summarize(problems, MAX_REPORTED_FIELDS, "; ");
        let is_new = self.objects.get(&(kind, key.clone())) != Some(&error);
        if is_new {
            tracing::warn!(kind, object = %key, error, "Wrong fields of an object are passed over");
            self.objects.insert((kind, key.clone()), error);
        }
        is_new
    }

    /// Reports all objects in one health report, while there are any.
    pub(super) fn report(&mut self, health: &Health) {
        let row = health.child("passed-over");
        if self.objects.is_empty() {
            if std::mem::take(&mut self.is_reported) {
                row.close();
            }
            return;
        }
        self.is_reported = true;
        let message = format!("Wrong fields of {} object(s) are passed over", self.objects.len());
        row.degraded_anew(message, self.summary());
    }

    /// Returns the first objects, each with its errors.
    fn summary(&self) -> String {
        let text = |((kind, key), error): (&(&str, SmolStr), &String)| format!("{kind} {key}: {error}");
        summarize(self.objects.iter().map(text), MAX_REPORTED_OBJECTS, "\n")
    }

    #[cfg(test)]
    pub(super) fn errors(&self) -> Vec<String> {
        self.summary().lines().map(str::to_owned).collect()
    }
}

/// Returns requested fields of a service that result in no frontend.
pub(crate) fn of_service(manifest: &Service) -> Vec<Problem> {
    let spec = &manifest.spec;
    let mut problems = Vec::new();
    if spec.r#type != "ExternalName" && spec.cluster_ip != "None" {
        let several = spec.cluster_ips.iter().filter(|ip| *ip != "None");
        match spec.cluster_ips.is_empty() {
            false => unread::<IpAddr>(several, list("spec.clusterIPs"), ADDRESS, &mut problems),
            true => {
                unread::<IpAddr>([&spec.cluster_ip], |_| "spec.clusterIP".to_owned(), ADDRESS, &mut problems)
            }
        }
        for (index, port) in spec.ports.iter().enumerate() {
            if port.port == 0 {
                problems.push(Problem::new(format!("spec.ports[{index}].port"), NO_PORT));
            }
            known_protocol(&port.protocol, || format!("spec.ports[{index}].protocol"), &mut problems);
        }
    }
    unread::<IpAddr>(&spec.external_ips, list("spec.externalIPs"), ADDRESS, &mut problems);
    for (index, text) in spec.load_balancer_source_ranges.iter().enumerate() {
        if !text.is_empty() && convert::range(text).is_none() {
            let path = format!("spec.loadBalancerSourceRanges[{index}]");
            problems.push(wrong(path, text, "a prefix such as 192.0.2.0/24"));
        }
    }
    let ingress = manifest.status.load_balancer.ingress.iter().map(|ingress| &ingress.ip);
    let path = |index| format!("status.loadBalancer.ingress[{index}].ip");
    unread::<IpAddr>(ingress, path, ADDRESS, &mut problems);
    problems.extend(of_annotations(manifest));
    problems
}

/// Returns the annotations of a service with unknown values.
pub(crate) fn of_annotations(manifest: &Service) -> Vec<Problem> {
    let wrong_one = |name: &str, is_right: fn(&str) -> bool, right: &str| {
        let value = manifest.metadata.annotations.get(name).filter(|value| !is_right(value))?;
        Some(wrong(format!("metadata.annotations[{name:?}]"), value, right))
    };
    let is_type = |name: &str| convert::askable_type(name).is_some();
    let is_mode = |name: &str| ForwardingMode::from_name(&name.to_ascii_lowercase()).is_some();
    let is_selector = |text: &str| text.parse::<LabelRequirements>().is_ok();
    let everywhere = "a selector of labels; the service is for all nodes";
    let found = [
        wrong_one(annotations::TYPE, is_type, "ClusterIP, NodePort or LoadBalancer"),
        wrong_one(annotations::FORWARDING_MODE, is_mode, "dsr or snat"),
        wrong_one(annotations::NODE_SELECTOR, is_selector, everywhere),
    ];
    let is_bool = |text: &str| ["true", "false"].iter().any(|right| text.eq_ignore_ascii_case(right));
    let of_mesh = annotations::GLOBAL
        .map(|name| wrong_one(name, is_bool, "true or false"))
        .into_iter()
        .chain(annotations::AFFINITY.map(|name| wrong_one(name, mesh::is_affinity, "local, remote or none")));
    found.into_iter().chain(of_mesh).flatten().collect()
}

/// Returns requested fields of a slice that result in no backend.
pub(crate) fn of_slice(manifest: &EndpointSlice) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, endpoint) in manifest.endpoints.iter().enumerate() {
        let path = |at| format!("endpoints[{index}].addresses[{at}]");
        unread::<IpAddr>(&endpoint.addresses, path, ADDRESS, &mut problems);
    }
    for (index, port) in manifest.ports.iter().enumerate() {
        if port.port == Some(0) {
            problems.push(Problem::new(format!("ports[{index}].port"), NO_PORT));
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        known_protocol(protocol, || format!("ports[{index}].protocol"), &mut problems);
    }
    problems.extend(of_weight(manifest));
    problems
}

/// Returns the annotation with the weight of a slice's backends, if it is not a valid weight.
pub(crate) fn of_weight(manifest: &EndpointSlice) -> Option<Problem> {
    let name = annotations::WEIGHT;
    let value = manifest.metadata.annotations.get(name).filter(|value| value.parse::<u16>().is_err())?;
    Some(wrong(format!("metadata.annotations[{name:?}]"), value, "a number from 0 to 65535"))
}

const ADDRESS: &str = "an IP address";
const NO_PORT: &str = "0 is no port; give one from 1 to 65535";

fn list(name: &str) -> impl Fn(usize) -> String {
    move |index| format!("{name}[{index}]")
}

/// Adds the texts that cannot be parsed; empty ones count as absent.
fn unread<'t, T: FromStr>(
    texts: impl IntoIterator<Item = &'t SmolStr>,
    path: impl Fn(usize) -> String,
    right: &str,
    problems: &mut Vec<Problem>,
) {
    for (index, text) in texts.into_iter().enumerate() {
        if !text.is_empty() && text.trim().parse::<T>().is_err() {
            problems.push(wrong(path(index), text, right));
        }
    }
}

fn known_protocol(name: &str, path: impl Fn() -> String, problems: &mut Vec<Problem>) {
    if convert::protocol(name).is_none() {
        problems.push(wrong(path(), name, "TCP, UDP or SCTP"));
    }
}

fn wrong(path: String, value: &str, right: &str) -> Problem {
    Problem::new(path, format_args!("'{value}' is not {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_is_logged_once_and_few_are_named() {
        let mut objects = InvalidFields::default();
        let problem = |at: usize| Problem::new(format!("spec.ports[{at}].port"), "0 is no port");
        let all: Vec<Problem> = (0..100_000).map(problem).collect();
        assert!(objects.note("Service", &"ns/a".into(), &all));
        assert!(!objects.note("Service", &"ns/a".into(), &all), "noted already");
        assert!(objects.errors()[0].ends_with("; and 99996 more"), "{:?}", objects.errors());
        assert!(objects.note("Service", &"ns/a".into(), &all[..1]), "it has changed");
        for n in 0..20 {
            objects.note("EndpointSlice", &format!("ns/s{n}").into(), &all[..1]);
        }
        let errors = objects.errors();
        assert_eq!(
            (errors.len(), errors.last().unwrap().as_str()),
            (MAX_REPORTED_OBJECTS + 1, "and 13 more")
        );
        for n in 0..20 {
            objects.note("EndpointSlice", &format!("ns/s{n}").into(), &[]);
        }
        objects.note("Service", &"ns/a".into(), &[]);
        assert_eq!(objects.errors(), [] as [String; 0]);
    }
}

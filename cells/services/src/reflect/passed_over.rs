//! What of a Service or an EndpointSlice cannot be understood: each field with its value. A server of another version or
//! without checks may send such; the rest of the object counts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use hive::Health;
use ipnetwork::IpNetwork;
use k8s::core::{EndpointSlice, Service};
use k8s::{Problem, SmolStr};

use crate::convert;

/// Objects of a health row that are named with their faults.
const NAMED: usize = 8;
/// Faults of an object that are told.
const TOLD: usize = 4;

/// Objects that are served in part.
#[derive(Default)]
pub(super) struct PassedOver {
    /// What is told of each, by kind and key.
    objects: BTreeMap<(&'static str, SmolStr), String>,
    told: bool,
}

impl PassedOver {
    /// Notes what is wrong with an object now; what was not said of it before is logged. Whether it was.
    pub(super) fn note(&mut self, kind: &'static str, key: &SmolStr, problems: &[Problem]) -> bool {
        if problems.is_empty() {
            if !self.objects.is_empty() {
                self.objects.remove(&(kind, key.clone()));
            }
            return false;
        }
        let mut texts: Vec<String> = problems.iter().take(TOLD).map(Problem::to_string).collect();
        if problems.len() > TOLD {
            texts.push(format!("and {} more", problems.len() - TOLD));
        }
        let error = texts.join("; ");
        let anew = self.objects.get(&(kind, key.clone())) != Some(&error);
        if anew {
            tracing::error!(kind, object = %key, error, "Wrong fields of an object are passed over");
            self.objects.insert((kind, key.clone()), error);
        }
        anew
    }

    /// Tells of all objects in one row, while there are any.
    pub(super) fn tell(&mut self, health: &Health) {
        let row = health.scope("passed-over");
        if self.objects.is_empty() {
            if std::mem::take(&mut self.told) {
                row.close();
            }
            return;
        }
        self.told = true;
        let message = format!("Wrong fields of {} object(s) are passed over", self.objects.len());
        row.degraded_anew(message, self.errors().join("\n"));
    }

    /// The first objects, each with its faults.
    pub(super) fn errors(&self) -> Vec<String> {
        let text = |((kind, key), error): (&(&str, SmolStr), &String)| format!("{kind} {key}: {error}");
        let mut lines: Vec<String> = self.objects.iter().take(NAMED).map(text).collect();
        if self.objects.len() > NAMED {
            lines.push(format!("and {} more", self.objects.len() - NAMED));
        }
        lines
    }
}

/// Fields of a service that make no frontend, although somebody wants one.
pub(crate) fn of_service(manifest: &Service) -> Vec<Problem> {
    let spec = &manifest.spec;
    let mut problems = Vec::new();
    if spec.r#type != "ExternalName" && spec.cluster_ip != "None" {
        let named = |ip: &&SmolStr| *ip != "None";
        let ips = spec.cluster_ips.iter().enumerate().filter(|(_, ip)| named(ip));
        let ips = ips.map(|(index, ip)| (format!("spec.clusterIPs[{index}]"), ip));
        match spec.cluster_ips.is_empty() {
            false => unread::<IpAddr>(ips, ADDRESS, &mut problems),
            true => {
                unread::<IpAddr>([("spec.clusterIP".to_owned(), &spec.cluster_ip)], ADDRESS, &mut problems)
            }
        }
        for (index, port) in spec.ports.iter().enumerate() {
            let path = |field: &str| format!("spec.ports[{index}].{field}");
            if port.port == 0 {
                problems.push(Problem::new(path("port"), "0 is no port; give one from 1 to 65535"));
            }
            known_protocol(path("protocol"), &port.protocol, &mut problems);
        }
    }
    let ips = numbered("spec.externalIPs", &spec.external_ips);
    unread::<IpAddr>(ips, ADDRESS, &mut problems);
    let ranges = numbered("spec.loadBalancerSourceRanges", &spec.load_balancer_source_ranges);
    unread::<IpNetwork>(ranges, "a prefix such as 192.0.2.0/24", &mut problems);
    let ingress = manifest.status.load_balancer.ingress.iter().enumerate();
    let ingress =
        ingress.map(|(index, ingress)| (format!("status.loadBalancer.ingress[{index}].ip"), &ingress.ip));
    unread::<IpAddr>(ingress, ADDRESS, &mut problems);
    problems
}

/// Fields of a slice that make no backend, although somebody wants one.
pub(crate) fn of_slice(manifest: &EndpointSlice) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, endpoint) in manifest.endpoints.iter().enumerate() {
        for (at, ip) in endpoint.addresses.iter().enumerate() {
            if ip.trim().parse::<IpAddr>().is_err() {
                problems.push(wrong(format!("endpoints[{index}].addresses[{at}]"), ip, ADDRESS));
            }
        }
    }
    for (index, port) in manifest.ports.iter().enumerate() {
        if port.port == Some(0) {
            let path = format!("ports[{index}].port");
            problems.push(Problem::new(path, "0 is no port; give one from 1 to 65535"));
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        known_protocol(format!("ports[{index}].protocol"), protocol, &mut problems);
    }
    problems
}

const ADDRESS: &str = "an IP address";

fn numbered<'t>(list: &str, texts: &'t [SmolStr]) -> impl Iterator<Item = (String, &'t SmolStr)> {
    texts.iter().enumerate().map(move |(index, text)| (format!("{list}[{index}]"), text))
}

/// Adds the texts that cannot be read; empty ones say nothing.
fn unread<'t, T: FromStr>(
    texts: impl IntoIterator<Item = (String, &'t SmolStr)>,
    right: &str,
    problems: &mut Vec<Problem>,
) {
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty() && text.trim().parse::<T>().is_err());
    problems.extend(texts.map(|(path, text)| wrong(path, text, right)));
}

fn known_protocol(path: String, name: &str, problems: &mut Vec<Problem>) {
    if convert::protocol(name).is_none() {
        problems.push(wrong(path, name, "TCP, UDP or SCTP"));
    }
}

fn wrong(path: String, value: &str, right: &str) -> Problem {
    Problem::new(path, format_args!("'{value}' is not {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_logged_once_and_few_are_named() {
        let mut objects = PassedOver::default();
        let problem = |at: usize| Problem::new(format!("spec.ports[{at}].port"), "0 is no port");
        let all: Vec<Problem> = (0..100_000).map(problem).collect();
        assert!(objects.note("Service", &"ns/a".into(), &all));
        assert!(!objects.note("Service", &"ns/a".into(), &all), "said already");
        assert!(objects.errors()[0].ends_with("; and 99996 more"), "{:?}", objects.errors());
        assert!(objects.note("Service", &"ns/a".into(), &all[..1]), "it has changed");
        for n in 0..20 {
            objects.note("EndpointSlice", &format!("ns/s{n}").into(), &all[..1]);
        }
        let errors = objects.errors();
        assert_eq!((errors.len(), errors.last().unwrap().as_str()), (NAMED + 1, "and 13 more"));
        for n in 0..20 {
            objects.note("EndpointSlice", &format!("ns/s{n}").into(), &[]);
        }
        objects.note("Service", &"ns/a".into(), &[]);
        assert_eq!(objects.errors(), [] as [String; 0]);
    }
}

//! The objects of both kinds, parsed once for each change; the last valid version of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_api::Types;
use k8s_tables::SmolStr;
use k8s_types::cilium::EnvoyConfigSpec;
use k8s_types::{LabelSelector, ObjectMeta, Time};
use loadbalancer::ServiceName;
use statedb::Snapshot;

use crate::controller::Tables;
use crate::model::EnvoyConfig;
use crate::parse::{Object, Parsed, Settings, parse};
use crate::progress::Progress;

/// An object.
struct Known {
    meta: ObjectMeta,
    spec: EnvoyConfigSpec,
    /// The last valid version.
    valid: Option<Valid>,
    /// The faults of the current version.
    faults: Vec<String>,
}

/// A valid version of an object.
struct Valid {
    parsed: Arc<Parsed>,
    labels: BTreeMap<String, String>,
    node_selector: String,
    services: Vec<ServiceName>,
    backend_services: Vec<ServiceName>,
}

/// The objects by `NAMESPACE/NAME`.
#[derive(Default)]
pub(crate) struct Objects {
    known: BTreeMap<Arc<str>, Known>,
    selected: BTreeSet<Arc<str>>,
}

impl Objects {
    /// Reads the objects of a snapshot.
    pub(crate) fn read(&mut self, tables: &Tables, snapshot: &Snapshot, settings: &Settings, types: &Types) {
        let mut seen = BTreeSet::new();
        for row in tables.objects.all(snapshot) {
            seen.insert(self.set(&row.metadata, &row.spec, settings, types));
        }
        for row in tables.clusterwide.all(snapshot) {
            seen.insert(self.set(&row.metadata, &row.spec, settings, types));
        }
        self.known.retain(|name, _| seen.contains(name));
    }

    fn set(
        &mut self,
        meta: &ObjectMeta,
        spec: &EnvoyConfigSpec,
        settings: &Settings,
        types: &Types,
    ) -> Arc<str> {
        let name: Arc<str> = format!("{}/{}", meta.namespace, meta.name).into();
        let known = self.known.get(&name);
        let is_same = |known: &Known| {
            let parts = |meta: &ObjectMeta| {
                (
                    meta.labels.clone(),
                    meta.annotations.clone(),
                    meta.owner_references.clone(),
                    meta.uid.clone(),
                )
            };
            known.spec == *spec && parts(&known.meta) == parts(meta)
        };
        if known.is_some_and(is_same) {
            return name;
        }
        let (valid, faults) = match parse(Object { meta, spec }, settings, types) {
            Ok(parsed) => (Some(Valid::new(parsed, meta, spec)), Vec::new()),
            Err(faults) => {
                for fault in &faults {
                    tracing::warn!(config = %name, %fault, "Envoy configuration is invalid, the version before stays in force");
                }
                let former = self.known.remove(&name).and_then(|known| known.valid);
                (former, faults.iter().map(ToString::to_string).collect())
            }
        };
        self.known.insert(name.clone(), Known { meta: meta.clone(), spec: spec.clone(), valid, faults });
        name
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the last valid versions.
    pub(crate) fn valid(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Parsed>)> {
        self.known.iter().filter_map(|(name, known)| Some((name, &known.valid.as_ref()?.parsed)))
    }

    /// Returns the faults, with the names of the objects.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (&Arc<str>, &String)> {
        self.known.iter().flat_map(|(name, known)| known.faults.iter().map(move |fault| (name, fault)))
    }

    /// Returns the time of creation, by which the older of two comes first; that of an object without one is the first.
    pub(crate) fn created(&self, name: &str) -> Option<i64> {
        let created: Option<Time> = self.known.get(name)?.meta.creation_timestamp;
        created.map(Time::seconds)
    }

    pub(crate) fn set_selected(&mut self, selected: BTreeSet<Arc<str>>) {
        self.selected = selected;
    }

    /// Returns the rows of all valid objects.
    pub(crate) fn rows(&self, progress: &BTreeMap<Arc<str>, Progress>) -> Vec<EnvoyConfig> {
        let row = |(name, known): (&Arc<str>, &Known)| {
            let valid = known.valid.as_ref()?;
            let port = |listener: &Arc<str>| {
                let port = progress.get(name).and_then(|one| one.port(listener));
                (listener.clone(), port.unwrap_or_default())
            };
            Some(EnvoyConfig {
                name: name.clone(),
                selected: self.selected.contains(name),
                labels: valid.labels.clone(),
                node_selector: valid.node_selector.clone(),
                services: valid.services.clone(),
                backend_services: valid.backend_services.clone(),
                listeners: valid.parsed.listeners.keys().map(port).collect(),
            })
        };
        self.known.iter().filter_map(row).collect()
    }
}

impl Valid {
    fn new(parsed: Parsed, meta: &ObjectMeta, spec: &EnvoyConfigSpec) -> Valid {
        let labels = meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let services: Vec<ServiceName> =
            parsed.services.iter().map(|redirect| redirect.service.clone()).collect();
        // Those that are redirected are in both lists of the parsed object.
        let is_given = |name: &&ServiceName| {
            spec.backend_services
                .iter()
                .any(|one| one.name == name.name() && in_namespace(&one.namespace, name))
                || !services.contains(name)
        };
        let backend_services = parsed.backends.keys().filter(is_given).cloned().collect();
        let node_selector = spec.node_selector.as_ref().map(selector_text).unwrap_or_default();
        Valid { parsed: Arc::new(parsed), labels, node_selector, services, backend_services }
    }
}

fn in_namespace(given: &SmolStr, name: &ServiceName) -> bool {
    given.is_empty() || given == name.namespace()
}

/// Returns a selector in the form of requests: `role=edge,zone in (a,b)`.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().map(|expression| {
        let (key, values) = (&expression.key, expression.values.join(","));
        match &*expression.operator {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_string(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

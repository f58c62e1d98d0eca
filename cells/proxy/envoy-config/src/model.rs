//! The tables: configurations, and the resources that Envoy gets of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadbalancer::ServiceName;
use reconciler::Status;
use serde::Serialize;
use statedb::{Index, IndexDef, TableDisplay, TableSpec, age};

/// A configuration that is valid, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct EnvoyConfig {
    /// Its name, `NAMESPACE/NAME`; the namespace is empty for a clusterwide one.
    pub name: Arc<str>,
    /// Whether it is for this node.
    pub selected: bool,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
    /// The nodes that it is for, as text; empty for all.
    pub node_selector: String,
    /// The services that are redirected.
    pub services: Vec<ServiceName>,
    /// The services with backends that Envoy gets.
    pub backend_services: Vec<ServiceName>,
    /// Its listeners with their ports; 0 while there is none.
    pub listeners: BTreeMap<Arc<str>, u16>,
}

const BY_SERVICE: Index<EnvoyConfig, str> = Index::new("service", |config, keys| {
    keys.extend(config.services.iter().map(ServiceName::as_str));
});

impl TableSpec for EnvoyConfig {
    const NAME: &'static str = "ciliumenvoyconfigs";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_SERVICE.def()]
    }
}

fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    texts.join(", ")
}

impl TableDisplay for EnvoyConfig {
    fn columns() -> &'static [&'static str] {
        &["Name", "Selected", "Labels", "NodeSelector", "Services", "BackendServices", "Listeners"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.selected.to_string(),
            joined(self.labels.iter().map(|(key, value)| format!("{key}={value}"))),
            self.node_selector.clone(),
            joined(&self.services),
            joined(&self.backend_services),
            joined(self.listeners.iter().map(|(name, port)| format!("{name}:{port}"))),
        ]
    }
}

/// Resources that Envoy gets, of one configuration (`cec:NAMESPACE/NAME`) or of one service
/// (`backendsync:NAMESPACE/NAME`).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct EnvoyResource {
    /// Its name.
    pub name: String,
    /// The names of the listeners.
    pub listeners: Vec<Arc<str>>,
    /// The addresses of clusters.
    pub endpoints: Vec<ClusterAddresses>,
    /// The configurations that use the service.
    pub references: Vec<Arc<str>>,
    /// Whether Envoy has the resources.
    pub status: Status,
}

/// A cluster with the addresses of its servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClusterAddresses {
    /// Its name.
    pub cluster: String,
    /// The addresses with ports, by their texts.
    pub addresses: Vec<(String, u16)>,
}

impl EnvoyResource {
    /// Whether it shows the same as another row.
    pub(crate) fn is_same(&self, other: &EnvoyResource) -> bool {
        let status = |row: &EnvoyResource| (row.status.kind(), row.status.error().map(str::to_owned));
        (&self.listeners, &self.endpoints, &self.references)
            == (&other.listeners, &other.endpoints, &other.references)
            && status(self) == status(other)
    }

    fn kind(&self) -> &str {
        self.name.split(':').next().unwrap_or_default()
    }
}

const BY_KIND: Index<EnvoyResource, str> = Index::new("kind", |resource, keys| keys.add(resource.kind()));

impl TableSpec for EnvoyResource {
    const NAME: &'static str = "envoy-resources";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_KIND.def()]
    }
}

impl TableDisplay for EnvoyResource {
    fn columns() -> &'static [&'static str] {
        &["Name", "Listeners", "Endpoints", "References", "Status", "Since", "Error"]
    }

    fn row(&self) -> Vec<String> {
        let endpoints = self.endpoints.iter().map(|cluster| {
            format!("{}: {}", cluster.cluster, joined(cluster.addresses.iter().map(|(ip, _)| ip)))
        });
        vec![
            self.name.clone(),
            joined(&self.listeners),
            joined(endpoints),
            joined(&self.references),
            self.status.kind().to_string(),
            age::since(self.status.updated_at()),
            self.status.error().unwrap_or_default().to_owned(),
        ]
    }
}

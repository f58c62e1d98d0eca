//! The handle with which other cells give resources to Envoy.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::JobGroup;
use k8s_types::Source;
use tokio::sync::watch;
use xds::{Delivery, Value};

use crate::kind::Kind;
use crate::resources::{Owner, Resources};
use crate::secrets::Store;

/// Gives resources to Envoy beside those of policies, and reports which of them Envoy has. Cheap to clone.
///
/// The handle of a source replaces the resources of this source only; responses of a type wait until no source holds
/// them back.
#[derive(Debug, Clone)]
pub struct Envoy {
    resources: Resources,
    secrets: Store,
    owner: Owner,
    is_served: bool,
}

impl Envoy {
    pub(crate) fn new(resources: Resources, is_served: bool) -> Envoy {
        let secrets = Store::new(resources.clone());
        Envoy { resources, secrets, owner: Owner::Configs, is_served }
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    pub(crate) fn secrets(&self) -> &Store {
        &self.secrets
    }

    /// Gives Envoy the secrets of a namespace by the names `NAMESPACE/NAME`, and follows them: by a job for each source,
    /// in the group of the first caller.
    pub fn follow_secrets(&self, namespace: &str, sources: &[Arc<dyn Source>], jobs: &JobGroup) {
        self.secrets.start(sources, jobs);
        self.secrets.add_namespace(namespace);
    }

    /// Whether an Envoy is served; otherwise resources reach none.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    /// Returns a receiver that changes with resources, clients and their answers.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.resources.subscribe()
    }

    /// Replaces the resources of a type, encoded, by their names. Returns the version of the type that has them.
    pub fn replace(&self, kind: Kind, resources: BTreeMap<Arc<str>, Value>) -> u64 {
        self.resources.replace(self.owner, kind, resources);
        self.resources.version(kind)
    }

    /// Holds back responses of a type, or releases them: an Envoy that has run while the agent was away would lose
    /// resources that the agent has not read yet.
    pub fn hold(&self, kind: Kind, is_held: bool) {
        self.resources.hold(self.owner, kind, is_held);
    }

    /// Whether Envoy has requested resources of a type.
    #[must_use]
    pub fn has_clients(&self, kind: Kind) -> bool {
        self.resources.has_clients(kind)
    }

    /// Returns the progress of a resource that a version of its type has; with the empty name that of deletions.
    #[must_use]
    pub fn delivery(&self, kind: Kind, name: &str, version: u64) -> Delivery {
        self.resources.delivery(kind, name, version)
    }

    /// Whether a text, such as that of a refusal, names a resource of another source.
    #[must_use]
    pub fn names_other(&self, kind: Kind, text: &str) -> bool {
        self.resources.names_other(self.owner, kind, text)
    }
}

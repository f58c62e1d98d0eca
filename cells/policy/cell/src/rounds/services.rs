//! Services that policies name as peers (`toServices`), from the tables of the load balancer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use labels::{K8S, Label};
use loadbalancer::{Backend, Service};
use policy_engine::ServicePeers;
use serde_json::Value;
use statedb::{Snapshot, Table, Watch};

use crate::computation::repository::Services;

/// The time for which changes of services are gathered, as in Cilium.
const GATHER_INTERVAL: Duration = Duration::from_millis(50);

/// The tables of services and their backends.
#[derive(Clone)]
pub(crate) struct ServiceTables {
    pub(crate) services: Arc<Table<Service>>,
    pub(crate) backends: Arc<Table<Backend>>,
}

/// Watches of both tables.
pub(crate) struct ServicesWatch {
    services: Watch,
    backends: Watch,
}

impl ServicesWatch {
    /// Waits for a change, and for those that follow it shortly.
    pub(crate) async fn changed(&self) {
        tokio::select! {
            () = self.services.changed() => {}
            () = self.backends.changed() => {}
        }
        tokio::time::sleep(GATHER_INTERVAL).await;
    }
}

impl ServiceTables {
    /// Returns the revisions of the tables: equal ones have the same rows.
    pub(crate) fn revisions(&self, snapshot: &Snapshot) -> [u64; 2] {
        [self.services.revision(snapshot), self.backends.revision(snapshot)]
    }

    pub(crate) fn watch(&self, snapshot: &Snapshot) -> ServicesWatch {
        let services = self.services.all_watch(snapshot).1;
        ServicesWatch { services, backends: self.backends.all_watch(snapshot).1 }
    }

    pub(crate) async fn wait_initialized(&self) {
        self.services.wait_initialized().await;
        self.backends.wait_initialized().await;
    }

    /// Returns the services if the tables have changed since the last call with this memory.
    pub(crate) fn read_changed(&self, seen: &mut Option<[u64; 2]>) -> Option<Services> {
        let snapshot = self.services.snapshot();
        let revisions = Some(self.revisions(&snapshot));
        let has_changed = *seen != revisions;
        *seen = revisions;
        has_changed.then(|| self.read(&snapshot))
    }

    /// Returns the services of this cluster. Pseudo-services of host ports and redirects are not among them: they have a
    /// colon in their name.
    fn read(&self, snapshot: &Snapshot) -> Services {
        let rows = self.services.all(snapshot);
        let of_objects = rows.filter(|row| row.name.cluster().is_none() && !row.name.name().contains(':'));
        of_objects.map(|row| (row.name.clone(), self.peers(snapshot, row))).collect()
    }

    fn peers(&self, snapshot: &Snapshot, service: &Service) -> ServicePeers {
        let label = |(key, value): (&_, &_)| Label {
            key: ToString::to_string(key),
            value: ToString::to_string(value),
            source: K8S.to_owned(),
        };
        let selector: BTreeMap<String, String> =
            service.selector.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        // Addresses count only without a selector: those of pods would make each of their changes a change of policy.
        let backends =
            selector.is_empty().then(|| self.backends.prefix(snapshot, Backend::of_service(&service.name)));
        ServicePeers {
            namespace: service.name.namespace().into(),
            name: service.name.name().into(),
            labels: service.labels.iter().map(label).collect(),
            selector,
            backends: backends.into_iter().flatten().map(|backend| backend.address.ip).collect(),
        }
    }
}

/// The field of peers by service.
pub(crate) const TO_SERVICES: &str = "toServices";

/// Whether a policy object has peers by service, valid or not.
pub(crate) fn names_services(body: &Value) -> bool {
    let rules = std::iter::once(&body["spec"]).chain(body["specs"].as_array().into_iter().flatten());
    let entries = rules.flat_map(|rule| [&rule["egress"], &rule["egressDeny"]]);
    let mut entries = entries.filter_map(Value::as_array).flatten();
    entries.any(|entry| entry[TO_SERVICES].as_array().is_some_and(|list| !list.is_empty()))
}

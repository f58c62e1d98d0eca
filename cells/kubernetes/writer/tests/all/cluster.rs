//! The cluster, as other clients read and change it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use k8s_fake_apiserver::{Domain, Gvr, Tracker};
use k8s_types::{Api, Key, Kind, Preconditions};
use serde_json::Value;
use statedb::Db;

/// The fake API server; changes by other clients take effect immediately.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Tracker>);

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster(Arc::new(Tracker::new(&Db::new().table().unwrap())))
    }
}

impl Cluster {
    pub(crate) fn api(&self) -> Arc<dyn Api> {
        self.0.clone()
    }

    pub(crate) fn object(&self, kind: Kind, key: &Key) -> Option<Value> {
        let object = Api::get(&*self.0, kind, key).now_or_never().unwrap().ok()?;
        Some(serde_json::from_slice(&object).unwrap())
    }

    /// Returns the objects of a kind by name.
    pub(crate) fn objects(&self, kind: Kind) -> BTreeMap<String, Value> {
        let objects = self.0.list(Domain::Any, &Gvr::from(kind), None);
        objects.iter().map(|object| (object.name().to_string(), object.value().clone())).collect()
    }

    /// Creates an object as another client.
    pub(crate) fn make(&self, kind: Kind, key: &Key, mut object: Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.name().into();
        object["metadata"]["name"] = key.name.as_str().into();
        object["metadata"]["namespace"] = key.namespace.as_str().into();
        self.0.create(kind, object.to_string().into()).now_or_never().unwrap().unwrap();
    }

    /// Changes an object as another client, if it exists.
    pub(crate) fn change(&self, kind: Kind, key: &Key, change: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.object(kind, key) else { return };
        change(&mut object);
        Api::update(&*self.0, kind, object.to_string().into()).now_or_never().unwrap().unwrap();
    }

    /// Deletes an object as another client, if it exists.
    pub(crate) fn remove(&self, kind: Kind, key: &Key) {
        drop(Api::delete(&*self.0, kind, key, Preconditions::default()).now_or_never().unwrap());
    }
}

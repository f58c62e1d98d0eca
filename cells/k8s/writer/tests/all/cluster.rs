//! A cluster in memory: versions, uids, conflicts, sub-resources, patches and preconditions as of an API server.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};

type Answer<T> = Result<T, ApiError>;

#[derive(Default)]
pub(crate) struct Cluster(Mutex<State>);

#[derive(Default)]
struct State {
    objects: BTreeMap<(Kind, Key), Value>,
    version: u64,
    uids: u64,
}

impl Cluster {
    pub(crate) fn object(&self, kind: Kind, key: &Key) -> Option<Value> {
        self.0.lock().objects.get(&(kind, key.clone())).cloned()
    }

    pub(crate) fn objects(&self) -> BTreeMap<(Kind, Key), Value> {
        self.0.lock().objects.clone()
    }

    /// Somebody else makes or replaces an object.
    pub(crate) fn put(&self, kind: Kind, key: &Key, object: Value) -> Value {
        self.0.lock().store(kind, key, object)
    }

    /// Somebody else changes an object.
    pub(crate) fn change(&self, kind: Kind, key: &Key, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock();
        let Some(mut object) = state.objects.get(&(kind, key.clone())).cloned() else { return };
        change(&mut object);
        state.store(kind, key, object);
    }

    /// Somebody else deletes an object.
    pub(crate) fn remove(&self, kind: Kind, key: &Key) {
        self.0.lock().objects.remove(&(kind, key.clone()));
    }
}

impl State {
    fn store(&mut self, kind: Kind, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        let before = self.objects.get(&(kind, key.clone()));
        let uid = before.map(|before| before["metadata"]["uid"].clone()).unwrap_or_else(|| {
            self.uids += 1;
            format!("uid-{}", self.uids).into()
        });
        let metadata = &mut object["metadata"];
        metadata["name"] = key.name.as_str().into();
        if kind.namespaced() {
            metadata["namespace"] = key.namespace.as_str().into();
        }
        metadata["uid"] = uid;
        metadata["resourceVersion"] = self.version.to_string().into();
        self.objects.insert((kind, key.clone()), object.clone());
        object
    }

    fn found(&self, kind: Kind, key: &Key) -> Answer<&Value> {
        let missing = || ApiError::NotFound(format!("{} {:?} not found", kind.plural(), key.name));
        self.objects.get(&(kind, key.clone())).ok_or_else(missing)
    }

    fn replace(&mut self, kind: Kind, object: &Bytes, status: bool) -> Answer<Bytes> {
        let (key, mut new) = read(kind, object)?;
        let old = self.found(kind, &key)?;
        let (new_meta, old_meta) = (&new["metadata"], &old["metadata"]);
        for field in ["uid", "resourceVersion"] {
            if !new_meta[field].is_null() && new_meta[field] != old_meta[field] {
                return Err(ApiError::Conflict(format!("{field} is {}", old_meta[field])));
            }
        }
        if status {
            let value = std::mem::take(&mut new["status"]);
            new = old.clone();
            new["status"] = value;
        }
        Ok(bytes(&self.store(kind, &key, new)))
    }

    fn patch(&mut self, kind: Kind, key: &Key, patch: &Patch) -> Answer<Bytes> {
        let mut object = self.found(kind, key)?.clone();
        match patch {
            Patch::Json(operations) => {
                for operation in value(operations)?.as_array().into_iter().flatten() {
                    apply(&mut object, operation)?;
                }
            }
            Patch::Merge(patch) | Patch::Strategic(patch) => merge(&mut object, &value(patch)?),
        }
        Ok(bytes(&self.store(kind, key, object)))
    }

    fn delete(&mut self, kind: Kind, key: &Key, only_if: &Preconditions) -> Answer<()> {
        let metadata = &self.found(kind, key)?["metadata"];
        let wanted = [("uid", &only_if.uid), ("resourceVersion", &only_if.resource_version)];
        for (field, wanted) in wanted {
            if wanted.as_ref().is_some_and(|wanted| metadata[field] != wanted.as_str()) {
                return Err(ApiError::Conflict(format!("{field} is {}", metadata[field])));
            }
        }
        self.objects.remove(&(kind, key.clone()));
        Ok(())
    }
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

fn value(bytes: &Bytes) -> Answer<Value> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::Invalid(error.to_string()))
}

fn read(kind: Kind, object: &Bytes) -> Answer<(Key, Value)> {
    let object = value(object)?;
    if (object["apiVersion"].as_str(), object["kind"].as_str())
        != (Some(kind.api_version()), Some(kind.name()))
    {
        return Err(ApiError::Invalid(format!("not of the kind {kind}: {object}")));
    }
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Ok((Key::new(text("namespace"), text("name")), object))
}

fn apply(object: &mut Value, operation: &Value) -> Answer<()> {
    let invalid = |why: &str| ApiError::Invalid(format!("{operation}: {why}"));
    let path = operation["path"].as_str().unwrap_or_default();
    let new = operation["value"].clone();
    match operation["op"].as_str() {
        Some("test") if object.pointer(path) == Some(&new) => {}
        Some("test") => return Err(ApiError::Conflict(format!("{operation}: the test has failed"))),
        Some("replace") => *object.pointer_mut(path).ok_or_else(|| invalid("no such path"))? = new,
        Some("add") => {
            let (parent, name) = path.rsplit_once('/').ok_or_else(|| invalid("no path"))?;
            object.pointer_mut(parent).ok_or_else(|| invalid("no such path"))?[name] = new;
        }
        _ => return Err(invalid("is not known here")),
    }
    Ok(())
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return *object = patch.clone() };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, field) in fields {
        match field {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            _ => merge(&mut object[name], field),
        }
    }
}

impl Api for Cluster {
    fn get(&self, kind: Kind, key: &Key) -> BoxFuture<'static, Answer<Bytes>> {
        let answer = self.0.lock().found(kind, key).map(bytes);
        async { answer }.boxed()
    }

    fn create(&self, kind: Kind, object: Bytes) -> BoxFuture<'static, Answer<Bytes>> {
        let mut state = self.0.lock();
        let answer = read(kind, &object).and_then(|(key, object)| match state.found(kind, &key) {
            Ok(_) => Err(ApiError::AlreadyExists(format!("{} {:?} already exists", kind.plural(), key.name))),
            Err(_) => Ok(bytes(&state.store(kind, &key, object))),
        });
        async { answer }.boxed()
    }

    fn update(&self, kind: Kind, object: Bytes) -> BoxFuture<'static, Answer<Bytes>> {
        let answer = self.0.lock().replace(kind, &object, false);
        async { answer }.boxed()
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> BoxFuture<'static, Answer<Bytes>> {
        let answer = self.0.lock().replace(kind, &object, true);
        async { answer }.boxed()
    }

    fn patch(&self, kind: Kind, key: &Key, _: bool, patch: Patch) -> BoxFuture<'static, Answer<Bytes>> {
        let answer = self.0.lock().patch(kind, key, &patch);
        async { answer }.boxed()
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> BoxFuture<'static, Answer<()>> {
        let answer = self.0.lock().delete(kind, key, &only_if);
        async { answer }.boxed()
    }
}

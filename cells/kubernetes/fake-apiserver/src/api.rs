//! Requests on single objects, with the semantics of an API server.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use k8s_types::{Answer, Api, ApiError, DEFAULT_NAMESPACE, Key, Kind, Patch, Preconditions};
use serde_json::Value;
use statedb::Writer;

use crate::object::{Object, metadata};
use crate::source::json;
use crate::tracker::{Parsed, Tracker, live, remove, set_metadata, store};
use crate::types::{Type, has_status};
use crate::{patch, refused};

/// Name, uid and version of an object are checked as by a server; of its fields only the types.
/// There are no defaults, generations or timestamps.
impl Api for Tracker {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        let of = Type::from(kind);
        let found = Tracker::get(self, of.domain(), &of.gvr, key).map(|object| json(object.value()));
        ready(found).boxed()
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(move |w| create(w, request(kind, &object)?))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(move |w| replace(w, kind, Part::AllButStatus, request(kind, &object)?))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(move |w| replace(w, kind, Part::Status, request(kind, &object)?))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        let (key, part) = (key.clone(), if status { Part::Status } else { Part::AllButStatus });
        self.answer(move |w| {
            let stored = live(w, &kind.into(), &key)?;
            let patched = patch::apply(kind, stored.value(), &patch)?;
            let object = of_kind(kind, patched)?;
            if object.name != key {
                let (found, expected) = (&object.name.name, &key.name);
                return Err(ApiError::Invalid(format!(
                    "metadata.name: is {found:?}, but was {expected:?} and cannot be changed"
                )));
            }
            replace(w, kind, part, object)
        })
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        let (tracker, key) = (self.clone(), key.clone());
        let delete = move |w: &mut Writer<'_, Object>| {
            let of = Type::from(kind);
            let stored = live(w, &of, &key)?;
            let expected = [
                ("UID", only_if.uid, "uid", "deleted and then recreated"),
                ("ResourceVersion", only_if.resource_version, "resourceVersion", "modified"),
            ];
            for (field_name, expected, field, happened) in expected {
                let found = metadata(stored.value(), field);
                if let Some(expected) = expected.filter(|expected| expected != found) {
                    return Err(refused::deletion(kind, &key, field_name, [&expected, found], happened));
                }
            }
            remove(w, &of, &key)
        };
        async move { tracker.objects.transact(delete).0 }.boxed()
    }
}

impl Tracker {
    /// Handles a request in one transaction; returns the response.
    fn answer(
        &self,
        request: impl FnOnce(&mut Writer<'_, Object>) -> Result<Bytes, ApiError> + Send + 'static,
    ) -> Answer<Bytes> {
        let tracker = self.clone();
        async move { tracker.objects.transact(request).0 }.boxed()
    }
}

/// The part of an object that a request changes.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    AllButStatus,
    Status,
}

/// Parses the object of a request.
fn request(kind: Kind, object: &[u8]) -> Result<Parsed, ApiError> {
    let value = serde_json::from_slice(object).map_err(|error| ApiError::Invalid(error.to_string()))?;
    of_kind(kind, value)
}

fn of_kind(kind: Kind, mut value: Value) -> Result<Parsed, ApiError> {
    if kind.namespaced() && metadata(&value, "namespace").is_empty() {
        set_metadata(&mut value, "namespace", DEFAULT_NAMESPACE);
    }
    let object = Parsed::of(value)?;
    match object.of.kind {
        Some(found) if found == kind => Ok(object),
        _ => {
            let found = &object.of.name;
            Err(ApiError::Invalid(format!("the object is a {found}, the request is about a {kind}")))
        }
    }
}

fn create(w: &mut Writer<'_, Object>, mut object: Parsed) -> Result<Bytes, ApiError> {
    if live(w, &object.of, &object.name).is_ok() {
        return Err(refused::already_exists(&object.of.gvr, &object.name));
    }
    if !metadata(&object.value, "resourceVersion").is_empty() {
        // Servers respond with an internal error (500).
        let message = "resourceVersion should not be set on objects to be created".to_owned();
        return Err(ApiError::Unavailable { message, retry_after: None });
    }
    set_metadata(&mut object.value, "uid", "");
    // A server drops the status of a created object, except that of nodes.
    if object.of.kind.is_some_and(|kind| kind != Kind::Node && has_status(kind)) {
        set_status(&mut object.value, None);
    }
    Ok(json(&store(w, object)))
}

/// Replaces a part of an object, if uid and version match.
fn replace(
    w: &mut Writer<'_, Object>,
    kind: Kind,
    part: Part,
    mut object: Parsed,
) -> Result<Bytes, ApiError> {
    if part == Part::Status && !has_status(kind) {
        return Err(ApiError::NotFound("the server could not find the requested resource".to_owned()));
    }
    let stored = live(w, &object.of, &object.name)?;
    let (gvr, name) = (object.of.gvr.clone(), object.name.clone());
    let field = |field: &str| metadata(&object.value, field).to_owned();
    let (uid, version) = (field("uid"), field("resourceVersion"));
    let stored_uid = metadata(stored.value(), "uid");
    if !uid.is_empty() && uid != stored_uid {
        return Err(refused::other_uid(&gvr, &name, &uid, stored_uid));
    }
    if version.is_empty() && kind.group() == "cilium.io" {
        let (resource, name) = (gvr.qualified(), &name.name);
        let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
        return Err(ApiError::Invalid(format!("{resource} \"{name}\" is invalid: {why}")));
    }
    if !version.is_empty() && version != stored.resource_version() {
        return Err(refused::changed(&gvr, &name));
    }
    match part {
        Part::Status => {
            let (status, metadata) =
                (object.value.get("status").cloned(), object.value.get("metadata").cloned());
            object.value = stored.value().clone();
            set_status(&mut object.value, status);
            // A status update also sets labels and annotations for Kubernetes' own kinds, not for custom resources.
            if let Some(metadata) = metadata.filter(|_| kind.group() != "cilium.io") {
                object.value["metadata"] = metadata;
            }
        }
        Part::AllButStatus if has_status(kind) => {
            set_status(&mut object.value, stored.value().get("status").cloned());
        }
        Part::AllButStatus => {}
    }
    set_metadata(&mut object.value, "uid", stored_uid);
    set_metadata(&mut object.value, "resourceVersion", stored.resource_version());
    match object.value == *stored.value() {
        true => Ok(json(stored.value())),
        false => Ok(json(&store(w, object))),
    }
}

fn set_status(object: &mut Value, status: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    match status {
        Some(status) => object.insert("status".to_owned(), status),
        None => object.remove("status"),
    };
}

//! The objects and their operations.

use std::sync::Arc;

use k8s_types::{ApiError, Key, SmolStr, documents};
use serde_json::{Map, Value};
use statedb::{Obj, Prefix, RwTable, Snapshot, Table, Writer};

use crate::object::{Object, metadata};
use crate::refused;
use crate::types::{Domain, Gvr, Type};

/// The objects of a cluster, in a table: scripts and tests add them, cells watch and change them.
///
/// The cells under test use it as an API server, through [`Source`](k8s_types::Source) and [`Api`](k8s_types::Api). Its
/// own methods are for tests and equal the commands `k8s/*`.
#[derive(Clone, Debug)]
pub struct Tracker {
    pub(crate) objects: RwTable<Object>,
}

/// An object with its type and name.
pub(crate) struct Parsed {
    pub(crate) of: Type,
    pub(crate) name: Key,
    pub(crate) value: Value,
}

impl Tracker {
    /// Creates a tracker on a table.
    pub fn new(objects: &RwTable<Object>) -> Tracker {
        Tracker { objects: objects.clone() }
    }

    /// Returns the table for reading.
    pub fn objects(&self) -> Table<Object> {
        self.objects.reader()
    }

    /// Adds the objects of a manifest (YAML or JSON, several documents, lists); replaces existing ones.
    pub fn add(&self, manifest: &str) -> Result<(), ApiError> {
        for object in parsed(manifest)? {
            self.objects.transact(|w| store(w, object));
        }
        Ok(())
    }

    /// Adds many objects in one transaction, without a manifest; replaces existing ones.
    pub fn add_objects(&self, objects: impl IntoIterator<Item = Value>) -> Result<(), ApiError> {
        let objects = objects.into_iter().map(Parsed::of).collect::<Result<Vec<_>, _>>()?;
        self.objects.transact(|w| objects.into_iter().for_each(|object| drop(store(w, object))));
        Ok(())
    }

    /// Replaces existing objects by those of a manifest; uids are kept. A version in the manifest is ignored, unless
    /// `strict` is set: then it must be the current one.
    pub fn update(&self, manifest: &str, strict: bool) -> Result<(), ApiError> {
        for mut object in parsed(manifest)? {
            let update = |w: &mut Writer<'_, Object>| {
                let stored = live(w, &object.of, &object.name)?;
                if strict && metadata(&object.value, "resourceVersion") != stored.resource_version() {
                    return Err(refused::changed(&object.of.gvr, &object.name));
                }
                set_metadata(&mut object.value, "uid", metadata(stored.value(), "uid"));
                store(w, object);
                Ok(())
            };
            self.objects.transact(update).0?;
        }
        Ok(())
    }

    /// Deletes the objects of a manifest. Objects that are deleted already are skipped; one that never existed is an
    /// error.
    pub fn delete(&self, manifest: &str) -> Result<(), ApiError> {
        for Parsed { of, name, .. } in parsed(manifest)? {
            self.objects.transact(|w| remove(w, &of, &name)).0?;
        }
        Ok(())
    }

    /// Replaces all objects of a resource by those of the manifests, in one transaction. Watches of the resource become
    /// invalid and list again.
    pub fn resync<M: AsRef<str>>(&self, gvr: &Gvr, manifests: &[M]) -> Result<(), ApiError> {
        let mut objects = Vec::new();
        for manifest in manifests {
            objects.extend(parsed(manifest.as_ref())?);
        }
        if let Some(other) = objects.iter().find(|object| object.of.gvr != *gvr) {
            return Err(ApiError::Invalid(format!("{} is {}, expected {gvr}", other.name, other.of.gvr)));
        }
        self.objects.transact(|w| {
            let resync = w.revision() + 1;
            for domain in Domain::ALL {
                let all: Vec<Obj<Object>> =
                    w.prefix(Prefix::primary(&*Object::all_of(domain, gvr))).cloned().collect();
                for object in all {
                    w.insert(object.as_deleted().after_resync(resync));
                }
            }
            for object in objects {
                store(w, object);
            }
        });
        Ok(())
    }

    /// Returns an object.
    pub fn get(&self, domain: Domain, gvr: &Gvr, name: &Key) -> Result<Obj<Object>, ApiError> {
        let snapshot = self.objects.snapshot();
        let found = self.objects.get(&snapshot, Object::by_name(domain, gvr, name));
        found.filter(|object| !object.deleted()).cloned().ok_or_else(|| refused::not_found(gvr, name))
    }

    /// Returns the objects of a resource, all or those of a namespace, in order of their names.
    pub fn list(&self, domain: Domain, gvr: &Gvr, namespace: Option<&str>) -> Vec<Obj<Object>> {
        list(&self.objects, &self.objects.snapshot(), domain, gvr, namespace)
    }

    /// Returns the resources that have or had objects, in order of the table, with their domains.
    pub fn resources(&self) -> Vec<(Gvr, Vec<Domain>)> {
        let mut seen: Vec<(Gvr, Vec<Domain>)> = Vec::new();
        for object in self.objects.all(&self.objects.snapshot()) {
            match seen.iter_mut().find(|(gvr, _)| gvr == object.gvr()) {
                Some((_, domains)) if domains.contains(&object.domain()) => {}
                Some((_, domains)) => domains.push(object.domain()),
                None => seen.push((object.gvr().clone(), vec![object.domain()])),
            }
        }
        seen
    }
}

/// Returns the live objects of a resource in a snapshot.
pub(crate) fn list(
    objects: &Table<Object>,
    snapshot: &Snapshot,
    domain: Domain,
    gvr: &Gvr,
    namespace: Option<&str>,
) -> Vec<Obj<Object>> {
    let start = match namespace {
        Some(namespace) => Object::all_in(domain, gvr, namespace),
        None => Object::all_of(domain, gvr),
    };
    objects.prefix(snapshot, Prefix::primary(&*start)).filter(|object| !object.deleted()).cloned().collect()
}

/// Returns the live object in the domain of requests.
pub(crate) fn live(w: &Writer<'_, Object>, of: &Type, name: &Key) -> Result<Obj<Object>, ApiError> {
    let stored = w.get(Object::by_name(of.domain(), &of.gvr, name)).filter(|object| !object.deleted());
    stored.cloned().ok_or_else(|| refused::not_found(&of.gvr, name))
}

/// Writes an object in all domains of its type, with a uid and its next version; returns it in the domain of requests.
pub(crate) fn store(w: &mut Writer<'_, Object>, object: Parsed) -> Arc<Value> {
    let Parsed { of, name, mut value } = object;
    if metadata(&value, "uid").is_empty() {
        set_metadata(&mut value, "uid", &uuid::Uuid::new_v4().to_string());
    }
    let mut stored = None;
    for &domain in of.domains {
        set_metadata(&mut value, "resourceVersion", &(w.revision() + 1).to_string());
        let resync = w.get(Object::by_name(domain, &of.gvr, &name)).map_or(0, |before| before.resync());
        let object = Object::new(domain, &of, &name, value.clone()).after_resync(resync);
        stored.get_or_insert_with(|| object.shared_value());
        w.insert(object);
    }
    stored.unwrap_or_default()
}

/// Deletes an object: marks its row.
pub(crate) fn remove(w: &mut Writer<'_, Object>, of: &Type, name: &Key) -> Result<(), ApiError> {
    let mut found = false;
    for &domain in of.domains {
        let Some(object) = w.get(Object::by_name(domain, &of.gvr, name)) else { continue };
        found = true;
        let deleted = (!object.deleted()).then(|| object.as_deleted());
        deleted.map(|object| w.insert(object));
    }
    if found { Ok(()) } else { Err(refused::not_found(&of.gvr, name)) }
}

/// Parses the objects of a manifest, at least one.
fn parsed(manifest: &str) -> Result<Vec<Parsed>, ApiError> {
    let mut all = Vec::new();
    for document in documents(manifest) {
        let document = document.map_err(|broken| ApiError::Invalid(broken.to_string()))?;
        for manifest in document.manifests() {
            all.push(Parsed::of(manifest.value.clone())?);
        }
    }
    if all.is_empty() { Err(ApiError::Invalid("there is no object".to_owned())) } else { Ok(all) }
}

impl Parsed {
    /// Parses an object of a known type.
    pub(crate) fn of(value: Value) -> Result<Parsed, ApiError> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let of = Type::of(text("apiVersion"), text("kind")).ok_or_else(|| {
            let (kind, version) = (text("kind"), text("apiVersion"));
            ApiError::Invalid(format!("no kind \"{kind}\" is registered for version \"{version}\""))
        })?;
        if let Some(kind) = of.kind {
            kind.normalize(&value).map_err(|refusal| ApiError::Invalid(format!("{kind}: {refusal}")))?;
        }
        let name = Key::new(metadata(&value, "namespace"), metadata(&value, "name"));
        match name.name.is_empty() {
            true => Err(ApiError::Invalid(format!("{}: metadata.name: is missing", of.name))),
            false => Ok(Parsed { of, name, value }),
        }
    }
}

/// Sets a text of an object's metadata; removes the field if the text is empty.
pub(crate) fn set_metadata(object: &mut Value, field: &str, text: &str) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Map::new().into());
    let Some(metadata) = metadata.as_object_mut() else { return };
    match text {
        "" => drop(metadata.remove(field)),
        text => drop(metadata.insert(field.to_owned(), text.into())),
    }
}

/// Resolves a word to a resource: by its complete name, else the first one with a matching part.
pub(crate) fn resolve(resources: &[(Gvr, Vec<Domain>)], word: &str) -> Option<(Gvr, SmolStr)> {
    resources
        .iter()
        .map(|(gvr, _)| (gvr, gvr.to_string()))
        .find(|(_, name)| name.contains(word))
        .map(|(gvr, name)| (gvr.clone(), name.into()))
}

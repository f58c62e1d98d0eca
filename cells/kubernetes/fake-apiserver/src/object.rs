//! The row type.

use std::sync::Arc;

use k8s_types::{Key, Kind, SmolStr};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use statedb::{Query, TableDisplay, TableSpec};

use crate::types::{Domain, Gvr, Type};

/// An object that a test has added; the row remains after its deletion.
#[derive(Clone, Debug)]
pub struct Object {
    id: String,
    domain: Domain,
    gvr: Gvr,
    type_name: SmolStr,
    kind: Option<Kind>,
    name: Key,
    deleted: bool,
    resync: u64,
    value: Arc<Value>,
}

impl Object {
    pub(crate) fn new(domain: Domain, of: &Type, name: &Key, value: Value) -> Object {
        Object {
            id: Object::id(domain, &of.gvr, name),
            domain,
            gvr: of.gvr.clone(),
            type_name: of.name.clone(),
            kind: of.kind,
            name: name.clone(),
            deleted: false,
            resync: 0,
            value: Arc::new(value),
        }
    }

    /// Returns the object as written by a resync of its resource at this revision.
    pub(crate) fn after_resync(self, resync: u64) -> Object {
        Object { resync, ..self }
    }

    /// Returns the object marked as deleted.
    pub(crate) fn as_deleted(&self) -> Object {
        Object { deleted: true, ..self.clone() }
    }

    fn id(domain: Domain, gvr: &Gvr, name: &Key) -> String {
        format!("{}{}", Object::all_in(domain, gvr, &name.namespace), name.name)
    }

    /// Returns the common prefix of the ids of all objects of a resource.
    pub(crate) fn all_of(domain: Domain, gvr: &Gvr) -> String {
        format!("{};{}/{}, Resource={};", domain.as_str(), gvr.group, gvr.version, gvr.plural)
    }

    /// Returns the common prefix of the ids of all objects of a resource in a namespace.
    pub(crate) fn all_in(domain: Domain, gvr: &Gvr, namespace: &str) -> String {
        format!("{}{namespace}/", Object::all_of(domain, gvr))
    }

    /// Queries an object.
    pub(crate) fn by_name(domain: Domain, gvr: &Gvr, name: &Key) -> Query<Object> {
        Query::primary(Object::id(domain, gvr, name).as_str())
    }

    /// Returns its domain.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Returns its resource.
    pub fn gvr(&self) -> &Gvr {
        &self.gvr
    }

    /// Returns its namespace and name.
    pub fn name(&self) -> &Key {
        &self.name
    }

    /// Returns its kind, if that has a type in `k8s_types`.
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// Whether it was deleted.
    pub fn deleted(&self) -> bool {
        self.deleted
    }

    /// Returns the object as written, with uid and version.
    pub fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn shared_value(&self) -> Arc<Value> {
        self.value.clone()
    }

    /// Returns the revision of the last resync of its resource during its existence; 0 if there was none. Later writes
    /// keep it, so that a watch of an earlier version detects the resync.
    pub(crate) fn resync(&self) -> u64 {
        self.resync
    }

    /// Returns its version.
    pub(crate) fn resource_version(&self) -> &str {
        metadata(&self.value, "resourceVersion")
    }

    /// Returns the name of its Go type in Cilium.
    fn go_type(&self) -> String {
        format!("*{}.{}", self.gvr.version, self.type_name)
    }
}

/// Returns a text of an object's metadata; empty if it is missing.
pub(crate) fn metadata<'v>(object: &'v Value, field: &str) -> &'v str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

impl TableSpec for Object {
    const NAME: &'static str = "k8s-object-tracker";
    const PRIMARY: &'static str = "id";

    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.id
    }
}

impl TableDisplay for Object {
    fn columns() -> &'static [&'static str] {
        &["ID", "Deleted", "Type"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.clone(), self.deleted.to_string(), self.go_type()]
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row =
            json!({"ID": self.id, "Deleted": self.deleted, "Type": self.go_type(), "Object": *self.value});
        row.serialize(serializer)
    }
}

//! Objects as rows of tables.

use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use statedb::{KeyBuf, Prefix, Query, TableDisplay, TableSpec, age};

use k8s_types::{Key, Kind, Refusal, Resource, SmolStr};

use crate::events::Origin;
use crate::pool::Pool;

/// A type of objects that has a table: a row is a [`Row`] of it.
pub trait Tabled: Resource {
    /// The table's name, `k8s-<plural>`.
    const TABLE: &'static str;

    /// Headings of the columns. The first is `Name`, the last `Age`.
    fn columns() -> &'static [&'static str] {
        &["Name", "Age"]
    }

    /// Returns the row as the shell prints it, one text for each column.
    fn cells(row: &Row<Self>) -> Vec<String> {
        vec![row.key(), row.age()]
    }

    /// Whether the row names its kind in JSON and YAML, as rows of Cilium's own tables do.
    const HAS_TYPE: bool = false;

    /// Serializes the row for JSON and YAML: the object, and the time of its last write.
    fn write<S: Serializer>(row: &Row<Self>, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'r, T> {
            #[serde(skip_serializing_if = "Option::is_none")]
            kind: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            api_version: Option<&'static str>,
            #[serde(flatten)]
            object: &'r T,
            #[serde(serialize_with = "time")]
            updated_at: SystemTime,
        }
        let kind = Self::HAS_TYPE.then(|| Self::KIND.name());
        let api_version = Self::HAS_TYPE.then(|| Self::KIND.api_version());
        Shown { kind, api_version, object: &row.object, updated_at: row.updated_at }.serialize(to)
    }

    /// Interns strings that many objects share. Those of the metadata are interned already.
    fn share(&mut self, _pool: &mut Pool) {}
}

/// A row of a table of objects. Dereferences to the object.
#[derive(Debug, Clone)]
pub struct Row<T> {
    /// The object.
    pub object: T,
    /// The source that it belongs to.
    pub source: Arc<str>,
    /// The file and document that it was read from; empty for objects of an API server.
    pub origin: SmolStr,
    /// The time of the last write of the row.
    pub updated_at: SystemTime,
}

/// Rows are equal if their objects are, regardless of the time of the last write.
impl<T: PartialEq> PartialEq for Row<T> {
    fn eq(&self, other: &Row<T>) -> bool {
        self.object == other.object && self.source == other.source && self.origin == other.origin
    }
}

impl<T> Deref for Row<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Tabled> Row<T> {
    /// Returns a row without a source, for tests.
    pub fn of(object: T) -> Row<T> {
        Row { object, source: Arc::default(), origin: SmolStr::default(), updated_at: SystemTime::UNIX_EPOCH }
    }

    /// Queries the object of this name; the namespace is empty for cluster-scoped kinds.
    pub fn by_name(namespace: &str, name: &str) -> Query<Row<T>> {
        Query::primary(name_of(namespace, name))
    }

    /// Queries the object of this name.
    pub fn by_key(key: &Key) -> Query<Row<T>> {
        Row::by_name(&key.namespace, &key.name)
    }

    /// Queries the objects of a namespace.
    pub fn in_namespace(namespace: &str) -> Prefix<Row<T>> {
        Prefix::primary(&*format!("{namespace}/"))
    }

    /// Returns the time since the last write as text.
    pub fn age(&self) -> String {
        age::since(self.updated_at)
    }
}

pub(crate) fn name_of(namespace: &str, name: &str) -> String {
    match namespace.is_empty() {
        true => name.to_owned(),
        // As keys are computed for each comparison, without the machinery of `format!`.
        false => [namespace, "/", name].concat(),
    }
}

impl<T: Tabled> TableSpec for Row<T> {
    const NAME: &'static str = T::TABLE;
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        let meta = self.object.metadata();
        name_of(&meta.namespace, &meta.name)
    }
}

impl<T: Tabled> TableDisplay for Row<T> {
    fn columns() -> &'static [&'static str] {
        T::columns()
    }

    fn row(&self) -> Vec<String> {
        T::cells(self)
    }

    /// Returns the YAML with the same names as in JSON.
    fn yaml(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }
}

impl<T: Tabled> Serialize for Row<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        T::write(self, to)
    }
}

/// Serializes a time as Go's `time.Time`; with the [fixed clock](statedb::age::fixed) of tests.
pub(crate) fn time<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&api_models::rfc3339(age::shown(*time)))
}

/// Rows that a reflection writes.
pub(crate) trait Reflected: TableDisplay + Clone + PartialEq {
    /// Decodes an object into a row.
    fn read(json: &[u8], from: &Origin) -> Result<Self, Refusal>;

    /// Interns strings, with those of the previous version of the row first.
    fn share(&mut self, _before: Option<&Self>, _pool: &mut Pool) {}

    /// Returns the row's key for an object of a source.
    fn key_of(kind: Kind, source: &str, key: &Key) -> KeyBuf;

    /// Whether the row is of this kind and belongs to this source.
    fn is_of(&self, kind: Kind, source: &str) -> bool;
}

impl<T: Tabled> Reflected for Row<T> {
    fn read(json: &[u8], from: &Origin) -> Result<Row<T>, Refusal> {
        let object = k8s_types::decode(json)?;
        Ok(Row { object, source: from.source.clone(), origin: from.origin.clone(), updated_at: from.at })
    }

    /// Rows change one by one, long after the pool has evicted the strings of a list: the previous version is interned
    /// first, so that an updated row shares its strings.
    fn share(&mut self, before: Option<&Row<T>>, pool: &mut Pool) {
        let mut pooled = |object: &mut T| {
            pool.metadata(object);
            object.share(pool);
        };
        if let Some(before) = before {
            // Interning a clone suffices: it shares the strings.
            pooled(&mut before.object.clone());
        }
        pooled(&mut self.object);
    }

    fn key_of(_: Kind, _: &str, key: &Key) -> KeyBuf {
        KeyBuf::of(&name_of(&key.namespace, &key.name))
    }

    fn is_of(&self, _: Kind, source: &str) -> bool {
        &*self.source == source
    }
}

//! Objects as rows of tables.

use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use statedb::{KeyBuf, Prefix, Query, TableSpec, age};

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

    /// A row as the shell shows it, one text a column.
    fn cells(row: &Row<Self>) -> Vec<String> {
        vec![row.key(), row.age()]
    }

    /// A row in JSON and YAML: the object, and when it was last written.
    fn write<S: Serializer>(row: &Row<Self>, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'r, T> {
            #[serde(flatten)]
            object: &'r T,
            #[serde(serialize_with = "time")]
            updated_at: SystemTime,
        }
        Shown { object: &row.object, updated_at: row.updated_at }.serialize(to)
    }

    /// Lets strings that many objects have be one. Metadata's are already.
    fn share(&mut self, _pool: &mut Pool) {}
}

/// A row of a table of objects. It reads as the object.
#[derive(Debug, Clone)]
pub struct Row<T> {
    /// The object.
    pub object: T,
    /// The source that has it.
    pub source: Arc<str>,
    /// Where a person finds it, file and document; empty for those of an API server.
    pub origin: SmolStr,
    /// When the row was last written.
    pub updated_at: SystemTime,
}

/// Rows are equal if their objects are, whenever they were written.
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
    /// A row of no source, for tests.
    pub fn of(object: T) -> Row<T> {
        Row { object, source: Arc::default(), origin: SmolStr::default(), updated_at: SystemTime::UNIX_EPOCH }
    }

    /// The object of this name; without a namespace for kinds that are in none.
    pub fn by_name(namespace: &str, name: &str) -> Query<Row<T>> {
        Query::primary(name_of(namespace, name))
    }

    /// The object of this name.
    pub fn by_key(key: &Key) -> Query<Row<T>> {
        Row::by_name(&key.namespace, &key.name)
    }

    /// The objects of a namespace.
    pub fn in_namespace(namespace: &str) -> Prefix<Row<T>> {
        Prefix::primary(&*format!("{namespace}/"))
    }

    /// How long ago it was last written.
    pub fn age(&self) -> String {
        age::since(self.updated_at)
    }
}

fn name_of(namespace: &str, name: &str) -> String {
    match namespace.is_empty() {
        true => name.to_owned(),
        false => format!("{namespace}/{name}"),
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

    fn columns() -> &'static [&'static str] {
        T::columns()
    }

    fn row(&self) -> Vec<String> {
        T::cells(self)
    }

    /// Under the same names as in JSON.
    fn yaml(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }
}

impl<T: Tabled> Serialize for Row<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        T::write(self, to)
    }
}

/// Times as Go's `time.Time` writes them, by the clock that ages follow.
pub(crate) fn time<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&api_models::rfc3339(age::shown(*time)))
}

/// Rows that are kept equal to sources.
pub(crate) trait Reflected: TableSpec + Clone + PartialEq {
    /// Makes a row of an object.
    fn read(json: &[u8], from: &Origin) -> Result<Self, Refusal>;

    /// Lets strings be one that others have, first of all the version before.
    fn share(&mut self, _before: Option<&Self>, _pool: &mut Pool) {}

    /// The key of the row of an object of a source.
    fn key_of(kind: Kind, source: &str, key: &Key) -> KeyBuf;

    /// Whether the source of this name has the row, among those of this kind.
    fn is_of(&self, kind: Kind, source: &str) -> bool;
}

impl<T: Tabled> Reflected for Row<T> {
    fn read(json: &[u8], from: &Origin) -> Result<Row<T>, Refusal> {
        let object = k8s_types::decode(json)?;
        Ok(Row { object, source: from.source.clone(), origin: from.origin.clone(), updated_at: from.at })
    }

    /// Rows change one by one, long after their neighbours in the list have been in the pool: the version before goes
    /// through it first, lest each row ends with strings of its own.
    fn share(&mut self, before: Option<&Row<T>>, pool: &mut Pool) {
        let mut pooled = |object: &mut T| {
            pool.metadata(object);
            object.share(pool);
        };
        if let Some(before) = before {
            // A copy has the same strings.
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

//! Tables without their types, for the shell, HTTP and metrics.

mod changes;
pub(crate) mod columns;
mod display;
mod edit;
mod text;

use std::any::Any;
use std::sync::Arc;

use crate::changes::Changes;
use crate::db::{Db, Snapshot};
use crate::error::Error;
use crate::key::{IndexKey, KeyBuf, KeyParseError};
use crate::obj::Obj;
use crate::query::{Prefix, Query};
use crate::rows::Rows;
use crate::spec::{IndexDef, PRIMARY, TableSpec};
use crate::stats::TableStats;
use crate::table::{RwTable, Table, TableMeta};
use crate::watch::Watch;

pub use changes::{AnyChange, AnyChanges};
#[cfg(feature = "hive")]
pub(crate) use display::label;
pub use display::{FromValue, TableDisplay};
pub use edit::{Edit, EditError};

/// Traits of the crate alone: methods are added to their subtraits without breaking an implementation elsewhere.
mod sealed {
    pub trait Sealed {}
}

impl<T: TableDisplay> sealed::Sealed for TableMeta<T> {}
impl<T: TableDisplay> sealed::Sealed for Obj<T> {}

/// A table of rows whose type is not known.
pub trait AnyTable: sealed::Sealed + Send + Sync {
    /// Returns the table's name.
    fn name(&self) -> &'static str;

    /// Returns the headings of the columns.
    fn columns(&self) -> &'static [&'static str];

    /// Returns the names of the indexes, the primary first.
    fn indexes(&self) -> Vec<&'static str>;

    /// Returns the table's statistics.
    fn stats(&self, snapshot: &Snapshot) -> TableStats;

    /// Returns all rows in order of their primary keys.
    fn all(&self, snapshot: &Snapshot) -> Vec<AnyObj>;

    /// Returns the first rows, at most `limit`, in order of their primary keys, behind a row if one is given: to walk
    /// over a table in steps without a list of all its rows.
    fn page(&self, snapshot: &Snapshot, after: Option<&AnyObj>, limit: usize) -> Vec<AnyObj>;

    /// Passes each row to a function, in order of primary keys, without an allocation for it, until the function
    /// returns an error, which is returned.
    fn try_for_each(
        &self,
        snapshot: &Snapshot,
        each: &mut dyn FnMut(&dyn AnyRow) -> std::io::Result<()>,
    ) -> std::io::Result<()>;

    /// Returns the rows of an index that match a key given as text.
    fn find(&self, snapshot: &Snapshot, find: Find, index: &str, key: &str) -> Result<Vec<AnyObj>, Error>;

    /// Returns the rows of an index with a key, or from it on, given as bytes: see [`IndexKey::encode_raw`].
    fn find_raw(
        &self,
        snapshot: &Snapshot,
        from: bool,
        index: &str,
        key: &[u8],
    ) -> Result<Vec<AnyObj>, Error>;

    /// Returns all rows as changes, then every later change; see [`Changes`]. `db` is the table's own.
    fn changes(self: Arc<Self>, db: &Db) -> AnyChanges;

    /// Returns a watch that closes with the next change after the snapshot.
    fn watch(&self, snapshot: &Snapshot) -> Watch;

    /// Returns the sources that have not filled the table yet, and a watch that closes when this list changes.
    fn initialized_watch(&self, snapshot: &Snapshot) -> (Vec<Arc<str>>, Watch);

    /// Converts values into rows and inserts them, or deletes the rows with their primary keys, in one transaction,
    /// which an error aborts. `db` is the table's own. See [`TableDisplay::FROM_VALUE`].
    fn edit(self: Arc<Self>, db: &Db, edit: Edit, rows: Vec<serde_json::Value>) -> Result<(), EditError>;

    /// Deletes rows by their primary keys, in one transaction; returns how many existed. `db` is the table's own.
    fn delete(self: Arc<Self>, db: &Db, rows: &[AnyObj]) -> usize;
}

/// The way in which rows match a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Find {
    /// The first row with this key.
    Get,
    /// All rows with this key.
    List,
    /// All rows whose key starts with it.
    Prefix,
    /// All rows whose key is equal or greater.
    LowerBound,
}

/// A row whose type is not known.
#[derive(Clone)]
pub struct AnyObj(Arc<dyn AnyRow>);

/// A stored row whose type is not known.
pub trait AnyRow: sealed::Sealed + Send + Sync {
    #[doc(hidden)]
    fn as_any(&self) -> &dyn Any;

    /// Returns the revision of its last write.
    fn revision(&self) -> u64;

    /// Returns one text for each column.
    fn row(&self) -> Vec<String>;

    /// Appends the object as JSON on one line, members in the order in which its type serializes them. If
    /// serialization fails, appends the error message as a JSON string.
    fn write_json(&self, out: &mut Vec<u8>);

    /// Returns the content of the object's YAML, as JSON, if its type provides it: see [`TableDisplay::yaml`].
    fn yaml(&self) -> Option<String>;
}

impl<T: TableDisplay> AnyRow for Obj<T> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn revision(&self) -> u64 {
        Obj::revision(self)
    }

    fn row(&self) -> Vec<String> {
        (**self).row()
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        text::json(&**self, out);
    }

    fn yaml(&self) -> Option<String> {
        (**self).yaml()
    }
}

impl std::fmt::Debug for AnyObj {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyObj").field("revision", &self.revision()).field("row", &self.row()).finish()
    }
}

impl AnyObj {
    /// Returns the revision of its last write.
    pub fn revision(&self) -> u64 {
        self.0.revision()
    }

    /// Returns one text for each column.
    pub fn row(&self) -> Vec<String> {
        self.0.row()
    }

    /// Returns the object as JSON on one line, members in the order in which its type serializes them. If serialization
    /// fails, returns the error message as a JSON string.
    pub fn json_text(&self) -> String {
        let mut text = Vec::new();
        self.0.write_json(&mut text);
        String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Returns the content of the object's YAML, as JSON, if its type provides it: see [`TableDisplay::yaml`].
    pub fn yaml(&self) -> Option<String> {
        self.0.yaml()
    }
}

impl<T: TableSpec> TableMeta<T> {
    /// Returns the names of the indexes, the primary first.
    fn names(&self) -> Vec<&'static str> {
        std::iter::once(T::PRIMARY).chain(self.indexes.iter().map(|index| index.name)).collect()
    }

    /// Returns the index with a name; none for the primary.
    fn index(&self, name: &str) -> Result<Option<&IndexDef<T>>, Error> {
        if ["", PRIMARY, T::PRIMARY].contains(&name) {
            return Ok(None);
        }
        let unknown =
            || Error::UnknownIndex { table: T::NAME, index: name.to_owned(), known: self.names().join(", ") };
        self.indexes.iter().find(|def| def.name == name).map(Some).ok_or_else(unknown)
    }
}

/// Returns the key that `parse` appends, with its result.
fn key<T: TableSpec, R>(
    index: Option<&IndexDef<T>>,
    parse: impl FnOnce(&mut KeyBuf) -> Result<R, KeyParseError>,
) -> Result<(KeyBuf, R), Error> {
    let mut key = KeyBuf::new();
    let index = index.map_or(T::PRIMARY, |def| def.name);
    let result = parse(&mut key).map_err(|source| Error::Key { table: T::NAME, index, source })?;
    Ok((key, result))
}

impl<T: TableDisplay> AnyTable for TableMeta<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn columns(&self) -> &'static [&'static str] {
        T::columns()
    }

    fn indexes(&self) -> Vec<&'static str> {
        self.names()
    }

    fn stats(&self, snapshot: &Snapshot) -> TableStats {
        TableMeta::stats(self, snapshot)
    }

    fn all(&self, snapshot: &Snapshot) -> Vec<AnyObj> {
        self.version(snapshot).map(|version| untyped(version.all())).unwrap_or_default()
    }

    fn page(&self, snapshot: &Snapshot, after: Option<&AnyObj>, limit: usize) -> Vec<AnyObj> {
        let Some(version) = self.version(snapshot) else { return Vec::new() };
        let after = after.and_then(|row| row.0.as_any().downcast_ref::<Obj<T>>());
        let after = after.map(|row| KeyBuf::of(&row.key()));
        let rows = match &after {
            None => version.all(),
            Some(after) => version.lower_bound(&self.indexes, &Query::new(None, after.clone())),
        };
        let seen = |row: &&Obj<T>| after.as_ref().is_some_and(|after| KeyBuf::of(&row.key()) == *after);
        rows.skip_while(seen).take(limit).map(|row| AnyObj(Arc::new(row.clone()))).collect()
    }

    fn try_for_each(
        &self,
        snapshot: &Snapshot,
        each: &mut dyn FnMut(&dyn AnyRow) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        self.version(snapshot).into_iter().flat_map(|version| version.all()).try_for_each(|row| each(row))
    }

    fn find(&self, snapshot: &Snapshot, find: Find, index: &str, key: &str) -> Result<Vec<AnyObj>, Error> {
        let def = self.index(index)?;
        let parse = match (def, find) {
            (None, Find::Prefix) => T::Key::encode_text_prefix,
            (None, _) => T::Key::encode_text,
            (Some(def), Find::Prefix) => def.parse_prefix,
            (Some(def), _) => def.parse,
        };
        let (key, ()) = self::key(def, |buf| parse(key, buf))?;
        let index = def.map(|def| def.name);
        let Some(version) = self.version(snapshot) else { return Ok(Vec::new()) };
        let query = Query::new(index, key.clone());
        let indexes = &self.indexes;
        Ok(match find {
            Find::Get => untyped(Rows::one(version.get(indexes, &query))),
            Find::List => untyped(version.list(indexes, &query)),
            Find::Prefix => untyped(version.prefix(indexes, &Prefix::new(index, key))),
            Find::LowerBound => untyped(version.lower_bound(indexes, &query)),
        })
    }

    fn find_raw(
        &self,
        snapshot: &Snapshot,
        from: bool,
        index: &str,
        key: &[u8],
    ) -> Result<Vec<AnyObj>, Error> {
        let def = self.index(index)?;
        let parse = match (def, from) {
            (None, false) => T::Key::encode_raw,
            (None, true) => T::Key::encode_raw_bound,
            (Some(def), false) => def.raw,
            (Some(def), true) => def.raw_bound,
        };
        let (key, exists) = self::key(def, |buf| parse(key, buf))?;
        let Some(version) = self.version(snapshot).filter(|_| exists) else { return Ok(Vec::new()) };
        let query = Query::new(def.map(|def| def.name), key);
        let rows = if from {
            version.lower_bound(&self.indexes, &query)
        } else {
            version.list(&self.indexes, &query)
        };
        Ok(untyped(rows))
    }

    #[track_caller]
    fn changes(self: Arc<Self>, db: &Db) -> AnyChanges {
        AnyChanges::new(Changes::new(Table { db: db.clone(), meta: self }))
    }

    fn watch(&self, snapshot: &Snapshot) -> Watch {
        self.version(snapshot).map_or_else(Watch::closed, |version| version.watch.watch())
    }

    fn initialized_watch(&self, snapshot: &Snapshot) -> (Vec<Arc<str>>, Watch) {
        let Some(version) = self.version(snapshot) else { return (Vec::new(), Watch::closed()) };
        (version.init.names(), version.init.watch.watch())
    }

    #[track_caller]
    fn edit(self: Arc<Self>, db: &Db, edit: Edit, rows: Vec<serde_json::Value>) -> Result<(), EditError> {
        edit::edit(&RwTable(Table { db: db.clone(), meta: self }), edit, rows)
    }

    #[track_caller]
    fn delete(self: Arc<Self>, db: &Db, rows: &[AnyObj]) -> usize {
        let rows = rows.iter().filter_map(|row| row.0.as_any().downcast_ref::<Obj<T>>());
        edit::delete(&RwTable(Table { db: db.clone(), meta: self }), rows)
    }
}

fn untyped<T: TableDisplay>(rows: Rows<'_, T>) -> Vec<AnyObj> {
    rows.map(|row| AnyObj(Arc::new(row.clone()))).collect()
}

impl Db {
    /// Writes all tables [with a display](Db::table_with_display) as one JSON object,
    /// `{ "table": [object, ...], ... }`, in order of registration. Row by row: the memory that it needs is that of the
    /// longest row.
    pub fn write_json(&self, snapshot: &Snapshot, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let mut text = Vec::new();
        write!(out, "{{")?;
        for (at, table) in self.tables().iter().enumerate() {
            write!(out, "{}\n  \"{}\": [", if at == 0 { "" } else { "," }, table.name())?;
            let mut separator = "";
            table.try_for_each(snapshot, &mut |row| {
                write!(out, "{separator}\n    ")?;
                separator = ",";
                text.clear();
                row.write_json(&mut text);
                out.write_all(&text)
            })?;
            write!(out, "\n  ]")?;
        }
        writeln!(out, "\n}}")
    }
}

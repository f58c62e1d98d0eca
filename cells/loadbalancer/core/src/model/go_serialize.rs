//! Serialization of rows in two encodings: JSON with the field names of Go's types, and YAML with the same names in
//! lower case, other words for absent values, and durations as text.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// An encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

/// A row that can be written in both encodings.
pub(crate) trait GoSerialize {
    /// Writes its fields in order.
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error>;
}

/// A writer of the fields of a row.
pub(crate) struct Fields<'m, M> {
    map: &'m mut M,
    pub(crate) form: Encoding,
}

impl<M: SerializeMap> Fields<'_, M> {
    /// Adds a field by its name in Go.
    pub(crate) fn add<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), M::Error> {
        match self.form {
            Encoding::Json => self.map.serialize_entry(name, value),
            Encoding::Yaml => self.map.serialize_entry(&name.to_lowercase(), value),
        }
    }

    /// Adds a list; an empty one is written as a nil slice of Go.
    pub(crate) fn list<T: Serialize>(&mut self, name: &str, items: &[T]) -> Result<(), M::Error> {
        match self.form {
            Encoding::Json if items.is_empty() => self.add(name, &()),
            _ => self.add(name, items),
        }
    }

    /// Adds a list of values that are written in both encodings, never null.
    pub(crate) fn rows<'r, T: GoSerialize + 'r>(
        &mut self,
        name: &str,
        rows: impl Iterator<Item = &'r T>,
    ) -> Result<(), M::Error> {
        let form = self.form;
        let rows: Vec<Encoded<'_, T>> = rows.map(|row| Encoded(row, form)).collect();
        self.add(name, &rows)
    }

    /// Adds values by name; an empty map is written as a nil map of Go.
    pub(crate) fn map<T: Serialize>(&mut self, name: &str, map: &T, empty: bool) -> Result<(), M::Error> {
        match self.form {
            Encoding::Json if empty => self.add(name, &()),
            _ => self.add(name, map),
        }
    }

    /// Adds a duration: nanoseconds, or text in Go's format.
    pub(crate) fn duration(&mut self, name: &str, duration: Duration) -> Result<(), M::Error> {
        match self.form {
            Encoding::Json => self.add(name, &u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
            Encoding::Yaml => self.add(name, &go_duration(duration)),
        }
    }
}

/// A row in one of the encodings.
pub(crate) struct Encoded<'r, T>(pub(crate) &'r T, pub(crate) Encoding);

impl<T: GoSerialize> Serialize for Encoded<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.0.fields(&mut Fields { map: &mut map, form: self.1 })?;
        map.end()
    }
}

/// Returns a row in the format of [`TableDisplay::yaml`](statedb::TableDisplay::yaml).
pub(crate) fn yaml<T: GoSerialize>(row: &T) -> Option<String> {
    serde_json::to_string(&Encoded(row, Encoding::Yaml)).ok()
}

/// Formats whole seconds as Go does: `3h0m0s`, `1m30s`, `45s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    hive::config::format_duration(Duration::from_secs(duration.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_prints_them() {
        let shown = |seconds| go_duration(Duration::from_secs(seconds));
        assert_eq!([shown(0), shown(45), shown(90), shown(10_800)], ["0s", "45s", "1m30s", "3h0m0s"]);
    }
}

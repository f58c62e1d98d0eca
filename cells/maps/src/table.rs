//! The table `bpf-maps`: the maps of the node and what the kernel says of them. Policy maps come and go with endpoints,
//! they are not in it.

use serde::Serialize;
use statedb::{Query, TableSpec};

/// A pinned map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapRow {
    /// Its name.
    pub name: String,
    /// Its pin.
    pub path: String,
    /// The kernel's number.
    pub id: u32,
    /// Its type, as the kernel's tools call it.
    pub map_type: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries at most.
    pub max_entries: u32,
    /// Flags.
    pub flags: u32,
}

impl MapRow {
    /// The row of a map.
    pub fn new(name: &str, path: &std::path::Path, id: u32, layout: bpf::Layout) -> MapRow {
        MapRow {
            name: name.to_owned(),
            path: path.display().to_string(),
            id,
            map_type: layout.map_type.to_string(),
            key_size: layout.key_size,
            value_size: layout.value_size,
            max_entries: layout.max_entries,
            flags: layout.flags.0,
        }
    }

    /// The map of that name.
    pub fn by_name(name: &str) -> Query<MapRow> {
        Query::primary(name)
    }
}

impl TableSpec for MapRow {
    const NAME: &'static str = "bpf-maps";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "ID", "Type", "Key", "Value", "MaxEntries", "Flags"]
    }

    fn row(&self) -> Vec<String> {
        let numbers = [self.key_size, self.value_size, self.max_entries].map(|n| n.to_string());
        let mut row = vec![self.name.clone(), self.id.to_string(), self.map_type.clone()];
        row.extend(numbers);
        row.push(format!("{:#x}", self.flags));
        row
    }
}

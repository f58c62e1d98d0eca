//! The table `bpf-maps`: the maps of the node and their properties in the kernel, except for policy maps, which are
//! created and deleted with endpoints.

use serde::Serialize;
use statedb::Table;

/// A pinned map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Table)]
#[table(name = "bpf-maps")]
pub struct MapRow {
    /// Its name.
    #[primary]
    pub name: String,
    /// Its pin.
    #[column(skip)]
    pub path: String,
    /// The kernel's id.
    #[column("ID")]
    pub id: u32,
    /// Its type, as the kernel's tools call it.
    #[column("Type")]
    pub map_type: String,
    /// Bytes of a key.
    #[column("Key")]
    pub key_size: u32,
    /// Bytes of a value.
    #[column("Value")]
    pub value_size: u32,
    /// Entries at most.
    pub max_entries: u32,
    /// Flags.
    #[column(with = |flags: &u32| format!("{flags:#x}"))]
    pub flags: u32,
}

impl MapRow {
    /// Creates the row of a map.
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
}

#[cfg(test)]
mod tests {
    use statedb::{TableDisplay, TableSpec};

    use super::*;

    #[test]
    fn a_row_is_as_it_is_shown() {
        let row = MapRow {
            name: "cilium_lxc".into(),
            path: "/sys/fs/bpf/tc/globals/cilium_lxc".into(),
            id: 7,
            map_type: "hash".into(),
            key_size: 20,
            value_size: 48,
            max_entries: 65_535,
            flags: 1,
        };
        assert_eq!(MapRow::columns(), ["Name", "ID", "Type", "Key", "Value", "MaxEntries", "Flags"]);
        assert_eq!(row.row(), ["cilium_lxc", "7", "hash", "20", "48", "65535", "0x1"]);
        assert_eq!((MapRow::NAME, MapRow::PRIMARY, row.key()), ("bpf-maps", "primary", "cilium_lxc"));
    }
}

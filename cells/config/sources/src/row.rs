//! The table `cilium-configs`.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeStruct, Serializer};
use statedb::{Index, IndexDef, Query, Snapshot, Table, TableDisplay, TableSpec};

/// A row of the table `cilium-configs`: an option in one object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The option.
    pub key: String,
    /// The object's name.
    pub source: String,
    /// The priority of the object; the lowest takes precedence.
    pub priority: u32,
    /// The value in the object.
    pub value: String,
    /// The object with kind and namespace, for display.
    pub object: String,
}

const BY_NAME: Index<ClusterConfig, str> = Index::new("name", |row, keys| keys.add(&row.key));

impl ClusterConfig {
    /// Queries the values of an option in all objects.
    pub fn by_name(key: &str) -> Query<ClusterConfig> {
        BY_NAME.query(key)
    }

    /// Whether a CiliumNodeConfig has options for this node. Linear in the rows.
    pub fn has_node_config(table: &Table<ClusterConfig>) -> bool {
        let snapshot = table.snapshot();
        table.all(&snapshot).any(|row| row.object.starts_with("CiliumNodeConfig "))
    }

    /// Returns the effective row of each option, in order of the options' names.
    pub fn effective<'s>(table: &Table<ClusterConfig>, snapshot: &'s Snapshot) -> Vec<&'s ClusterConfig> {
        let mut best: BTreeMap<&str, &ClusterConfig> = BTreeMap::new();
        for row in table.all(snapshot) {
            let now = best.entry(&row.key).or_insert(row);
            if row.priority < now.priority {
                *now = row;
            }
        }
        best.into_values().collect()
    }
}

impl TableSpec for ClusterConfig {
    const NAME: &'static str = "cilium-configs";
    const PRIMARY: &'static str = "key";
    type Key<'a> = String;

    fn key(&self) -> String {
        format!("{}/{}", self.key, self.source)
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NAME.def()]
    }
}

impl TableDisplay for ClusterConfig {
    fn columns() -> &'static [&'static str] {
        &["Key", "Source", "Priority", "Value"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.key.clone(), self.source.clone(), self.priority.to_string(), self.value.clone()]
    }
}

/// Serializes as in Cilium.
impl Serialize for ClusterConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("DynamicConfig", 3)?;
        row.serialize_field("Key", &Key { name: &self.key, source: &self.source })?;
        row.serialize_field("Value", &self.value)?;
        row.serialize_field("Priority", &self.priority)?;
        row.end()
    }
}

#[derive(serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct Key<'a> {
    name: &'a str,
    source: &'a str,
}

#[cfg(test)]
mod tests {
    use statedb::{Db, RwTable};

    use super::*;

    fn row(key: &str, source: &str, priority: u32, value: &str) -> ClusterConfig {
        let [key, source, value, object] = [key, source, value, ""].map(str::to_owned);
        ClusterConfig { key, source, priority, value, object }
    }

    #[test]
    fn rows_are_formatted_as_in_cilium() {
        let debug = row("debug", "cilium-config", 1, "true");
        assert_eq!(
            serde_json::to_string(&debug).unwrap(),
            r#"{"Key":{"Name":"debug","Source":"cilium-config"},"Value":"true","Priority":1}"#
        );
        assert_eq!(debug.row(), ["debug", "cilium-config", "1", "true"]);
        let table: RwTable<ClusterConfig> = Db::new().table_with_display().unwrap();
        assert_eq!(table.db().tables()[0].indexes(), ["key", "name"]);
    }

    #[test]
    fn the_lowest_priority_takes_precedence() {
        let table: RwTable<ClusterConfig> = Db::new().table().unwrap();
        let rows =
            [row("a", "x", 2, "1"), row("a", "y", 1, "2"), row("b", "x", 2, "3"), row("b", "y", 3, "4")];
        table.transact(|w| rows.into_iter().for_each(|row| drop(w.insert(row))));
        let snapshot = table.snapshot();
        let counts: Vec<&str> = ClusterConfig::effective(&table.reader(), &snapshot)
            .iter()
            .map(|row| row.value.as_str())
            .collect();
        assert_eq!(counts, ["2", "3"]);
        assert_eq!(table.list(&snapshot, ClusterConfig::by_name("b")).count(), 2);
    }

    #[test]
    fn a_node_config_is_found_beside_other_objects() {
        let table: RwTable<ClusterConfig> = Db::new().table().unwrap();
        let of = |kind: &str| ClusterConfig { object: format!("{kind} a/b"), ..row("mtu", kind, 1, "9000") };
        table.transact(|w| w.insert(of("ConfigMap")));
        assert!(!ClusterConfig::has_node_config(&table.reader()));
        table.transact(|w| w.insert(of("CiliumNodeConfig")));
        assert!(ClusterConfig::has_node_config(&table.reader()));
    }
}

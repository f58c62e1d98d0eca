//! The columns of each kind.

use k8s_types::schema::custom_resource_definition;
use k8s_types::{Kind, Time};
use serde_json::Value;

use super::age::age;
use super::column::Column;
use super::core;
use crate::output::jsonpath::Path;

/// Kinds whose objects the agent has in a table.
pub(super) const KINDS: &[Kind] = &[
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Namespace,
    Kind::Node,
    Kind::NetworkPolicy,
    Kind::CiliumNetworkPolicy,
    Kind::CiliumClusterwideNetworkPolicy,
    Kind::CiliumCIDRGroup,
    Kind::CiliumIdentity,
    Kind::CiliumEndpoint,
    Kind::CiliumNode,
];

/// How objects of a kind are shown.
pub(super) struct Columns {
    kind: Kind,
    columns: Vec<Column>,
    /// Where the cells of a custom resource come from.
    custom: Vec<Custom>,
}

/// The value of a column of a custom resource.
struct Custom {
    path: Path,
    is_date: bool,
}

impl Columns {
    /// Those of a kind: the server's own for Kubernetes' kinds, for custom resources what their definition says.
    pub(super) fn of(kind: Kind) -> anyhow::Result<Columns> {
        if let Some(columns) = core::columns(kind) {
            return Ok(Columns { kind, columns, custom: Vec::new() });
        }
        let mut columns = Columns { kind, columns: Vec::new(), custom: Vec::new() };
        for column in printer_columns(kind) {
            let text = |name: &str| column[name].as_str().unwrap_or_default();
            let path = text("jsonPath");
            if is_held(kind, path) {
                let heading = text("name").to_uppercase();
                columns.columns.push(Column { heading, wide: column["priority"].as_i64() > Some(0) });
                let path = path.parse().map_err(anyhow::Error::msg)?;
                columns.custom.push(Custom { path, is_date: text("type") == "date" });
            }
        }
        Ok(columns)
    }

    /// Headings of the columns, with those of `-o wide` or without.
    pub(super) fn headings(&self, with_wide: bool) -> Vec<&str> {
        let shown = self.columns.iter().filter(|column| with_wide || !column.wide);
        shown.map(|column| column.heading.as_str()).collect()
    }

    /// The cells of an object, as it came and as a value; `now` in seconds since 1970.
    pub(super) fn cells(
        &self,
        json: &[u8],
        object: &Value,
        with_wide: bool,
        now: i64,
    ) -> anyhow::Result<Vec<String>> {
        let cells = match self.custom.is_empty() {
            true => core::cells(self.kind, json, now)?,
            false => self.custom.iter().map(|column| column.cell(object, now)).collect(),
        };
        let cells = cells.into_iter().zip(&self.columns);
        Ok(cells.filter(|(_, column)| with_wide || !column.wide).map(|(cell, _)| cell).collect())
    }
}

impl Custom {
    /// Blank if the object has nothing there.
    fn cell(&self, object: &Value, now: i64) -> String {
        let text = self.path.first(object);
        match self.is_date {
            true => age(text.and_then(|text| text.parse::<Time>().ok()), now),
            false => text.unwrap_or_default(),
        }
    }
}

/// Returns the columns of a kind's definition; the age if it has none.
fn printer_columns(kind: Kind) -> Vec<Value> {
    let mut definition = custom_resource_definition(kind);
    let versions = definition["spec"]["versions"].as_array_mut();
    let version = versions.into_iter().flatten().find(|version| version["name"] == kind.version());
    match version.map(|version| version["additionalPrinterColumns"].take()) {
        Some(Value::Array(columns)) => columns,
        _ => vec![
            serde_json::json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}),
        ],
    }
}

/// Whether the agent holds the field: of policies it has the spec, not the status.
fn is_held(kind: Kind, path: &str) -> bool {
    !(matches!(kind, Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy)
        && path.starts_with(".status"))
}

#[cfg(test)]
#[path = "columns_tests.rs"]
mod tests;

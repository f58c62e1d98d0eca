//! The columns of each kind.

use k8s_types::schema::custom_resource_definition;
use k8s_types::{Kind, Time};
use serde_json::Value;

use super::age::age;
use super::column::Column;
use super::core;
use crate::output::jsonpath::Path;

/// Kinds with a table in the agent.
pub(super) const KINDS: &[Kind] = &[
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Namespace,
    Kind::Node,
    Kind::NetworkPolicy,
    Kind::ClusterNetworkPolicy,
    Kind::CiliumNetworkPolicy,
    Kind::CiliumClusterwideNetworkPolicy,
    Kind::CiliumCIDRGroup,
    Kind::CiliumIdentity,
    Kind::CiliumEndpoint,
    Kind::CiliumNode,
];

/// The columns of a kind.
pub(super) struct Columns {
    kind: Kind,
    columns: Vec<Column>,
    /// The sources of the cells of a custom resource.
    custom: Vec<Custom>,
}

/// The source of a column of a custom resource.
struct Custom {
    path: Path,
    is_date: bool,
}

impl Columns {
    /// Returns the columns of a kind: the API server's own for Kubernetes' kinds, those of the definition for custom
    /// resources.
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

    /// Returns the headings of the columns, including those of `-o wide` if requested.
    pub(super) fn headings(&self, with_wide: bool) -> Vec<&str> {
        let shown = self.columns.iter().filter(|column| with_wide || !column.wide);
        shown.map(|column| column.heading.as_str()).collect()
    }

    /// Returns the cells of an object, passed as JSON and as a value; `now` in seconds since 1970.
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
    /// Returns the cell of a column; blank if the object lacks the field.
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

/// Whether the agent stores the field: of policies it stores the spec, not the status.
fn is_held(kind: Kind, path: &str) -> bool {
    !(matches!(kind, Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy)
        && path.starts_with(".status"))
}

#[cfg(test)]
#[path = "columns_tests.rs"]
mod tests;

//! Objects in the output format of `kubectl`.

use std::io::Write;

use k8s_types::Kind;
use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::columns::Columns;
use super::core::labels;
use super::held::Held;
use super::resources::singular_name;
use crate::output::{Format, table};

/// The minimum width of a column, including the blanks after it.
const MINIMUM: usize = 6;

/// The layout of a table.
pub(super) struct Table {
    /// With columns of `-o wide`.
    pub(super) wide: bool,
    /// With the namespace as the first column, for namespaced kinds.
    pub(super) namespaces: bool,
    pub(super) headings: bool,
    /// With labels as the last column.
    pub(super) labels: bool,
    /// With the kind before each name.
    pub(super) kinds: bool,
    /// Seconds since 1970.
    pub(super) now: i64,
}

impl Table {
    /// Prints objects of a kind.
    pub(super) fn print(&self, kind: Kind, objects: &[Held], out: &mut dyn Write) -> anyhow::Result<()> {
        let columns = Columns::of(kind)?;
        let namespaces = self.namespaces && kind.namespaced();
        let mut text = String::new();
        if self.headings {
            let headings = columns.headings(self.wide);
            let first = namespaces.then_some("NAMESPACE").into_iter().chain(["NAME"]);
            let line: Vec<&str> = first.chain(headings).chain(self.labels.then_some("LABELS")).collect();
            text += &(line.join("\t") + "\n");
        }
        let prefix = if self.kinds { format!("{}/", singular_name(kind)) } else { String::new() };
        for held in objects {
            let meta = &held.meta;
            let first = namespaces.then(|| meta.namespace.to_string());
            let first = first.into_iter().chain([format!("{prefix}{}", meta.name)]);
            let cells = columns.cells(&held.json, &held.object, self.wide, self.now)?;
            let cells = first.chain(cells).chain(self.labels.then(|| labels(&meta.labels)));
            text += &(cells.collect::<Vec<_>>().join("\t") + "\n");
        }
        Ok(table(&text, MINIMUM, out)?)
    }
}

/// Prints an object or a list, members in order of their names.
pub(super) fn data(object: &Value, format: &Format, out: &mut dyn Write) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            object.serialize(&mut Serializer::with_formatter(
                &mut *out,
                PrettyFormatter::with_indent(b"    "),
            ))?;
            writeln!(out)?;
        }
        Format::Yaml | Format::JsonPath(_) => format.write(object, out)?,
    }
    Ok(())
}

//! The tables `selectors` and `subject-selectors`: the peers that rules name, and the endpoints that rules select.

use std::sync::Arc;

use api_models as models;
use labels::Label;
use policy_engine::{SelectorChanges, SelectorRow};
use serde::{Serialize, Serializer};
use statedb::{Query, RwTable, TableDisplay, TableSpec};

/// A row of `selectors`, in the form of the REST API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSelector(pub SelectorRow);

/// A row of `subject-selectors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectSelector(pub SelectorRow);

/// Returns the model of a row, with those of its identities that are listed.
pub(crate) fn model(row: &SelectorRow, is_listed: impl Fn(u32) -> bool) -> models::SelectorIdentityMapping {
    let label = |text: &String| {
        let Label { key, value, source } = Label::parse(text);
        models::Label { key, source, value }
    };
    let labels = |labels: &Arc<[String]>| labels.iter().map(label).collect();
    models::SelectorIdentityMapping {
        identities: row
            .identities
            .iter()
            .copied()
            .filter(|id| is_listed(*id))
            .map(i64::from)
            .collect::<Vec<_>>()
            .into(),
        labels: row.labels.iter().map(labels).collect(),
        selector: row.selector.to_string(),
        users: i64::try_from(row.users).unwrap_or(i64::MAX),
    }
}

const COLUMNS: &[&str] = &["Selector", "Labels", "Users", "Identities"];

fn columns(row: &SelectorRow) -> Vec<String> {
    let labels: Vec<String> = row.labels.iter().map(|labels| labels.join(",")).collect();
    let identities: Vec<String> = row.identities.iter().map(u32::to_string).collect();
    vec![row.selector.to_string(), labels.join("; "), row.users.to_string(), identities.join(",")]
}

macro_rules! table {
    ($row:ident, $name:literal) => {
        impl Serialize for $row {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                model(&self.0, |_| true).serialize(to)
            }
        }

        impl From<SelectorRow> for $row {
            fn from(row: SelectorRow) -> $row {
                $row(row)
            }
        }

        impl $row {
            /// Queries the selector with this text.
            pub fn by_text(text: &str) -> Query<$row> {
                Query::primary(text)
            }
        }

        impl TableSpec for $row {
            const NAME: &'static str = $name;
            const PRIMARY: &'static str = "selector";
            type Key<'a> = &'a str;

            fn key(&self) -> &str {
                &self.0.selector
            }
        }

        impl TableDisplay for $row {
            fn columns() -> &'static [&'static str] {
                COLUMNS
            }

            fn row(&self) -> Vec<String> {
                columns(&self.0)
            }
        }
    };
}

table!(PeerSelector, "selectors");
table!(SubjectSelector, "subject-selectors");

/// Applies changes of the engine's selectors to a table.
pub(crate) fn apply_changes<R>(table: &RwTable<R>, changes: SelectorChanges, by: fn(&str) -> Query<R>)
where
    R: TableSpec + From<SelectorRow> + PartialEq,
{
    if changes.is_empty() {
        return;
    }
    table.transact(|w| {
        for (text, row) in changes {
            match row.map(R::from) {
                Some(row) if w.get(by(&text)).is_some_and(|known| **known == row) => {}
                Some(row) => drop(w.insert(row)),
                None => drop(w.delete(by(&text))),
            }
        }
    });
}

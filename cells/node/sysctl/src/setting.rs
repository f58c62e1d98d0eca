//! The row of table `sysctl`.

use reconciler::Status;
use serde::Serialize;
use statedb::{Query, TableSpec};

use crate::Name;

/// A kernel setting that somebody wants.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Setting {
    /// Which one.
    pub name: Name,
    /// Its value.
    #[serde(rename = "Val")]
    pub value: String,
    /// Whether the agent can do without it: a failure is then shown in the
    /// row, and whoever asked for it goes on.
    #[serde(rename = "IgnoreErr")]
    pub optional: bool,
    /// What it means if it cannot be made; empty for nothing in particular.
    pub warn: String,
    /// How far it is.
    pub status: Status,
}

impl Setting {
    /// A setting that has to work.
    #[must_use]
    pub fn new(name: Name, value: impl ToString) -> Self {
        Self {
            name,
            value: value.to_string(),
            optional: false,
            warn: String::new(),
            status: Status::pending(),
        }
    }

    /// One that the agent can do without.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// With a word on what its absence means.
    #[must_use]
    pub fn warn(self, meaning: impl Into<String>) -> Self {
        Self { warn: meaning.into(), ..self }
    }

    /// The row of a setting.
    #[must_use]
    pub fn by_name(name: &Name) -> Query<Self> {
        Query::primary(name.to_string())
    }
}

impl TableSpec for Setting {
    const NAME: &'static str = "sysctl";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        self.name.to_string()
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "Value", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.to_string(), self.value.clone(), self.status.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_as_the_original_prints_it() {
        let name: Name = "kernel.timer_migration".parse().unwrap();
        let setting = Setting::new(name, 0).optional();
        let json = serde_json::to_value(&setting).unwrap();
        assert_eq!(json["Name"], serde_json::json!(["kernel", "timer_migration"]));
        assert_eq!(
            (&json["Val"], &json["IgnoreErr"], &json["Warn"]),
            (&"0".into(), &true.into(), &"".into())
        );
        assert_eq!(json["Status"]["kind"], "Pending");
        assert_eq!(setting.row()[..2], ["kernel.timer_migration", "0"]);
    }
}

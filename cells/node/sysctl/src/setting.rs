//! The row of table `sysctl`.

use reconciler::Status;
use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

use crate::Name;

/// A requested kernel setting.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Setting {
    /// Its name.
    pub name: Name,
    /// The desired value.
    #[serde(rename = "Val")]
    pub value: String,
    /// Whether the agent works without it: a failure is reported in the row, the request succeeds.
    #[serde(rename = "IgnoreErr")]
    pub optional: bool,
    /// The consequence if it cannot be written, for the log; empty for none.
    pub warn: String,
    /// Its state of reconciliation.
    pub status: Status,
}

impl Setting {
    /// A required setting.
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

    /// Makes it optional: the agent works without it.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Sets the consequence that is logged if it cannot be written.
    #[must_use]
    pub fn warn(self, meaning: impl Into<String>) -> Self {
        Self { warn: meaning.into(), ..self }
    }

    /// Selects the row of a setting.
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
}

impl TableDisplay for Setting {
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
    fn a_setting_is_serialized_as_cilium_does() {
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

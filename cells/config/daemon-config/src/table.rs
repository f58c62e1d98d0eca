//! The table `configuration`: the value of each option in each source, and its state.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Page, Response};
use hive::config::{Observed, Source, Standing};
use hive::prelude::*;
use hive::{LiveConfig, Settings};
use runtime_options::RuntimeOption;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use statedb::{Query, RwTable, Table, TableSpec};

use crate::cluster::{Cluster, ClusterDrift};
use crate::spec;

/// A row of the table `configuration`: the value of an option in one source. It has the columns of `cilium-configs`,
/// which contains only cluster objects, and two more.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(name = "configuration", primary(key, source, name = "key"))]
pub struct ConfigRow {
    /// The option.
    #[index(name = "name")]
    pub key: String,
    /// The source of the value.
    pub source: String,
    /// The priority of the source; the lowest takes precedence.
    pub priority: u32,
    /// The value in the source.
    pub value: String,
    /// The running value, `-` if the agent has no such option.
    pub running: String,
    /// The state of the value: in force, or the reason why not.
    pub state: String,
}

impl Serialize for ConfigRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("ConfigRow", 5)?;
        row.serialize_field("Key", &BTreeMap::from([("Name", &self.key), ("Source", &self.source)]))?;
        row.serialize_field("Value", &self.value)?;
        row.serialize_field("Priority", &self.priority)?;
        row.serialize_field("Running", &self.running)?;
        row.serialize_field("State", &self.state)?;
        row.end()
    }
}

/// Fills the table, and updates it when the configuration is reread or options are patched.
pub(crate) fn fill(
    live: Arc<LiveConfig>,
    options: Arc<Table<RuntimeOption>>,
    table: Arc<RwTable<ConfigRow>>,
    jobs: JobGroup,
) {
    let mut observed = live.watch_observed();
    jobs.one_shot("configuration-table", move |cx: JobCx| async move {
        loop {
            let snapshot = options.snapshot();
            let (patched, watch) = options.all_watch(&snapshot);
            let rows = rows(&observed.get(), &live.settings(), patched.map(|option| &**option));
            table.transact(|w| {
                let wanted: BTreeMap<(&str, &str), &ConfigRow> =
                    rows.iter().map(|row| (row.key(), row)).collect();
                w.retain(|row| wanted.get(&row.key()).is_some_and(|wanted| *wanted == row));
                for row in
                    rows.iter().filter(|row| w.get(Query::primary(row.key())).is_none()).collect::<Vec<_>>()
                {
                    w.insert(row.clone());
                }
            });
            drop(snapshot);
            tokio::select! {
                () = observed.changed() => {}
                () = watch.changed() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    })
    .add();
}

/// Returns the rows of the observed options, with the values that clients have patched meanwhile.
fn rows<'a>(
    observed: &[Observed],
    settings: &Settings,
    options: impl Iterator<Item = &'a RuntimeOption>,
) -> Vec<ConfigRow> {
    let mut rows: Vec<ConfigRow> = observed.iter().map(row).collect();
    // If the settings are invalid, the values of the start are in force.
    let configured = spec::of_settings(settings).unwrap_or_default();
    for option in options.filter(|option| !option.key().is_empty() && !configured.contains(option)) {
        let (key, patched) = (option.key(), "changed by PATCH /config");
        let in_force = Standing::InForce.to_string();
        match rows.iter_mut().find(|row| row.key == key && row.state == in_force) {
            Some(row) => (row.running, row.state) = (option.value.clone(), patched.to_owned()),
            None => {
                let value = settings.get(key).map(|setting| setting.default.clone()).unwrap_or_default();
                rows.push(ConfigRow {
                    key: key.to_owned(),
                    source: Source::Default.to_string(),
                    priority: Source::Default.priority(),
                    value,
                    running: option.value.clone(),
                    state: patched.to_owned(),
                });
            }
        }
    }
    rows
}

/// Provides `GET /apiary/drift`: the values that are not in force, with reasons.
pub(crate) fn page(
    table: Arc<Table<ConfigRow>>,
    cluster: Arc<Cluster>,
    live: Arc<LiveConfig>,
) -> Member<Page> {
    Member(Page::new("drift", move |_| {
        let reported = match cluster.is_followed() {
            true => vec![],
            false => ClusterDrift::of(&cluster.values().0, &live),
        };
        let text = drift(table.all(&table.snapshot()).map(|row| &**row), &reported);
        std::future::ready(Response::text(200, text))
    }))
}

/// Returns a line for each value that is not in force, except those that another source overrides.
fn drift<'a>(rows: impl Iterator<Item = &'a ConfigRow>, reported: &[ClusterDrift]) -> String {
    let quiet = [Standing::InForce.to_string(), "overridden by ".to_owned()];
    let rows = rows.filter(|row| row.state != quiet[0] && !row.state.starts_with(&quiet[1]));
    let line = |row: &ConfigRow| {
        let ConfigRow { key, source, value, running, state, .. } = row;
        let running = if running == "-" { String::new() } else { format!("running with {running:?}, ") };
        format!("{key}: {running}{source} says {value:?}: {state}\n")
    };
    let lines: String =
        rows.map(line).chain(reported.iter().map(|reported| format!("{reported}\n"))).collect();
    if lines.is_empty() { "The agent runs as its configuration says.\n".to_owned() } else { lines }
}

fn row(observed: &Observed) -> ConfigRow {
    ConfigRow {
        key: observed.key.clone(),
        source: observed.source.to_string(),
        priority: observed.priority,
        value: observed.value.clone(),
        running: observed.running.clone().unwrap_or_else(|| "-".to_owned()),
        state: observed.standing.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use statedb::TableDisplay;

    use super::*;

    #[test]
    fn rows_are_formatted() {
        let [key, source, value, running, state] =
            ["debug", "file", "true", "false", "later"].map(String::from);
        let row = ConfigRow { key, source, priority: 3, value, running, state };
        assert_eq!(ConfigRow::columns(), ["Key", "Source", "Priority", "Value", "Running", "State"]);
        assert_eq!(row.row(), ["debug", "file", "3", "true", "false", "later"]);
        assert_eq!(
            (ConfigRow::NAME, ConfigRow::PRIMARY, row.key()),
            ("configuration", "key", ("debug", "file"))
        );
        let table: RwTable<ConfigRow> = statedb::Db::new().table_with_display().unwrap();
        assert_eq!(table.db().tables()[0].indexes(), ["key", "name"]);
    }
}

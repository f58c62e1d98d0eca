//! Wiring.

use std::sync::Arc;

use anyhow::anyhow;
use hive::prelude::*;
use hive_command::{Call, Command, Completing, Output};
use statedb::{AnyTable, Db};

/// Provides the commands on the tables of the hive.
pub fn cell() -> Cell {
    module("statedb-script", "Commands on tables", [provide(commands)])
}

fn commands(db: Arc<Db>) -> Members<Command> {
    let lists = [
        crate::show::commands(&db),
        crate::wait::commands(&db),
        crate::edit::commands(&db),
        crate::overview::commands(&db),
    ];
    Members(lists.into_iter().flatten().collect())
}

/// Returns a command on the database; its first argument is a table, which is completed.
#[track_caller]
pub(crate) fn command<F, Fut>(db: &Arc<Db>, name: &'static str, summary: &'static str, run: F) -> Command
where
    F: Fn(Arc<Db>, Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Output>> + Send + 'static,
{
    let (own, known) = (db.clone(), db.clone());
    Command::new(name, summary, move |call| run(own.clone(), call))
        .completes(move |typed| complete(&known, typed))
}

fn complete(db: &Db, typed: &Completing) -> Vec<String> {
    let names = || db.tables().iter().map(|table| table.name().to_owned()).collect();
    match (typed.flag.as_deref(), typed.before.first()) {
        (Some("format"), _) => ["table", "json", "yaml"].map(str::to_owned).to_vec(),
        (Some("index"), Some(name)) => table(db, name)
            .map(|table| table.indexes().iter().map(|&index| index.to_owned()).collect())
            .unwrap_or_default(),
        (Some("columns"), Some(name)) => {
            table(db, name).map(|table| columns(&*table, &typed.typed)).unwrap_or_default()
        }
        (Some(_), _) => vec![],
        (None, None) => names(),
        (None, Some(_)) => vec![],
    }
}

/// Returns the completions of a comma-separated list of columns.
fn columns(table: &dyn AnyTable, typed: &str) -> Vec<String> {
    let (before, begun) = typed.rsplit_once(',').map_or(("", typed), |(before, begun)| (before, begun));
    let taken: Vec<&str> = before.split(',').collect();
    let more = table.columns().iter().filter(|name| name.starts_with(begun) && !taken.contains(name));
    more.map(|name| if before.is_empty() { (*name).to_owned() } else { format!("{before},{name}") }).collect()
}

/// Returns the table with a name, or the error that Cilium's scripts print.
pub(crate) fn table(db: &Db, name: &str) -> anyhow::Result<Arc<dyn AnyTable>> {
    db.table_by_name(name).map_err(|_| anyhow!("table \"{name}\" not found"))
}

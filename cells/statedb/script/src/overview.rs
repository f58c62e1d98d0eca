//! Commands on the whole database.

use std::sync::Arc;
use std::time::Duration;

use hive_command::{Call, Command, Flag, Output, render};
use statedb::{AnyTable, Db, Snapshot};

use crate::cell::command;

const HEADER: [&str; 7] =
    ["Name", "Object count", "Zombie objects", "Indexes", "Initializers", "Go type", "Last WriteTxn"];

pub(crate) fn commands(db: &Arc<Db>) -> Vec<Command> {
    vec![
        command(db, "db", "Describe StateDB configuration", |db, call| async move {
            call.log_text(&overview(&db));
            Ok(Output::none())
        })
        .completes(|_| vec![]),
        command(db, "db/dump", "Dump the database as JSON", |db, call| async move { dump(&db, &call) })
            .flag(Flag::text("out", "file to write to instead of stdout").short('o'))
            .completes(|_| vec![]),
    ]
}

fn overview(db: &Db) -> String {
    let snapshot = db.snapshot();
    let mut tables = db.tables();
    tables.sort_by_key(|table| table.name());
    let rows = tables.iter().map(|table| row(&**table, &snapshot));
    render::table(&std::iter::once(HEADER.map(str::to_owned).to_vec()).chain(rows).collect::<Vec<_>>())
}

fn row(table: &dyn AnyTable, snapshot: &Snapshot) -> Vec<String> {
    let stats = table.stats(snapshot);
    let mut indexes = table.indexes();
    indexes.sort_unstable();
    let write = stats.last_write.map(|write| {
        let (ago, held) = (pretty(write.at.elapsed()), pretty(write.held));
        format!("{} ({ago} ago, locked for {held})", write.handle)
    });
    vec![
        table.name().to_owned(),
        stats.objects.to_string(),
        stats.zombies.to_string(),
        indexes.join(", "),
        format!("[{}]", stats.pending_initializers.join(" ")),
        stats.type_name.to_owned(),
        write.unwrap_or_default(),
    ]
}

/// Formats a duration with one decimal, as Cilium does.
fn pretty(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds < 1e-3 => format!("{:.1}us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        _ if seconds < 60.0 => format!("{seconds:.1}s"),
        _ if seconds < 3600.0 => format!("{:.1}m", seconds / 60.0),
        _ => format!("{:.1}h", seconds / 3600.0),
    }
}

fn dump(db: &Db, call: &Call) -> anyhow::Result<Output> {
    let mut text = vec![];
    db.write_json(&db.snapshot(), &mut text)?;
    call.to_file_or_stdout("out", String::from_utf8_lossy(&text).into_owned())
}

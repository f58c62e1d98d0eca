//! Commands that wait for what a table shall be.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hive_script::{Call, Command, Flag, FlagKind, Output, render, whole_text};
use statedb::{AnyTable, Db};
use tokio::time::{Instant, timeout_at};

use crate::cell::{command, table};
use crate::compare::Expected;

/// How often it is looked whether a table is initialized.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) fn commands(db: &Arc<Db>) -> Vec<Command> {
    let timeout = || Flag::new("timeout", FlagKind::Duration, "5s", "how long to wait");
    vec![
        command(db, "db/cmp", "Compare table", compare)
            .takes("table file")
            .detail("Waits until the table is as the file shows it, columns in any order and number.")
            .flag(timeout())
            .flag(Flag::text("grep", "only rows that match this")),
        command(db, "db/empty", "Check that tables are empty", |db, call| async move { empty(&db, &call) })
            .takes("table..."),
        command(db, "db/initialized", "Wait until tables are initialized", initialized)
            .takes("table...")
            .flag(timeout()),
        command(db, "db/watch", "Watch table for changes", watch).takes("table"),
    ]
}

async fn compare(db: Arc<Db>, call: Call) -> anyhow::Result<Output> {
    let [name, file] = call.args.as_slice() else { bail!("expected table and filename") };
    let table = table(&db, name)?;
    let text = call.state.read(file).with_context(|| format!("ReadFile({file})"))?;
    let text = call.state.expand(&String::from_utf8_lossy(&text));
    let expected = Expected::parse(&text, &*table)?;
    let only = match call.flags.text("grep") {
        "" => None,
        expression => Some(whole_text(expression).context("bad grep")?),
    };
    let deadline = Instant::now() + call.flags.duration("timeout");
    loop {
        let snapshot = db.snapshot();
        let Some(difference) = expected.difference(&table.all(&snapshot), only.as_ref()) else {
            return Ok(Output::none());
        };
        if timeout_at(deadline, table.watch(&snapshot).changed()).await.is_err() {
            bail!("table mismatch:\n{difference}");
        }
    }
}

fn empty(db: &Db, call: &Call) -> anyhow::Result<Output> {
    let snapshot = db.snapshot();
    for name in &call.args {
        let found = table(db, name)?.stats(&snapshot).objects;
        ensure!(found == 0, "table \"{name}\" not empty, found {found} obects");
    }
    Ok(Output::none())
}

async fn initialized(db: Arc<Db>, call: Call) -> anyhow::Result<Output> {
    let tables: Vec<Arc<dyn AnyTable>> = if call.args.is_empty() {
        db.tables()
    } else {
        call.args.iter().map(|name| table(&db, name)).collect::<anyhow::Result<_>>()?
    };
    let deadline = Instant::now() + call.flags.duration("timeout");
    for table in tables {
        loop {
            let pending = table.stats(&db.snapshot()).pending_initializers;
            if pending.is_empty() {
                break;
            }
            let names = pending.join(", ");
            ensure!(Instant::now() < deadline, "table \"{}\" is not initialized: {names}", table.name());
            tokio::time::sleep(LOOK).await;
        }
        call.log(format_args!("{} initialized", table.name()));
    }
    Ok(Output::none())
}

/// Streams changes to the log until nobody wants them any more; the reader sets the pace.
async fn watch(db: Arc<Db>, call: Call) -> anyhow::Result<Output> {
    let name = call.args.first().context("expected table name")?;
    let table = table(&db, name)?;
    let header = || table.columns().iter().map(|&column| column.to_owned()).collect::<Vec<_>>();
    let mut changes = table.clone().changes(&db);
    loop {
        let (batch, watch) = changes.take(100);
        if !batch.is_empty() {
            let mark = |deleted| if deleted { " (deleted)" } else { "" };
            let rows = batch.iter().map(|change| {
                let mut row = change.object.row();
                if let Some(last) = row.last_mut() {
                    last.push_str(mark(change.deleted));
                }
                row
            });
            call.state
                .log()
                .write(&render::table(&std::iter::once(header()).chain(rows).collect::<Vec<_>>()));
        }
        call.state.log().drained().await;
        watch.changed().await;
    }
}

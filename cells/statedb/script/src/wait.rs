//! Commands that wait for a state of a table, or follow it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hive_command::{Call, Command, Flag, FlagKind, Output, whole_text};
use statedb::{AnyChange, AnyTable, Db};
use tokio::time::{Instant, sleep, timeout_at};

use crate::cell::{command, table};
use crate::compare::Expected;

/// The minimum interval between two batches of changes; changes of a row in between are coalesced.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of changes in a batch.
const MAX_BATCH: usize = 100;

pub(crate) fn commands(db: &Arc<Db>) -> Vec<Command> {
    let timeout = || Flag::new("timeout", FlagKind::Duration, "5s", "how long to wait");
    vec![
        command(db, "db/cmp", "Compare table", compare)
            .takes("table file")
            .detail("Waits until the table is as the file shows it, columns in any order and number.")
            .flag(timeout())
            .flag(Flag::text("grep", "only rows that match this")),
        command(db, "db/empty", "Check that tables are empty", |db, call| async move { empty(&db, &call) })
            .takes("table"),
        command(db, "db/initialized", "Wait until tables are initialized", initialized)
            .takes("table...")
            .flag(timeout()),
        command(db, "db/watch", "Watch table for changes", watch).takes("table"),
    ]
}

async fn compare(db: Arc<Db>, call: Call) -> anyhow::Result<Output> {
    let [name, file] = call.args.as_slice() else { bail!("expected table and filename") };
    let table = table(&db, name)?;
    let text = call.read(file).with_context(|| format!("ReadFile({file})"))?;
    let text = call.expand(&String::from_utf8_lossy(&text));
    let expected = Expected::parse(file, &text, &*table)?;
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
            let (pending, done) = table.initialized_watch(&db.snapshot());
            if pending.is_empty() {
                break;
            }
            call.log(format_args!("Waiting for {} to initialize ([{}])...", table.name(), pending.join(" ")));
            ensure!(timeout_at(deadline, done.changed()).await.is_ok(), "timed out");
        }
        call.log(format_args!("{} initialized", table.name()));
    }
    Ok(Output::none())
}

/// Streams changes to the log until its reader disconnects. Waits until the reader has drained the log (backpressure).
async fn watch(db: Arc<Db>, call: Call) -> anyhow::Result<Output> {
    let name = call.args.first().context("expected table name")?;
    let table = table(&db, name)?;
    let mut page = Page::default();
    let mut changes = table.clone().changes(&db);
    let header = table.columns().iter().map(|&column| column.to_owned()).collect();
    let mut lines = vec![(header, false)];
    loop {
        let (batch, watch) = changes.take(MAX_BATCH);
        lines.extend(batch.iter().map(|AnyChange { object, deleted, .. }| (object.row(), *deleted)));
        if !lines.is_empty() {
            call.log_text(&page.laid_out(&lines));
            lines.clear();
            call.drained().await;
            sleep(BATCH_INTERVAL).await;
        }
        watch.changed().await;
    }
}

/// The column widths of a streamed table: they only grow, since earlier lines are already printed.
#[derive(Default)]
struct Page {
    widths: Vec<usize>,
}

impl Page {
    /// Returns lines of padded cells without trailing blanks; deleted rows are red and struck through.
    fn laid_out(&mut self, lines: &[(Vec<String>, bool)]) -> String {
        for (cells, _) in lines {
            self.widths.resize(self.widths.len().max(cells.len()), 5);
            for (width, cell) in self.widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count() + 3);
            }
        }
        let mut text = String::new();
        for (cells, deleted) in lines {
            let padded = |(at, cell): (usize, &String)| match at + 1 == cells.len() {
                true => cell.clone(),
                false => format!("{cell:width$}", width = self.widths[at]),
            };
            let line: String = cells.iter().enumerate().map(padded).collect();
            text += &match deleted {
                true => format!("\x1b[9m\x1b[31m{line} (deleted)\x1b[0m\n"),
                false => format!("{}\n", line.trim_end_matches(' ')),
            };
        }
        text
    }
}

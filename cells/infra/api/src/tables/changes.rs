//! `GET /statedb/changes/{table}`: all rows, then every change, until the client disconnects or the agent stops.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use statedb::{AnyChange, AnyChanges};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::{Tables, no_table};
use crate::response::Response;

/// Maximum number of changes in one batch.
const BATCH: usize = 64;

/// Maximum number of batches queued for a client. Further changes stay in the table, where later changes of a row
/// replace earlier ones, so that a slow client costs no memory here.
const MAX_QUEUED: usize = 2;

/// Time after which a client that reads nothing is disconnected: the table retains deleted rows for it.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of keep-alive lines.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Answers with a line for each change.
pub(super) fn answer(tables: &Tables, name: &str) -> Response {
    let table = tables
        .db
        .as_deref()
        .and_then(|db| Some(db.table_by_name(name).ok()?.changes(db).named("GET /statedb/changes")));
    let Some(changes) = table else {
        return no_table(name);
    };
    let (lines, taken) = mpsc::channel(MAX_QUEUED);
    tables.tasks.spawn(feed(changes, lines, tables.stop.clone()));
    let taken = stream::unfold(taken, async |mut taken| Some((taken.recv().await?, taken)));
    Response::stream(200, "text/plain; charset=utf-8", taken)
}

async fn feed(mut changes: AnyChanges, lines: mpsc::Sender<Bytes>, stop: CancellationToken) {
    let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    let mut text = String::new();
    loop {
        let (portion, more) = changes.take(BATCH);
        text.extend(portion.iter().map(line));
        drop(portion);
        if !text.is_empty() {
            let sent = timeout(CLIENT_TIMEOUT, lines.send(Bytes::from(std::mem::take(&mut text))));
            match stop.run_until_cancelled(sent).await {
                Some(Ok(Ok(()))) => {}
                Some(Err(_)) => {
                    tracing::info!(
                        seconds = CLIENT_TIMEOUT.as_secs(),
                        "A reader of table changes took none, it is left"
                    );
                    return;
                }
                Some(Ok(Err(_))) | None => return,
            }
        }
        tokio::select! {
            () = more.changed() => {}
            _ = keep_alive.tick() => text.push_str("{\"obj\":null,\"rev\":0}\n"),
            () = lines.closed() => return,
            () = stop.cancelled() => return,
        }
    }
}

fn line(change: &AnyChange) -> String {
    let deleted = if change.deleted { ",\"deleted\":true" } else { "" };
    format!("{{\"obj\":{},\"rev\":{}{deleted}}}\n", change.object.json_text(), change.revision)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use statedb::{Db, RwTable, TableDisplay, TableSpec};
    use tokio_util::task::TaskTracker;

    use super::*;

    #[derive(Clone, Debug, serde::Serialize)]
    struct Row(u32);

    impl TableSpec for Row {
        const NAME: &'static str = "rows";
        type Key<'a> = u32;

        fn key(&self) -> u32 {
            self.0
        }
    }

    impl TableDisplay for Row {
        fn columns() -> &'static [&'static str] {
            &["Key"]
        }

        fn row(&self) -> Vec<String> {
            vec![self.0.to_string()]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_left_and_its_deletes_let_go() {
        let db = Db::new();
        let table: RwTable<Row> = db.table_with_display().unwrap();
        let tables =
            Tables { db: Some(db.clone().into()), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        table.transact(|w| (0..1000).for_each(|key| drop(w.insert(Row(key)))));
        let answer = answer(&tables, "rows");
        tokio::time::sleep(CLIENT_TIMEOUT / 2).await;
        table.transact(|w| w.delete_all());
        let zombies = || db.tables()[0].stats(&db.snapshot()).zombies;
        assert_eq!(zombies(), 1000);
        assert_eq!(tables.tasks.len(), 1);
        tokio::time::sleep(CLIENT_TIMEOUT).await;
        assert_eq!((tables.tasks.len(), zombies()), (0, 0));
        // The queued batches can still be read, then the answer ends.
        let lines = answer.body().await;
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), MAX_QUEUED * BATCH);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_table_sends_keep_alives() {
        let db = Db::new();
        let _table: RwTable<Row> = db.table_with_display().unwrap();
        let tables =
            Tables { db: Some(db.into()), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        let (begin, answer) = (Instant::now(), answer(&tables, "rows"));
        let mut body = http_body_util::BodyExt::into_data_stream(answer.0.into_body());
        for round in 1..=3 {
            assert_eq!(body.next().await.unwrap().unwrap(), "{\"obj\":null,\"rev\":0}\n");
            assert_eq!(begin.elapsed().as_secs(), 30 * round);
        }
        drop(body);
        tables.tasks.close();
        tables.tasks.wait().await;
    }
}

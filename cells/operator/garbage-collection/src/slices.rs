//! The deletion of all objects of a kind that is not in use.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_types::{Key, SmolStr};
use statedb::Table;
use tokio::time::sleep;

use crate::object::Object;
use crate::requests::{Requests, Run};

/// The interval of attempts that have failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Deletes all objects of a kind once: those that an earlier configuration has left.
pub(crate) async fn delete_all<T: Object>(
    table: Arc<Table<T>>,
    requests: Requests,
    cx: JobCx,
) -> anyhow::Result<()> {
    let kind = T::KIND.plural();
    cx.health.ok(format_args!("Waits for the list of {kind}"));
    let deletion = async {
        table.wait_initialized().await;
        loop {
            let mut run = Run::default();
            for (key, uid) in objects(&table) {
                if !run.count(requests.delete(T::KIND, &key, &uid, None).await) {
                    break;
                }
            }
            run.report(&cx.health, &format!("{} {kind} were deleted, as they are not in use", run.done));
            if run.failures.is_empty() && run.changed == 0 {
                return;
            }
            sleep(RETRY_INTERVAL).await;
        }
    };
    cx.token().run_until_cancelled(deletion).await;
    Ok(())
}

fn objects<T: Object>(table: &Table<T>) -> Vec<(Key, SmolStr)> {
    let snapshot = table.snapshot();
    table.all(&snapshot).map(|row| row.key_and_uid()).collect()
}

//! The names and DNS rules of endpoints in their records, for the next run: ours, or that of Cilium's agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use endpoints::{EndpointId, NameRecords, RecordedNames};
use fqdn::History;
use futures::future::OptionFuture;
use hive::JobCx;
use serde_json::Value;

use crate::directory::{Shared, Tables};

/// The shortest interval between two writes of a record.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// A record is written for at most this part of the time: those of endpoints with many names take long.
const MAX_SHARE: u32 = 20;
/// The shortest interval between searches for changes: the rules of all endpoints are made of the whole ipcache.
const SEARCH_INTERVAL: Duration = Duration::from_millis(50);
/// The pause after a record could not be written.
const RETRY: Duration = Duration::from_secs(5);

/// Returns the names of an endpoint's record. Entries that cannot be read are logged and left out.
pub(crate) fn history(endpoint: u16, names: &RecordedNames) -> History {
    let (history, errors) = History::from_record(&names.history, &names.zombies);
    for error in errors {
        tracing::warn!(endpointID = endpoint, %error, "Ignoring a DNS name of the previous run");
    }
    history
}

/// Returns the fields of an endpoint's record.
pub(crate) fn names(history: &History, rules: Value) -> RecordedNames {
    let (history, zombies) = history.to_record();
    RecordedNames { history, zombies, rules }
}

/// The job that writes the records of endpoints whose names or rules have changed.
pub(crate) struct WriteRecords {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Tables,
    pub(crate) records: NameRecords,
}

impl WriteRecords {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        // Endpoints with changes, and when their records may be written.
        let mut changed: BTreeMap<u16, Instant> = BTreeMap::new();
        let mut written: BTreeMap<u16, Instant> = BTreeMap::new();
        loop {
            let snapshot = self.tables.redirects.snapshot();
            let (_, redirects_watch) = self.tables.redirects.all_watch(&snapshot);
            drop(snapshot);
            let now = Instant::now();
            written.retain(|_, next| *next > now);
            let rules = self.tables.recorded_rules();
            let unrecorded = self.shared.book.lock().take_unrecorded(rules);
            for endpoint in unrecorded {
                let due = written.get(&endpoint).copied().unwrap_or(now);
                changed.entry(endpoint).or_insert(due);
            }
            // The last round writes everything.
            let is_last = cx.token().is_cancelled();
            let due: Vec<u16> =
                changed.iter().filter(|(_, due)| is_last || **due <= now).map(|(id, _)| *id).collect();
            for endpoint in due {
                changed.remove(&endpoint);
                let (records, begin) = (self.records.clone(), Instant::now());
                let pause = match hive::blocking(move || records.store(EndpointId(endpoint))).await {
                    Ok(()) => {
                        cx.health.ok("Written");
                        MIN_INTERVAL.max(begin.elapsed() * MAX_SHARE)
                    }
                    Err(error) => {
                        cx.health.degraded("DNS names are not in the records of endpoints", &error);
                        changed.insert(endpoint, Instant::now() + RETRY);
                        RETRY
                    }
                };
                written.insert(endpoint, Instant::now() + pause);
            }
            if is_last {
                return Ok(());
            }
            let next = changed.values().min().map(|due| tokio::time::sleep_until((*due).into()));
            tokio::select! {
                () = cx.cancelled() => {}
                () = self.shared.changed.notified() => {}
                () = redirects_watch.changed() => {}
                Some(()) = OptionFuture::from(next) => {}
            }
            let pause = tokio::time::sleep_until((now + SEARCH_INTERVAL).into());
            let _ = cx.token().run_until_cancelled(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use fqdn::{Limits, Lookup};
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_rules_have_the_form_of_cilium() {
        let mut history = History::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        history.insert(Lookup::new("a.io", vec!["192.0.2.1".parse().unwrap()], 60, now), &Limits::default());
        let record = names(&history, json!({"17891381": []}));
        assert_eq!(super::history(7, &record), history);
        assert_eq!((&record.history[0]["fqdn"], &record.rules), (&json!("a.io."), &json!({"17891381": []})));
    }
}

//! The job that executes mutations.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hive::{Health, JobCx};
use k8s_types::Api;
use statedb::{Changes, RwTable};
use tokio::time::{Instant, sleep_until};

use crate::attempt::{Attempt, Requests};
use crate::metrics::Numbers;
use crate::mutation::NotWritten;
use crate::refusals::{Refusals, with_remedy};
use crate::schedule::{Class, Schedule, Turn, Verdict};
use crate::write::{QueuedMutation, Write, WriteState};
use crate::writer::Writer;

/// The time for pending mutations at the stop: Cilium's pods have a grace period of one second for everything.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Executes the mutations of the table.
pub(crate) struct Runner {
    api: Arc<dyn Api>,
    table: RwTable<Write>,
    changes: Changes<Write>,
    writer: Arc<Writer>,
    schedule: Schedule,
    numbers: Numbers,
    refusals: Refusals,
    /// Whether the server was last reported as unreachable.
    is_unreachable: bool,
}

/// A finished attempt.
struct Finished {
    turn: Turn,
    mutation: Arc<QueuedMutation>,
    began: Instant,
    attempt: Attempt,
    blind: bool,
}

type Flying = FuturesUnordered<BoxFuture<'static, Finished>>;

impl Runner {
    pub(crate) fn new(
        api: Arc<dyn Api>,
        table: RwTable<Write>,
        writer: Arc<Writer>,
        numbers: Numbers,
        health: Health,
    ) -> Runner {
        let changes = table.changes().named("k8s-writer");
        let refusals = Refusals::new(table.reader(), health);
        Runner {
            api,
            table,
            changes,
            writer,
            schedule: Schedule::default(),
            numbers,
            refusals,
            is_unreachable: false,
        }
    }

    /// Runs until the job is cancelled, then flushes due mutations.
    pub(crate) async fn run(mut self, cx: JobCx) {
        cx.health.ok("Running");
        let mut flying = Flying::new();
        let mut end: Option<Instant> = None;
        loop {
            let snapshot = self.table.snapshot();
            let (changes, changed) = self.changes.read(&snapshot, usize::MAX);
            let now = Instant::now();
            let refused = |change: &statedb::Change<Write>| change.object.state == WriteState::Refused;
            if !changes.is_empty() && (self.refusals.any() || changes.iter().any(refused)) {
                self.refusals.report(&snapshot);
            }
            for change in changes {
                let QueuedMutation { target, number, mutation, .. } = &*change.object.mutation;
                match change.deleted {
                    true => self.schedule.remove(target),
                    false => self.schedule.put(now, target, *number, mutation.limit),
                }
                if !change.deleted && change.object.state == WriteState::Waiting {
                    self.numbers.added();
                }
            }
            let turns: Vec<Turn> = std::iter::from_fn(|| self.schedule.next(now)).collect();
            if !turns.is_empty() {
                self.begin(turns, &mut flying);
            }
            let wake = self.schedule.wake_at();
            if end.is_some_and(|end| flying.is_empty() && wake.is_none_or(|wake| wake > end)) {
                break;
            }
            drop(snapshot);
            tokio::select! {
                biased;
                // First in the biased order, so that finished attempts cannot delay the stop.
                () = sleep_until(end.unwrap_or(now)), if end.is_some() => break,
                Some(finished) = flying.next(), if !flying.is_empty() => self.finish(finished, &cx.health),
                () = changed.changed() => {}
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
                () = cx.cancelled(), if end.is_none() => end = Some(Instant::now() + FLUSH_TIMEOUT),
            }
        }
    }

    /// Starts the attempts of mutations that are still the newest.
    fn begin(&mut self, turns: Vec<Turn>, flying: &mut Flying) {
        let now = Instant::now();
        // Checked and marked in one transaction: a newer mutation either prevents the attempt, or finds the row in
        // state
        // `Writing` and leaves the end of the ticket to the attempt.
        self.table.transact(|w| {
            for turn in turns {
                let object = turn.target.to_string();
                let row = w.get(Write::by_object(&object)).filter(|row| row.mutation.number == turn.number);
                let Some(mut row) = row.map(|row| (**row).clone()) else {
                    self.schedule.left_out(&turn);
                    continue;
                };
                if row.tried.is_none() {
                    self.numbers.begun((now - row.since).as_secs_f64());
                }
                (row.state, row.tried) = (WriteState::Writing, Some(now));
                row.attempts += 1;
                flying.push(Box::pin(attempt(
                    self.api.clone(),
                    self.numbers.clone(),
                    turn,
                    row.mutation.clone(),
                )));
                w.insert(row);
            }
        });
    }

    fn finish(&mut self, finished: Finished, health: &Health) {
        let Finished { turn, mutation, began, attempt, blind } = finished;
        let now = Instant::now();
        let class = match &attempt {
            Attempt::Failed { error, .. } => Some(Class::of(error)),
            Attempt::Done(_) | Attempt::GaveUp(_) => None,
        };
        let verdict = self.schedule.finished(now, &turn, class, blind);
        self.numbers.ended((now - began).as_secs_f64(), verdict == Verdict::Again);
        let object = turn.target.to_string();
        self.table.transact(|w| {
            let Some(row) = w.get(Write::by_object(&object)).filter(|row| row.mutation.number == turn.number)
            else {
                return;
            };
            if verdict != Verdict::Again {
                w.delete(Write::by_object(&object));
            } else if let Attempt::Failed { verb, error } = &attempt {
                let mut row = (**row).clone();
                let refused = class == Some(Class::Refused);
                row.state = if refused { WriteState::Refused } else { WriteState::Retrying };
                (row.verb, row.error) = (*verb, with_remedy(turn.target.kind, *verb, error));
                w.insert(row);
            }
        });
        self.report_gate(&attempt, health);
        // After the transaction: a caller that waits for the ticket finds the row removed.
        match (attempt, verdict) {
            (Attempt::Done(written), _) => mutation.finish(Ok(written)),
            (Attempt::GaveUp(reason), _) => {
                mutation.finish(Err(NotWritten::GaveUp { target: object, reason }))
            }
            (Attempt::Failed { .. }, Verdict::Replaced) => mutation.superseded(),
            (Attempt::Failed { verb, error }, Verdict::Exhausted) => {
                let tries = mutation.mutation.limit.map_or(0, |limit| limit.tries);
                mutation.finish(Err(NotWritten::Failed { target: object, verb, tries, error }));
            }
            (Attempt::Failed { .. }, _) => {}
        }
    }

    fn report_gate(&mut self, attempt: &Attempt, health: &Health) {
        let is_unreachable = self.schedule.is_closed();
        match (is_unreachable, std::mem::replace(&mut self.is_unreachable, is_unreachable), attempt) {
            (true, false, Attempt::Failed { error, .. }) => {
                health.degraded("The API server takes no requests, writes wait for it", error);
            }
            (false, true, _) => health.ok("Running"),
            _ => {}
        }
    }
}

/// Ends all tickets, even if the job panics, so that no caller waits forever.
impl Drop for Runner {
    fn drop(&mut self) {
        let left = self.writer.close();
        if let Some(object) = left.first() {
            tracing::warn!(count = left.len(), object, "Not all is written to the cluster at the stop");
        }
    }
}

async fn attempt(api: Arc<dyn Api>, numbers: Numbers, turn: Turn, mutation: Arc<QueuedMutation>) -> Finished {
    let began = Instant::now();
    let requests = Requests { api: &*api, target: &turn.target, numbers: &numbers };
    let (attempt, blind) = requests.attempt(&mutation.mutation, turn.blind).await;
    Finished { began, attempt, blind, mutation, turn }
}

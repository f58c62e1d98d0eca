//! Failures of a watch, and recovery.

use std::time::Duration;

use k8s_types::SourceError;
use tokio::time::Instant;

use super::Follow;
use crate::definitions::{Defined, is_custom};
use crate::is_reported;
use crate::request_error::{ErrorKind, RequestError};
use crate::target::Query;
use crate::watch_timeouts::spread;

/// The number of consecutive answers 404 to requests for a defined kind after which its version counts as not served: the
/// kind is an empty list then, since cells wait for all lists at a start.
const UNSERVED_FAILURES: u64 = 4;

/// The number of consecutive cuts before they are reported.
const MAX_CUTS: u32 = 5;

/// Versions that go back again within this time count as one fault.
const REWIND_WINDOW: Duration = Duration::from_secs(600);

impl Follow {
    /// Records progress: valid data, or a watch that has been open for a while. Resets the backoff. Returns true if
    /// there was a failure before.
    pub(super) fn progress(&mut self) -> bool {
        if self.backoff.attempts() > 0 {
            self.backoff.reset();
        }
        self.cuts = 0;
        self.ended_early = false;
        let was = std::mem::take(&mut self.failures) > 0;
        if self.listed {
            if was {
                self.health.ok(format!("{} objects, changes are followed", self.state.objects()));
            }
            if std::mem::take(&mut self.reported) {
                tracing::info!(watch = self.target.name, "Objects are followed again");
            }
        }
        was
    }

    /// Whether the kind may be listed as empty: the cluster may be without it, and no list has said otherwise. Objects
    /// that were listed stay while the server denies to know them: without its policies a node would be open.
    fn may_be_empty(&self) -> bool {
        let is_optional = |kind| is_custom(kind) && !self.definitions.is_required(kind);
        self.target.kind.is_some_and(is_optional) && !self.state.was_listed()
    }

    /// Decides how to continue after a failure; returns the error if it has to be reported.
    pub(super) fn failed(&mut self, error: RequestError) -> Option<SourceError> {
        let reading = self.reading.take();
        self.state.restart();
        let first = self.backoff.attempts() == 0;
        // A cut of a listed watch is not reported: it resumes from its version.
        let cut = matches!(error.kind, ErrorKind::Cut | ErrorKind::Stalled | ErrorKind::Gone);
        self.cuts += u32::from(cut);
        self.ends_with_outage = (cut || error.is_of_server()) && error.after.is_none();
        let usual = self.listed && cut && self.cuts < MAX_CUTS;
        match reading.map(|reading| (reading.query, reading.items)) {
            Some((Query::Stream { .. }, _)) if !self.listed => self.broken_streams += 1,
            // The objects of this page will be received again.
            Some((Query::Page { .. } | Query::Whole, items)) => self.state.object(-items),
            _ => {}
        }
        // Expected until the definition is established: counts neither for the backoff nor as a version that is not served.
        if error.kind == ErrorKind::NotFound
            && let Some(delay) = self.establishing()
        {
            self.delay = delay;
            self.health.ok(format!("Waits for the server: {error}"));
            return None;
        }
        self.failures += u64::from(!usual);
        let backoff = self.backoff.next_wait().unwrap_or(self.timeouts.retry.1);
        self.delay = match error.kind {
            ErrorKind::Gone | ErrorKind::TooNew => {
                self.whole = self.continue_token.take().is_some();
                self.listed = false;
                self.version.clear();
                if first { Duration::ZERO } else { backoff }
            }
            ErrorKind::Rewound => {
                self.listed = false;
                self.version.clear();
                let (count, last) = self.rewinds;
                let again = last.is_some_and(|last| last.elapsed() < REWIND_WINDOW);
                self.rewinds = (if again { count + 1 } else { 1 }, Some(Instant::now()));
                if again { spread(self.timeouts.retry.1) } else { Duration::ZERO }
            }
            // A server that sends invalid data may have sent a wrong version, too.
            ErrorKind::Invalid | ErrorKind::Nonsense => {
                self.continue_token = None;
                self.listed = false;
                self.version.clear();
                backoff
            }
            ErrorKind::Forbidden => {
                self.state.excuse(true);
                spread(self.timeouts.refused)
            }
            ErrorKind::NotFound
                if self.target.kind.is_some_and(|kind| self.definitions.of(kind) == Defined::Unknown) =>
            {
                self.state.excuse(true);
                spread(self.timeouts.refused)
            }
            ErrorKind::NotFound if self.listed_unserved => {
                self.state.excuse(true);
                spread(self.timeouts.refused)
            }
            ErrorKind::NotFound if self.failures >= UNSERVED_FAILURES && self.may_be_empty() => {
                self.is_unserved = true;
                Duration::ZERO
            }
            _ => error.after.map_or(backoff, |after| spread(after.min(self.timeouts.refused)).max(after)),
        };
        if usual {
            tracing::debug!(watch = self.target.name, reason = %error, "Watch begins again");
            return None;
        }
        // A kind that was just defined may not be served yet.
        let starts = matches!(error.kind, ErrorKind::Busy | ErrorKind::NotFound) && self.failures < 10;
        if starts {
            self.health.ok(format!("Waits for the server: {error}"));
            return None;
        }
        self.state.failed(error.kind);
        let reported =
            is_reported(if error.kind == ErrorKind::Rewound { self.rewinds.0 } else { self.failures });
        // Errors of the server as a whole are reported once, by the link.
        if error.is_of_server() || (cut && self.link.status().is_err()) {
            self.health.ok("Waits for the API server");
            return reported.then_some(SourceError(error.text));
        }
        self.health.degraded(format!("No changes of {} are seen", self.target.name), &error);
        if reported {
            self.reported = true;
            tracing::warn!(watch = self.target.name, failures = self.failures, error = %error, "Cannot follow objects");
        }
        reported.then_some(SourceError(error.text))
    }
}

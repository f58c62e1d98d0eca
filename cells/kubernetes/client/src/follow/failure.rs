//! What a watch does when something goes wrong, and when it goes right again.

use std::time::Duration;

use k8s_types::SourceError;
use tokio::time::Instant;

use super::Follow;
use crate::definitions::Defined;
use crate::is_told;
use crate::request_error::{ErrorKind, RequestError};
use crate::target::Ask;
use crate::watch_timeouts::spread;

/// Watches that may be cut in a row before that is told.
const MAX_CUTS: u32 = 5;

/// Versions that go back again within this time are of one trouble.
const REWINDS: Duration = Duration::from_secs(600);

impl Follow {
    /// Something has come that makes sense, or a watch has stood for a while: the next failure is the first. True if
    /// there was trouble before.
    pub(super) fn progress(&mut self) -> bool {
        if self.backoff.attempts() > 0 {
            self.backoff.reset();
        }
        self.cuts = 0;
        let was = std::mem::take(&mut self.failures) > 0;
        if self.listed {
            if was {
                self.health.ok(format!("{} objects, changes are followed", self.state.objects()));
            }
            if std::mem::take(&mut self.told) {
                tracing::info!(watch = self.target.name, "Objects are followed again");
            }
        }
        was
    }

    /// Decides what comes next; gives what the reader is told.
    pub(super) fn trouble(&mut self, trouble: RequestError) -> Option<SourceError> {
        let reading = self.reading.take();
        self.state.restart();
        let first = self.backoff.attempts() == 0;
        // A watch that stood and was cut is nothing to tell of: it goes on where it was.
        let cut = matches!(trouble.what, ErrorKind::Cut | ErrorKind::Stalled | ErrorKind::Gone);
        self.cuts += u32::from(cut);
        let usual = self.listed && cut && self.cuts < MAX_CUTS;
        match reading.map(|reading| (reading.ask, reading.items)) {
            Some((Ask::Stream { .. }, _)) if !self.listed => self.broken_streams += 1,
            // They come again.
            Some((Ask::Page { .. } | Ask::Whole, items)) => self.state.object(-items),
            _ => {}
        }
        self.failures += u64::from(!usual);
        let backoff = self.backoff.next_wait().unwrap_or(self.pace.retry.1);
        self.delay = match trouble.what {
            ErrorKind::Gone | ErrorKind::TooNew => {
                self.whole = self.proceed.take().is_some();
                self.listed = false;
                self.version.clear();
                if first { Duration::ZERO } else { backoff }
            }
            ErrorKind::Rewound => {
                self.listed = false;
                self.version.clear();
                let (count, last) = self.rewinds;
                let again = last.is_some_and(|last| last.elapsed() < REWINDS);
                self.rewinds = (if again { count + 1 } else { 1 }, Some(Instant::now()));
                if again { spread(self.pace.retry.1) } else { Duration::ZERO }
            }
            // Who talks nonsense is not believed what he has said before.
            ErrorKind::Invalid | ErrorKind::Nonsense => {
                self.proceed = None;
                self.listed = false;
                self.version.clear();
                backoff
            }
            ErrorKind::Forbidden => {
                self.state.excuse(true);
                spread(self.pace.refused)
            }
            ErrorKind::NotFound
                if self.target.kind.is_some_and(|kind| self.definitions.of(kind) == Defined::Unknown) =>
            {
                self.state.excuse(true);
                spread(self.pace.refused)
            }
            _ => trouble.after.map_or(backoff, |after| spread(after.min(self.pace.refused)).max(after)),
        };
        if usual {
            tracing::debug!(watch = self.target.name, reason = %trouble, "Watch begins again");
            return None;
        }
        // A kind that was defined a moment ago is not served yet.
        let starts = matches!(trouble.what, ErrorKind::Busy | ErrorKind::NotFound) && self.failures < 10;
        if starts {
            self.health.ok(format!("Waits for the server: {trouble}"));
            return None;
        }
        self.state.failed(trouble.what);
        let told = is_told(if trouble.what == ErrorKind::Rewound { self.rewinds.0 } else { self.failures });
        // What the server has as a whole is reported once, by the link.
        if trouble.is_of_server() || (cut && self.link.status().is_err()) {
            self.health.ok("Waits for the API server");
            return told.then_some(SourceError(trouble.text));
        }
        self.health.degraded(format!("No changes of {} are seen", self.target.name), &trouble);
        if told {
            self.told = true;
            tracing::warn!(watch = self.target.name, failures = self.failures, error = %trouble, "Cannot follow objects");
        }
        told.then_some(SourceError(trouble.text))
    }
}

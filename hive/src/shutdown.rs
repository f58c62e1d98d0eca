//! Shutdown requests from inside a hive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::event::{Event, Events};

/// The reason of a shutdown.
#[derive(Debug)]
pub(crate) enum Reason {
    /// A cell called [`Shutdowner::shutdown`].
    Requested,
    /// A cell called [`Shutdowner::shutdown_with`].
    Failed(anyhow::Error, Option<u8>),
    /// A signal of this name arrived.
    Signal(&'static str),
}

/// A handle that stops the hive: the first request takes effect, later ones are ignored. May be used in constructors,
/// hooks and jobs; during the start it cancels the start and rolls it back.
#[derive(Clone)]
pub struct Shutdowner {
    shared: Arc<Shared>,
}

struct Shared {
    /// Mirrors the token without its lock, because each constructor and hook reads it.
    is_asked: AtomicBool,
    token: CancellationToken,
    reason: Mutex<Option<Reason>>,
    events: Arc<Events>,
}

impl Shutdowner {
    pub(crate) fn new(events: Arc<Events>) -> Self {
        let (token, reason) = (CancellationToken::new(), Mutex::new(None));
        Shutdowner { shared: Arc::new(Shared { is_asked: AtomicBool::new(false), token, reason, events }) }
    }

    /// Requests an orderly stop.
    pub fn shutdown(&self) {
        self.request(Reason::Requested);
    }

    /// Requests a stop because of an error, which [`Hive::run`](crate::Hive::run) then reports.
    pub fn shutdown_with(&self, error: impl Into<anyhow::Error>) {
        self.request(Reason::Failed(error.into(), None));
    }

    /// Requests a stop because of an error, and sets the exit code of the program; see
    /// [`shutdown_with`](Shutdowner::shutdown_with).
    pub fn shutdown_with_code(&self, error: impl Into<anyhow::Error>, code: u8) {
        self.request(Reason::Failed(error.into(), Some(code)));
    }

    pub(crate) fn request(&self, reason: Reason) {
        let mut first = self.shared.reason.lock();
        if first.is_some() || self.is_shutting_down() {
            return;
        }
        let event = match &reason {
            Reason::Requested => Event::ShutdownRequested { error: None },
            Reason::Failed(error, _) => {
                Event::ShutdownRequested { error: Some(crate::error::with_causes(error)) }
            }
            Reason::Signal(name) => Event::Signal { name },
        };
        *first = Some(reason);
        self.shared.is_asked.store(true, Ordering::SeqCst);
        // Released before waiters and observers run, because they may read the reason or request a shutdown.
        drop(first);
        self.shared.token.cancel();
        self.shared.events.emit(event);
    }

    /// Whether a stop has been requested.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.is_asked.load(Ordering::SeqCst)
    }

    /// Waits until a stop is requested.
    pub async fn requested(&self) {
        self.shared.token.cancelled().await;
    }

    pub(crate) fn take_reason(&self) -> Option<Reason> {
        self.shared.reason.lock().take()
    }
}

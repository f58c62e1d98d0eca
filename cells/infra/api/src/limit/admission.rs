//! Admission by queue depth and deadline: the default for kinds without `--api-rate-limit`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::limiter::{Mean, Values};
use super::{Kind, TurnedAway};

/// Maximum number of requests of a kind in flight.
pub(super) const AT_ONCE: usize = 64;

/// Maximum number of requests of a kind that wait for admission.
pub(super) const WAITING: usize = 1024;

/// Admits a bounded number of requests in order of arrival; a bounded number of others wait up to a deadline.
pub(crate) struct Admission {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    deadline: Duration,
    means: Mutex<(Mean, Mean)>,
}

impl Admission {
    pub(crate) fn new(kind: Kind) -> Self {
        // Cilium's maximum wait; where it has none, the timeout of the server.
        let deadline = match kind {
            Kind::Create | Kind::Delete | Kind::List => Duration::from_secs(60),
            Kind::Patch => Duration::from_secs(15),
            Kind::Get => Duration::from_secs(10),
        };
        Self {
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: AtomicUsize::new(0),
            deadline,
            means: Mutex::new((Mean::over(10), Mean::over(10))),
        }
    }

    pub(crate) async fn admit(&self) -> Result<OwnedSemaphorePermit, TurnedAway> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Ok(slot);
        }
        let queued = Queued::join(&self.waiting)?;
        let turned_away = TurnedAway::Parallel { parallel: AT_ONCE };
        let slot = timeout(self.deadline, self.slots.clone().acquire_owned()).await;
        drop(queued);
        slot.map_err(|_| turned_away.clone())?.map_err(|_| turned_away)
    }

    pub(crate) fn finished(&self, took: Duration, waited: Duration) -> Values {
        let mut means = self.means.lock();
        means.0.add(took);
        means.1.add(waited);
        // The request that has just finished still holds its slot.
        let in_flight = (AT_ONCE - self.slots.available_permits()).saturating_sub(1) as u64;
        Values {
            in_flight,
            parallel: AT_ONCE as u64,
            mean_processing: means.0.mean(),
            mean_wait: means.1.mean(),
            max_wait: self.deadline.as_secs_f64(),
            ..Values::default()
        }
    }
}

/// A place in the queue, left when dropped.
struct Queued<'a>(&'a AtomicUsize);

impl<'a> Queued<'a> {
    fn join(waiting: &'a AtomicUsize) -> Result<Self, TurnedAway> {
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        let queued = Self(waiting);
        if before >= WAITING { Err(TurnedAway::QueueFull { waiting: before }) } else { Ok(queued) }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

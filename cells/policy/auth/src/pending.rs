//! Pairs of identities that authenticate, and pauses between their attempts. Pure.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use datapath_abi::signal::AuthKey;

/// The longest pause, as a multiple of the first.
const MAX_PAUSES: u32 = 8;
/// Attempts that are remembered, as a multiple of the pairs that may wait.
const MAX_ATTEMPTS: usize = 8;

/// An attempt that has ended.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    ended: Instant,
    /// Failures since the last success.
    failures: u32,
}

/// Pairs that wait for their turn or are being authenticated, and the ends of attempts.
#[derive(Debug)]
pub(crate) struct Pending {
    capacity: usize,
    pause: Duration,
    waiting: VecDeque<AuthKey>,
    /// Pairs that wait and those in flight.
    all: HashSet<AuthKey>,
    /// Pairs with a renewed certificate, which wait for capacity.
    renewals: HashSet<AuthKey>,
    attempts: HashMap<AuthKey, Attempt>,
}

impl Pending {
    pub(crate) fn new(capacity: usize, pause: Duration) -> Pending {
        let (waiting, all) = (VecDeque::new(), HashSet::new());
        let (renewals, attempts) = (HashSet::new(), HashMap::new());
        Pending { capacity: capacity.max(1), pause, waiting, all, renewals, attempts }
    }

    /// Queues a pair that packets require; false if it is pending, its pause has not ended, or the queue is full.
    pub(crate) fn request(&mut self, key: AuthKey, now: Instant) -> bool {
        if self.attempts.get(&key).is_some_and(|attempt| now < attempt.ended + self.pause_after(attempt)) {
            return false;
        }
        self.enqueue(key)
    }

    /// Queues pairs with a renewed certificate, disregarding pauses and the capacity.
    pub(crate) fn renew(&mut self, keys: impl IntoIterator<Item = AuthKey>) {
        self.renewals.extend(keys);
    }

    /// Ends the pauses of an identity, which has a new certificate.
    pub(crate) fn end_pauses(&mut self, identity: u32) {
        self.attempts.retain(|key, _| key.local_identity != identity && key.remote_identity != identity);
    }

    /// Returns the next pair to authenticate, which is in flight until [`Pending::ended`].
    pub(crate) fn next(&mut self) -> Option<AuthKey> {
        while self.all.len() < self.capacity
            && let Some(key) = self.renewals.iter().next().copied()
        {
            self.renewals.remove(&key);
            self.enqueue(key);
        }
        self.waiting.pop_front()
    }

    /// Ends an attempt. Returns the number of failures since the last success.
    pub(crate) fn ended(&mut self, key: AuthKey, is_authenticated: bool, now: Instant) -> u32 {
        self.all.remove(&key);
        self.forget(now);
        let is_full = self.attempts.len() >= self.capacity * MAX_ATTEMPTS;
        let attempt = match self.attempts.entry(key) {
            Entry::Occupied(attempt) => attempt.into_mut(),
            // Without a pause the queue still bounds the attempts.
            Entry::Vacant(_) if is_full => return u32::from(!is_authenticated),
            Entry::Vacant(entry) => entry.insert(Attempt { ended: now, failures: 0 }),
        };
        attempt.ended = now;
        attempt.failures = if is_authenticated { 0 } else { attempt.failures.saturating_add(1) };
        attempt.failures
    }

    /// Forgets attempts that ended long ago, and returns the number of pairs with a failed last attempt.
    pub(crate) fn failing(&mut self, now: Instant) -> usize {
        self.forget(now);
        self.attempts.values().filter(|attempt| attempt.failures > 0).count()
    }

    fn forget(&mut self, now: Instant) {
        let (pause, oldest) = (self.pause * MAX_PAUSES * 2, now);
        self.attempts.retain(|_, attempt| oldest < attempt.ended + pause);
    }

    fn pause_after(&self, attempt: &Attempt) -> Duration {
        let doubled = 1u32.checked_shl(attempt.failures.saturating_sub(1)).unwrap_or(MAX_PAUSES);
        self.pause * doubled.min(MAX_PAUSES)
    }

    fn enqueue(&mut self, key: AuthKey) -> bool {
        let is_new = self.all.len() < self.capacity && self.all.insert(key);
        if is_new {
            self.waiting.push_back(key);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn key(remote_identity: u32) -> AuthKey {
        AuthKey { local_identity: 1000, remote_identity, remote_node: 1, auth_type: 1, pad: 0 }
    }

    #[test]
    fn a_pair_is_authenticated_once_at_a_time_and_with_pauses() {
        let (mut pending, start) = (Pending::new(10, PAUSE), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(pending.request(key(1), at(0)) && !pending.request(key(1), at(0)));
        assert_eq!((pending.next(), pending.next()), (Some(key(1)), None));
        assert!(!pending.request(key(1), at(5000)), "in flight");
        // Failures: pauses of 1, 2, 4, 8, 8 seconds.
        let mut now = 5000;
        for (failures, pause) in [1000, 2000, 4000, 8000, 8000].into_iter().enumerate() {
            assert_eq!(pending.ended(key(1), false, at(now)), failures as u32 + 1);
            assert!(!pending.request(key(1), at(now + pause - 1)));
            now += pause;
            assert!(pending.request(key(1), at(now)));
            assert_eq!(pending.next(), Some(key(1)));
        }
        assert_eq!(pending.failing(at(now)), 1);
        // A success has the first pause again; other pairs have their own.
        assert_eq!(pending.ended(key(1), true, at(now)), 0);
        assert!(!pending.request(key(1), at(now + 999)) && pending.request(key(2), at(now)));
        assert!(pending.request(key(1), at(now + 1000)));
        assert_eq!(pending.failing(at(now)), 0);
    }

    #[test]
    fn the_queue_is_bounded_and_renewals_wait_for_capacity() {
        let (mut pending, now) = (Pending::new(100, PAUSE), Instant::now());
        assert_eq!((0..1000).filter(|id| pending.request(key(*id), now)).count(), 100);
        pending.renew((2000..3000).map(key));
        let mut renewed = 0;
        while let Some(next) = pending.next() {
            renewed += u32::from(next.remote_identity >= 2000);
            pending.ended(next, false, now);
            assert!(pending.all.len() <= 100 && pending.attempts.len() <= 800);
        }
        assert_eq!(renewed, 1000);
        pending.forget(now + 16 * PAUSE);
        assert!(pending.attempts.is_empty() && pending.all.is_empty());
    }

    #[test]
    fn a_new_certificate_ends_pauses() {
        let (mut pending, now) = (Pending::new(10, PAUSE), Instant::now());
        for id in [1, 2] {
            pending.request(key(id), now);
            pending.next();
            pending.ended(key(id), false, now);
        }
        pending.end_pauses(2);
        assert_eq!([1, 2].map(|id| pending.request(key(id), now)), [false, true]);
        pending.end_pauses(1000);
        assert!(pending.request(key(1), now));
    }
}

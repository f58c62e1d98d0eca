//! The handle on signals that have been read.

use std::sync::atomic::{AtomicU8, Ordering};

use datapath_abi::signal::AuthKey;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

/// A set of address families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families(u8);

impl Families {
    /// IPv4.
    pub const IPV4: Families = Families(1);
    /// IPv6.
    pub const IPV6: Families = Families(2);
    pub(crate) const BOTH: Families = Families(3);

    /// Whether it is the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all families of another set are in it.
    pub fn contains(self, other: Families) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the families of both sets.
    #[must_use]
    pub fn with(self, other: Families) -> Families {
        Families(self.0 | other.0)
    }
}

/// Signals of the datapath, for the cells that serve them.
#[derive(Debug, Default)]
pub struct Signals {
    families: AtomicU8,
    notify: Notify,
    authentications: Mutex<Option<mpsc::Sender<AuthKey>>>,
}

impl Signals {
    /// Waits for signals of full maps and returns their families: any number of signals is one result. Cancel safe. For one
    /// caller.
    pub async fn full_maps(&self) -> Families {
        loop {
            self.notify.notified().await;
            let families = Families(self.families.swap(0, Ordering::AcqRel));
            if !families.is_empty() {
                return families;
            }
        }
    }

    /// Returns the identities that packets require to authenticate. A full queue drops further ones, since
    /// the next packet requires it again. The last caller gets them.
    pub fn authentications(&self, capacity: usize) -> mpsc::Receiver<AuthKey> {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        *self.authentications.lock() = Some(sender);
        receiver
    }

    /// Reports full maps of these families.
    pub(crate) fn collect(&self, families: Families) {
        if !families.is_empty() {
            self.families.fetch_or(families.0, Ordering::AcqRel);
            self.notify.notify_one();
        }
    }

    /// Queues identities to authenticate.
    pub(crate) fn authenticate(&self, key: AuthKey) {
        if let Some(queue) = &*self.authentications.lock() {
            let _ = queue.try_send(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn any_number_of_full_maps_is_one_result() {
        let signals = Signals::default();
        for _ in 0..10_000 {
            signals.collect(Families::IPV4);
        }
        signals.collect(Families::IPV6);
        signals.collect(Families::default());
        assert_eq!(signals.full_maps().await, Families::BOTH);
        assert!(tokio::time::timeout(Duration::from_millis(10), signals.full_maps()).await.is_err());
        signals.collect(Families::IPV6);
        assert_eq!(signals.full_maps().await, Families::IPV6);
    }

    #[test]
    fn the_queue_of_authentications_is_bounded() {
        let signals = Signals::default();
        let key = |remote_identity| AuthKey { remote_identity, ..AuthKey::default() };
        signals.authenticate(key(1));
        let mut queue = signals.authentications(2);
        (2..9).for_each(|identity| signals.authenticate(key(identity)));
        assert_eq!([queue.try_recv().ok(), queue.try_recv().ok()], [Some(key(2)), Some(key(3))]);
        assert!(queue.try_recv().is_err());
    }
}

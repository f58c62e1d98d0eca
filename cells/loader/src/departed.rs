//! Addresses of endpoints that are gone, until the datapath has forgotten their connections.
//!
//! Whoever gets such an address next must have no part in connections of the one before: a reply to one of those passes
//! without policy. Forgetting walks through all connections (some ms), so it happens behind the deletion, for all
//! that are gone by then at once; only an endpoint that comes with such an address before waits for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use maps::Maps;
use tokio::sync::Notify;

use crate::error::{DatapathError, Step};

/// Addresses whose connections are still known.
#[derive(Debug, Default)]
pub struct Departed {
    addresses: Mutex<BTreeSet<IpAddr>>,
    /// Held by who walks through the maps: who waits for it finds the addresses gone.
    walking: Mutex<()>,
    noted: Notify,
}

impl Departed {
    /// Notes addresses that an endpoint had.
    pub(crate) fn note(&self, addresses: impl Iterator<Item = IpAddr>) {
        lock(&self.addresses).extend(addresses);
        self.noted.notify_one();
    }

    /// Forgets the connections of all noted addresses. Gives how many there were.
    pub fn forget(&self, maps: &Maps) -> Result<usize, DatapathError> {
        let _walking = lock(&self.walking);
        let addresses = lock(&self.addresses).clone();
        if addresses.is_empty() {
            return Ok(0);
        }
        let mut forgotten = 0;
        for name in conntrack::MAPS {
            if let Some(map) = maps.shared(name)? {
                forgotten += conntrack::forget(&map, &addresses)
                    .step(|| format!("forget connections of former endpoints in {name}"))?;
            }
        }
        lock(&self.addresses).retain(|address| !addresses.contains(address));
        Ok(forgotten)
    }

    /// Makes sure that nothing is known of connections of these addresses; at once, unless one has just been taken away.
    pub(crate) fn settle(
        &self,
        maps: &Maps,
        mut addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<(), DatapathError> {
        let pending = {
            let departed = lock(&self.addresses);
            addresses.any(|address| departed.contains(&address))
        };
        if pending { self.forget(maps).map(drop) } else { Ok(()) }
    }

    /// Resolves when there is something to forget.
    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

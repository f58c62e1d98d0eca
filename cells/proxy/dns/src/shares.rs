//! Shares of clients in what all of them use.

use std::collections::HashMap;
use std::net::IpAddr;

/// Units of a resource by client. A client with a small share gets one even if others use up the limit: a few clients
/// can neither exhaust the resource nor take it away from the rest.
#[derive(Debug)]
pub(crate) struct Shares {
    by_client: HashMap<IpAddr, usize>,
    used: usize,
    limit: usize,
    guaranteed: usize,
}

impl Shares {
    /// Returns an object without units in use. Beyond `limit` units, clients with `guaranteed` or more get none.
    pub(crate) fn new(limit: usize, guaranteed: usize) -> Shares {
        Shares { by_client: HashMap::new(), used: 0, limit, guaranteed }
    }

    /// Takes a unit for a client. Returns false if it has to do without.
    pub(crate) fn take(&mut self, client: IpAddr) -> bool {
        let own = self.by_client.get(&client).copied().unwrap_or_default();
        if self.used >= self.limit && own >= self.guaranteed {
            return false;
        }
        self.by_client.insert(client, own + 1);
        self.used += 1;
        true
    }

    /// Returns a unit that a client has taken.
    pub(crate) fn release(&mut self, client: IpAddr) {
        let Some(own) = self.by_client.get_mut(&client) else { return };
        self.used -= 1;
        *own -= 1;
        if *own == 0 {
            self.by_client.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_clients_leave_a_share_to_every_other() {
        let client = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut shares = Shares::new(100, 4);
        let mut taken = [0; 3];
        for _ in 0..100 {
            (1..=2).for_each(|last| taken[usize::from(last)] += usize::from(shares.take(client(last))));
        }
        assert_eq!(taken, [0, 50, 50]);
        for last in 3..=200 {
            let own = (0..10).filter(|_| shares.take(client(last))).count();
            assert_eq!(own, 4, "client {last}");
        }
        (0..4).for_each(|_| shares.release(client(3)));
        assert!(!shares.take(client(1)), "others still use more than the limit");
        assert!(shares.take(client(3)));
        shares.release(client(222));
        assert_eq!(shares.used, 100 + 197 * 4 + 1);
    }
}

//! Drift of map entries: the times at which owners compare them, and their repairs.
//!
//! The watchdog of the datapath does not compare entries that another cell owns. It begins a
//! [round](DriftChecks::begin); each owner then compares its entries in its own job and reports its repairs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::maps::Maps;

/// Pause of an owner per compared entry. Comparing an entry takes a microsecond, so large maps cost a
/// thousandth of a CPU, and 30,000 entries are compared every 30 s.
const PAUSE_PER_ENTRY: Duration = Duration::from_millis(1);

impl Maps {
    /// Returns the rounds in which owners of entries compare them.
    pub fn comparisons(&self) -> &Arc<DriftChecks> {
        &self.comparisons
    }
}

/// Rounds of comparisons, and their repairs.
#[derive(Debug, Default)]
pub struct DriftChecks {
    turn: watch::Sender<u64>,
    repaired: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The earliest time of an owner's next comparison.
    paused_until: BTreeMap<&'static str, Instant>,
    repaired: Vec<String>,
}

impl DriftChecks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins a round.
    pub fn begin(&self) {
        self.turn.send_modify(|turn| *turn += 1);
    }

    /// Resolves when this owner has to compare its entries. Rounds that begin while it is busy are coalesced.
    pub async fn turn(&self, owner: &'static str) {
        let mut turn = self.turn.subscribe();
        loop {
            // Never an error: this value owns the sender.
            drop(turn.changed().await);
            let now = Instant::now();
            if self.state().paused_until.get(owner).is_none_or(|at| *at <= now) {
                return;
            }
        }
    }

    /// Reports that the owner has compared this number of entries, with descriptions of its repairs.
    pub fn compared(&self, owner: &'static str, entries: usize, repaired: Vec<String>) {
        let mut state = self.state();
        state
            .paused_until
            .insert(owner, Instant::now() + PAUSE_PER_ENTRY * u32::try_from(entries).unwrap_or(u32::MAX));
        if !repaired.is_empty() {
            state.repaired.extend(repaired);
            drop(state);
            self.repaired.send_modify(|count| *count += 1);
        }
    }

    /// Returns descriptions of repairs since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state().repaired)
    }

    /// Resolves when there are repairs to [`take`](DriftChecks::take).
    pub async fn any(&self) {
        let mut repaired = self.repaired.subscribe();
        while self.state().repaired.is_empty() {
            drop(repaired.changed().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_owner_of_many_entries_pauses_and_its_repairs_are_reported_once() {
        let all = DriftChecks::default();
        let mut turn = Box::pin(all.turn("a"));
        assert!((&mut turn).now_or_never().is_none());
        all.begin();
        turn.await;
        all.compared("a", 60_000, vec!["a row".to_owned()]);
        all.any().await;
        assert_eq!(all.take(), ["a row"]);
        assert!(all.any().now_or_never().is_none());

        let (mut same, mut other) = (Box::pin(all.turn("a")), Box::pin(all.turn("b")));
        assert!((&mut same).now_or_never().is_none() && (&mut other).now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(59)).await;
        all.begin();
        other.await;
        assert!((&mut same).now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        all.begin();
        same.await;
    }
}

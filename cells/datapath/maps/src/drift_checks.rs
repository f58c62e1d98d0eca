//! Rows that others change: when those who keep them compare, and what they have put back.
//!
//! One job looks after the node's datapath; it has no hands on rows that another cell keeps. It calls a
//! [turn](DriftChecks::begin), each owner compares its rows in its own job, and says what it has put back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::maps::Maps;

/// How long a owner rests for each row that it has compared: a row takes a microsecond, so that looking after large maps
/// costs a thousandth of a CPU, and 30,000 rows are compared every 30 s.
const REST: Duration = Duration::from_millis(1);

impl Maps {
    /// When those who keep rows of these maps compare them.
    pub fn comparisons(&self) -> &Arc<DriftChecks> {
        &self.comparisons
    }
}

/// Turns of comparing, and their outcome.
#[derive(Debug, Default)]
pub struct DriftChecks {
    turn: watch::Sender<u64>,
    repaired: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When a owner may compare again.
    rested: BTreeMap<&'static str, Instant>,
    repaired: Vec<String>,
}

impl DriftChecks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is time to compare.
    pub fn begin(&self) {
        self.turn.send_modify(|turn| *turn += 1);
    }

    /// Resolves when it is this owner's time to compare. Turns that come while it is busy are one.
    pub async fn turn(&self, keeper: &'static str) {
        let mut turn = self.turn.subscribe();
        loop {
            // The sender is this value's own.
            drop(turn.changed().await);
            let now = Instant::now();
            if self.state().rested.get(keeper).is_none_or(|at| *at <= now) {
                return;
            }
        }
    }

    /// The owner has compared so many rows; what it has put back, in words.
    pub fn compared(&self, keeper: &'static str, rows: usize, repaired: Vec<String>) {
        let mut state = self.state();
        state.rested.insert(keeper, Instant::now() + REST * u32::try_from(rows).unwrap_or(u32::MAX));
        if !repaired.is_empty() {
            state.repaired.extend(repaired);
            drop(state);
            self.repaired.send_modify(|count| *count += 1);
        }
    }

    /// Returns the entries that owners have repaired since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state().repaired)
    }

    /// Resolves when there is something to [`take`](DriftChecks::take).
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
    async fn a_keeper_of_many_rows_rests_and_what_it_repairs_is_told_once() {
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

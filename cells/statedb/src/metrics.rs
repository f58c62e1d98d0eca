//! Measurements of transactions, and the names of their writers.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A receiver of measurements of write transactions. While it does not listen, nothing is measured.
pub trait Metrics: Send + Sync {
    /// Returns whether it listens now. Called by each transaction before it waits for its tables.
    fn listens(&self) -> bool;

    /// Reports that a transaction has locked its tables, with the time that it waited for each.
    fn acquired(&self, handle: &str, tables: &[(&'static str, Duration)]);

    /// Reports that a transaction was committed, with the time for which it held its tables.
    fn committed(&self, handle: &str, tables: &[&'static str], held: Duration);

    /// Reports the time that a commit spent on removing deleted rows that all readers of changes have seen.
    fn cleaned(&self, table: &'static str, took: Duration);
}

/// The receiver of a database's measurements, once it is set.
#[derive(Default)]
pub(crate) struct Listener(OnceLock<Arc<dyn Metrics>>);

impl Listener {
    pub(crate) fn set(&self, metrics: Arc<dyn Metrics>) -> bool {
        self.0.set(metrics).is_ok()
    }

    /// Returns the receiver if it is set and listens.
    pub(crate) fn get(&self) -> Option<&Arc<dyn Metrics>> {
        self.0.get().filter(|metrics| metrics.listens())
    }
}

/// The names of handles, by id. The first is that of an unnamed database.
pub(crate) struct Handles(Mutex<Vec<Arc<str>>>);

/// The id of a name in [`Handles`].
pub(crate) type Handle = u32;

/// The handle of an unnamed database.
pub(crate) const UNNAMED: Handle = 0;

impl Default for Handles {
    fn default() -> Self {
        Handles(Mutex::new(vec!["DB".into()]))
    }
}

impl Handles {
    /// Returns the id of a name; adds the name on its first use.
    pub(crate) fn number(&self, name: &str) -> Handle {
        let mut names = self.0.lock();
        let known = names.iter().position(|known| &**known == name).unwrap_or(names.len());
        if known == names.len() {
            names.push(name.into());
        }
        known as Handle
    }

    pub(crate) fn name(&self, handle: Handle) -> Arc<str> {
        self.0.lock()[handle as usize].clone()
    }
}

/// Takes the locks in order and measures the wait for each.
pub(crate) fn timed<L, G>(
    locks: &[L],
    take: impl Fn(&L) -> G,
    name: impl Fn(&L) -> &'static str,
) -> (impl Iterator<Item = G>, Vec<(&'static str, Duration)>) {
    let (mut guards, mut waits, mut before) = (Vec::new(), Vec::new(), Instant::now());
    for lock in locks {
        guards.push(take(lock));
        let now = Instant::now();
        waits.push((name(lock), now - before));
        before = now;
    }
    (guards.into_iter(), waits)
}

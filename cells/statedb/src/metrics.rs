//! Who writes, and what transactions cost, for those who count it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What a database tells of its write transactions. Nothing is measured for it while it does not listen.
pub trait Metrics: Send + Sync {
    /// Whether it listens now. Each transaction asks, before it waits for its tables.
    fn listens(&self) -> bool;

    /// A transaction has its tables; how long it has waited for each.
    fn acquired(&self, handle: &str, tables: &[(&'static str, Duration)]);

    /// A transaction has been committed, so long after it got its tables.
    fn committed(&self, handle: &str, tables: &[&'static str], held: Duration);

    /// Deleted rows that all have seen were removed from a table, by the commit of the next writer.
    fn cleaned(&self, table: &'static str, took: Duration);
}

/// The one who listens to a database, once there is one.
#[derive(Default)]
pub(crate) struct Listener(OnceLock<Arc<dyn Metrics>>);

impl Listener {
    pub(crate) fn set(&self, metrics: Arc<dyn Metrics>) -> bool {
        self.0.set(metrics).is_ok()
    }

    /// None while there is no listener.
    pub(crate) fn get(&self) -> Option<&Arc<dyn Metrics>> {
        self.0.get().filter(|metrics| metrics.listens())
    }
}

/// The names of those who write, by number. The first is that of a database without a name.
pub(crate) struct Handles(Mutex<Vec<Arc<str>>>);

/// A number of [`Handles`].
pub(crate) type Handle = u32;

/// The handle of a database that nobody has given a name.
pub(crate) const UNNAMED: Handle = 0;

impl Default for Handles {
    fn default() -> Self {
        Handles(Mutex::new(vec!["DB".into()]))
    }
}

impl Handles {
    /// The number of a name, the same each time.
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

/// Takes the locks one by one and measures what each takes.
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

//! Fake load balancer maps without a kernel, with injected failures.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lbmap::maglev::digest;
use crate::lbmap::rows::{Key, LbMap, LbMaps, MapError, Value};

mod commands;
mod direct;

pub use commands::commands;
pub use direct::{Direct, writer};

/// The entries of all maps.
pub type FakeRows = HashMap<Key, Value, foldhash::fast::RandomState>;

/// Maps in memory. Each written or deleted entry is an operation of its own, which may fail: earlier operations of the
/// same call stay in effect.
#[derive(Debug)]
pub struct FakeMaps(Mutex<State>);

#[derive(Debug)]
struct State {
    rows: FakeRows,
    tables: BTreeMap<Key, Arc<[u32]>>,
    capacity: usize,
    fault: Fault,
    operations: usize,
    watcher: Option<Watcher>,
}

/// The operations that fail.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Fault {
    /// None.
    #[default]
    Never,
    /// The one after this number of operations.
    Once(usize),
    /// All after this number of operations, as if the agent were killed there.
    From(usize),
    /// Each with this probability, as well as reads of reverse NAT and source ranges.
    Random(f64),
}

type Watch = dyn Fn(&FakeRows) + Send;

/// A function that receives all entries.
struct Watcher(Box<Watch>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Default for FakeMaps {
    fn default() -> FakeMaps {
        FakeMaps::with_capacity(65_536)
    }
}

impl FakeMaps {
    /// Returns maps with this capacity each.
    pub fn with_capacity(capacity: usize) -> FakeMaps {
        let (rows, tables, fault) = (FakeRows::default(), BTreeMap::new(), Fault::Never);
        FakeMaps(Mutex::new(State { rows, tables, capacity, fault, operations: 0, watcher: None }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the operations that fail from now on.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = fault;
    }

    /// Returns the number of entries written or deleted so far.
    pub fn operations(&self) -> usize {
        self.state().operations
    }

    /// Calls a function with all rows after each operation.
    pub fn watch(&self, watcher: impl Fn(&FakeRows) + Send + 'static) {
        self.state().watcher = Some(Watcher(Box::new(watcher)));
    }

    /// Returns all entries.
    pub fn dump(&self) -> BTreeMap<Key, Value> {
        self.state().rows.iter().map(|(key, value)| (*key, *value)).collect()
    }

    /// Changes entries without the agent's knowledge.
    pub fn tamper(&self, change: impl FnOnce(&mut FakeRows)) {
        change(&mut self.state().rows);
    }
}

impl State {
    fn operation(&mut self, change: impl FnOnce(&mut FakeRows)) -> Result<(), MapError> {
        let fails = match self.fault {
            Fault::Once(0) | Fault::From(0) => true,
            Fault::Random(probability) => rand::random_bool(probability),
            _ => false,
        };
        self.fault = match self.fault {
            Fault::Once(0) => Fault::Never,
            Fault::Once(n) => Fault::Once(n - 1),
            Fault::From(n) => Fault::From(n.saturating_sub(1)),
            fault => fault,
        };
        if fails {
            return Err("injected fault".into());
        }
        self.operations += 1;
        change(&mut self.rows);
        if let Some(Watcher(watcher)) = &self.watcher {
            watcher(&self.rows);
        }
        Ok(())
    }

    fn is_full_for(&self, key: &Key) -> bool {
        // A map cannot have more entries than all maps together.
        if self.rows.len() < self.capacity {
            return false;
        }
        let of_map = self.rows.keys().filter(|row| row.map() == key.map()).count();
        !self.rows.contains_key(key) && of_map >= self.capacity
    }
}

impl LbMaps for FakeMaps {
    fn put(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        let mut state = self.state();
        for (key, value) in rows {
            if state.is_full_for(key) {
                return Err(format!("{}: argument list too long", key.map().name()).into());
            }
            state.operation(|rows| _ = rows.insert(*key, *value))?;
        }
        Ok(())
    }

    fn put_tables(&self, tables: &[(Key, Arc<[u32]>)]) -> Result<(), MapError> {
        for (key, table) in tables {
            self.put(&[(*key, Value::Maglev(digest(table)))])?;
            self.state().tables.insert(*key, table.clone());
        }
        Ok(())
    }

    fn table(&self, key: &Key) -> Result<Option<Arc<[u32]>>, MapError> {
        Ok(self.state().tables.get(key).cloned())
    }

    fn delete(&self, keys: &[Key]) -> Result<(), MapError> {
        let mut state = self.state();
        keys.iter().try_for_each(|key| {
            state.operation(|rows| _ = rows.remove(key))?;
            state.tables.remove(key);
            Ok(())
        })
    }

    fn get(&self, key: &Key) -> Result<Option<Value>, MapError> {
        Ok(self.state().rows.get(key).copied())
    }

    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        if let Fault::Random(probability) = self.state().fault {
            for map in ["reverse NAT", "source ranges"] {
                if rand::random_bool(probability) {
                    return Err(format!("injected fault of a dump of {map}").into());
                }
            }
        }
        self.all_rows()
    }

    fn all_rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        Ok(self.state().rows.iter().map(|(key, value)| (*key, *value)).collect())
    }

    fn put_all(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        self.state().rows.extend(rows.iter().copied());
        Ok(())
    }

    fn capacity(&self, _: LbMap) -> usize {
        self.state().capacity
    }
}

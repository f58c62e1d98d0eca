//! Fake skip maps without a kernel, with injected failures.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::skip_map::{MapError, SkipKey, SkipMaps};

/// Maps in memory. Each write and each deletion fails with a probability.
#[derive(Debug)]
pub struct FakeSkipMaps {
    rows: Mutex<BTreeSet<SkipKey>>,
    fails: f64,
}

impl FakeSkipMaps {
    /// Returns empty maps that fail with this probability, from 0 to 1.
    pub fn new(fails: f64) -> FakeSkipMaps {
        FakeSkipMaps { rows: Mutex::default(), fails }
    }

    fn operation<T>(&self, change: impl FnOnce(&mut BTreeSet<SkipKey>) -> T) -> Result<T, MapError> {
        match rand::random_bool(self.fails) {
            true => Err("injected fault".into()),
            false => Ok(change(&mut self.rows.lock())),
        }
    }
}

impl SkipMaps for FakeSkipMaps {
    fn put(&self, key: &SkipKey) -> Result<(), MapError> {
        self.operation(|rows| _ = rows.insert(*key))
    }

    fn delete(&self, key: &SkipKey) -> Result<(), MapError> {
        self.operation(|rows| _ = rows.remove(key))
    }

    fn rows(&self) -> Result<Vec<SkipKey>, MapError> {
        Ok(self.rows.lock().iter().copied().collect())
    }
}

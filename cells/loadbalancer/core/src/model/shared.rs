//! Interned lists and texts that many rows have.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;
use k8s_tables::SmolStr;

use crate::model::backend::Zone;

/// The capacity of an interner. At the limit it is cleared, which costs only memory.
const CAPACITY: usize = 1024;

/// Interned values of rows.
pub(crate) struct Shared<T: ?Sized>(HashSet<Arc<T>, RandomState>);

impl<T: ?Sized + Eq + Hash> Shared<T>
where
    Arc<T>: for<'v> From<&'v T>,
{
    /// Returns the interned value.
    pub(crate) fn of(&mut self, value: &T) -> Arc<T> {
        if let Some(known) = self.0.get(value) {
            return known.clone();
        }
        if self.0.len() >= CAPACITY {
            self.0.clear();
        }
        let new = Arc::<T>::from(value);
        self.0.insert(new.clone());
        new
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Shared(HashSet::default())
    }
}

/// Interned names of ports and zones, of which nearly all services have the same few.
#[derive(Default)]
pub(crate) struct Names {
    /// Port names of frontends.
    pub(crate) of_frontend: Shared<str>,
    /// Port names of a service, with the port numbers.
    pub(crate) of_service: Shared<[(SmolStr, u16)]>,
    /// Port names of backends.
    pub(crate) of_backend: Shared<[SmolStr]>,
    /// Zones of backends.
    pub(crate) zones: Shared<Zone>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_shared_and_capacity_is_bounded() {
        let mut shared = Shared::<str>::default();
        let first = shared.of("http");
        assert!(Arc::ptr_eq(&first, &shared.of("http")));
        assert!(!Arc::ptr_eq(&first, &shared.of("https")));
        (0..5 * CAPACITY).for_each(|n| _ = shared.of(&n.to_string()));
        assert!(shared.0.len() <= CAPACITY);
        assert_eq!(&*shared.of("http"), "http");
    }
}

//! Counted items: most selectors have one rule, and a rule may have thousands of selectors.

use smallvec::SmallVec;

/// Items with the number of their uses, sorted. One item needs no allocation.
#[derive(Debug)]
pub(crate) struct Counts<T>(SmallVec<[(T, usize); 1]>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Counts(SmallVec::new())
    }
}

impl<T: Ord + Clone> Counts<T> {
    /// Adds a use. Returns whether it is the first one of the item.
    pub(crate) fn add(&mut self, item: &T) -> bool {
        let found = self.find(item);
        match found {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (item.clone(), 1)),
        }
        found.is_err()
    }

    /// Removes a use. Returns whether it was the last one of the item.
    pub(crate) fn remove(&mut self, item: &T) -> bool {
        let Ok(at) = self.find(item) else { return false };
        self.0[at].1 -= 1;
        let last = self.0[at].1 == 0;
        if last {
            self.0.remove(at);
        }
        last
    }

    /// Whether there are no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the items, in order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(item, _)| item)
    }

    fn find(&self, item: &T) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_stays_until_its_last_use_is_removed() {
        let mut counts = Counts::default();
        assert!(counts.add(&2) && !counts.add(&2) && counts.add(&1));
        assert_eq!(counts.items().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(!counts.remove(&2) && counts.remove(&2) && !counts.remove(&2));
        assert!(!counts.is_empty() && counts.remove(&1) && counts.is_empty());
    }
}

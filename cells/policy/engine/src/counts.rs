//! Counted items: most selectors have one rule, and a rule may have thousands of selectors.

use std::slice;

/// Items with the number of their uses, sorted. One item needs no allocation.
#[derive(Debug, Clone)]
pub(crate) enum Counts<T> {
    /// One item.
    One((T, u32)),
    /// Any number of items.
    List(Vec<(T, u32)>),
}

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Counts::List(Vec::new())
    }
}

impl<T: Ord + Clone> Counts<T> {
    /// Adds a use. Returns whether it is the first one of the item.
    pub(crate) fn add(&mut self, item: &T) -> bool {
        let found = self.find(item);
        match (found, &mut *self) {
            (Ok(_), Counts::One((_, uses))) => *uses += 1,
            (Ok(at), Counts::List(list)) => list[at].1 += 1,
            (Err(_), Counts::List(list)) if list.is_empty() => *self = Counts::One((item.clone(), 1)),
            (Err(at), Counts::List(list)) => list.insert(at, (item.clone(), 1)),
            (Err(at), Counts::One(first)) => {
                let mut list = vec![first.clone()];
                list.insert(at, (item.clone(), 1));
                *self = Counts::List(list);
            }
        }
        found.is_err()
    }

    /// Removes a use. Returns whether it was the last one of the item.
    pub(crate) fn remove(&mut self, item: &T) -> bool {
        let Ok(at) = self.find(item) else { return false };
        match self {
            Counts::One((_, 1)) => *self = Counts::default(),
            Counts::One((_, uses)) => {
                *uses -= 1;
                return false;
            }
            Counts::List(list) => {
                list[at].1 -= 1;
                if list[at].1 > 0 {
                    return false;
                }
                list.remove(at);
            }
        }
        true
    }

    /// Iterates over the items, in order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.as_slice().iter().map(|(item, _)| item)
    }

    fn find(&self, item: &T) -> Result<usize, usize> {
        self.as_slice().binary_search_by(|(known, _)| known.cmp(item))
    }

    fn as_slice(&self) -> &[(T, u32)] {
        match self {
            Counts::One(one) => slice::from_ref(one),
            Counts::List(list) => list,
        }
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
        assert_eq!(counts.items().copied().collect::<Vec<_>>(), [1]);
        assert!(counts.remove(&1) && counts.items().next().is_none());

        // One item that never was beside another.
        assert!(counts.add(&3) && !counts.add(&3) && !counts.remove(&3) && counts.remove(&3));
        assert_eq!(counts.items().count(), 0);
    }
}

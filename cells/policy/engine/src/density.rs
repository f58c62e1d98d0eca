//! When ordered sets are rebuilt: insertion in ascending order leaves nodes of B-trees half empty.

/// The growth by which no set is rebuilt.
const MIN_GROWTH: usize = 256;

/// The density of the nodes of a set.
#[derive(Debug, Default)]
pub(crate) struct Density {
    /// The number of items when it was rebuilt last.
    rebuilt: usize,
}

impl Density {
    /// Whether a set with this number of items is to be rebuilt now: it has grown by a fifth, so that all rebuilding costs
    /// a few moves an item.
    pub(crate) fn is_due(&mut self, items: usize) -> bool {
        let is_due = items > self.rebuilt + self.rebuilt / 5 + MIN_GROWTH;
        if is_due || items < self.rebuilt {
            self.rebuilt = items;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_rebuilt_after_growth_only() {
        let mut density = Density::default();
        let due: Vec<usize> = (0..2000).filter(|items| density.is_due(*items)).collect();
        assert_eq!(due, [257, 565, 935, 1379, 1911]);
        assert!(!density.is_due(300) && !density.is_due(600) && density.is_due(620), "after it has shrunk");
    }
}

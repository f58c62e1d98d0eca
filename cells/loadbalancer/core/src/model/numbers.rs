//! Lists of distinct ids with small differences.

use smallvec::SmallVec;

/// Ids of backends, each once, in the order of a frontend's slots.
pub(crate) type Numbers = SmallVec<[u32; 4]>;

/// Returns the ids of one list that another lacks. The lists are nearly equal in the usual case: they are compared side
/// by side, and only ids without a counterpart are searched for.
pub(crate) fn difference(these: &[u32], others: &[u32]) -> Vec<u32> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let (mut these, mut others) = (these, others);
    while let ([a, after_a @ ..], [b, after_b @ ..]) = (these, others) {
        if a != b && after_a.first() == Some(b) {
            left.push(*a);
            these = after_a;
        } else if a != b && after_b.first() == Some(a) {
            right.push(*b);
            others = after_b;
        } else {
            if a != b {
                left.push(*a);
                right.push(*b);
            }
            (these, others) = (after_a, after_b);
        }
    }
    left.extend_from_slice(these);
    if !left.is_empty() {
        right.extend_from_slice(others);
        right.sort_unstable();
        left.retain(|number| right.binary_search(number).is_err());
    }
    left
}

/// Adds the ids that a list lacks.
pub(crate) fn add(numbers: &mut Numbers, more: &[u32]) {
    match numbers.is_empty() {
        true => numbers.extend_from_slice(more),
        false => numbers.extend(difference(more, numbers)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn list() -> impl Strategy<Value = Vec<u32>> {
        proptest::sample::subsequence((0u32..12).collect::<Vec<_>>(), 0..12).prop_shuffle()
    }

    proptest! {
        #[test]
        fn differences_are_those_of_sets(a in list(), b in list()) {
            let of = |list: &[u32]| list.iter().copied().collect::<BTreeSet<_>>();
            let difference = difference(&a, &b);
            prop_assert_eq!(of(&difference), &of(&a) - &of(&b));
            let mut both = Numbers::from_slice(&a);
            add(&mut both, &b);
            prop_assert_eq!(of(&both), &of(&a) | &of(&b));
            prop_assert_eq!(both.len(), of(&both).len());
        }
    }
}

//! Lists of distinct ids with small differences.

use smallvec::SmallVec;

/// Ids of backends, each once, in the order of a frontend's slots.
pub(crate) type Numbers = SmallVec<[u32; 4]>;

/// Returns the ids of one list that another lacks. Common prefixes and suffixes, the usual case, are skipped first.
pub(crate) fn difference(these: &[u32], others: &[u32]) -> Vec<u32> {
    let same = these.iter().zip(others).take_while(|(a, b)| a == b).count();
    let (these, others) = (&these[same..], &others[same..]);
    let same = these.iter().rev().zip(others.iter().rev()).take_while(|(a, b)| a == b).count();
    let (these, others) = (&these[..these.len() - same], &others[..others.len() - same]);
    if these.is_empty() {
        return Vec::new();
    }
    let mut others = others.to_vec();
    others.sort_unstable();
    these.iter().filter(|number| others.binary_search(number).is_err()).copied().collect()
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

//! Sorted ids of identities.

use std::ops::Deref;

/// Sorted ids of identities, without repetitions. Up to two need no allocation: a prefix selects one or two.
#[derive(Clone)]
pub struct IdentityIds(Form);

#[derive(Clone)]
enum Form {
    Few {
        count: u8,
        ids: [u32; FEW],
    },
    #[expect(
        clippy::box_collection,
        reason = "thousands of selectors have a few ids, which a pointer does not enlarge"
    )]
    Many(Box<Vec<u32>>),
}

const FEW: usize = 2;

impl IdentityIds {
    /// Inserts an id, or removes it. Returns whether this has changed the ids.
    pub(crate) fn set(&mut self, id: u32, is_member: bool) -> bool {
        let found = self.binary_search(&id);
        match (found, is_member) {
            (Ok(_), true) | (Err(_), false) => return false,
            (Err(at), true) => self.insert(at, id),
            (Ok(at), false) => self.remove(at),
        }
        true
    }

    fn insert(&mut self, at: usize, id: u32) {
        match &mut self.0 {
            Form::Many(list) => list.insert(at, id),
            Form::Few { count, ids } if usize::from(*count) < FEW => {
                ids.copy_within(at..FEW - 1, at + 1);
                ids[at] = id;
                *count += 1;
            }
            Form::Few { ids, .. } => {
                let mut list = ids.to_vec();
                list.insert(at, id);
                self.0 = Form::Many(list.into());
            }
        }
    }

    fn remove(&mut self, at: usize) {
        match &mut self.0 {
            Form::Many(list) => {
                list.remove(at);
                if list.len() <= FEW {
                    *self = list.iter().copied().collect();
                }
            }
            Form::Few { count, ids } => {
                ids.copy_within(at + 1.., at);
                *count -= 1;
            }
        }
    }
}

impl Default for IdentityIds {
    fn default() -> IdentityIds {
        IdentityIds(Form::Few { count: 0, ids: [0; FEW] })
    }
}

impl Deref for IdentityIds {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.0 {
            Form::Few { count, ids } => &ids[..usize::from(*count)],
            Form::Many(list) => list,
        }
    }
}

/// Sorts the ids.
impl FromIterator<u32> for IdentityIds {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> IdentityIds {
        let mut list: Vec<u32> = ids.into_iter().collect();
        list.sort_unstable();
        list.dedup();
        match list[..] {
            [] => IdentityIds::default(),
            [one] => IdentityIds(Form::Few { count: 1, ids: [one, 0] }),
            [first, second] => IdentityIds(Form::Few { count: 2, ids: [first, second] }),
            _ => {
                list.shrink_to_fit();
                IdentityIds(Form::Many(list.into()))
            }
        }
    }
}

impl PartialEq for IdentityIds {
    fn eq(&self, other: &IdentityIds) -> bool {
        **self == **other
    }
}

impl Eq for IdentityIds {}

impl std::fmt::Debug for IdentityIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_those_of_a_set(changes in proptest::collection::vec((0..6u32, any::<bool>()), 0..40)) {
            let (mut ids, mut set) = (IdentityIds::default(), BTreeSet::new());
            for (id, is_member) in changes {
                let changed = if is_member { set.insert(id) } else { set.remove(&id) };
                prop_assert_eq!(ids.set(id, is_member), changed);
                prop_assert!(ids.iter().eq(&set));
                prop_assert_eq!(&ids, &set.iter().rev().copied().collect());
                prop_assert_eq!(matches!(ids.0, Form::Few { .. }), set.len() <= FEW);
            }
            prop_assert!(size_of::<IdentityIds>() <= 16);
        }
    }
}

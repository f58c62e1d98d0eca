//! Which endpoint is in which slice.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_types::{Key, SmolStr};

/// The characters of names, which form no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxyz2456789";

/// A slice.
#[derive(Debug, Default)]
struct Slice {
    namespace: SmolStr,
    endpoints: BTreeSet<SmolStr>,
}

/// The slice of each endpoint.
///
/// An endpoint stays in its slice, so that no agent ever sees it in none: only [`adopt`](Assignment::adopt) moves one, out
/// of a slice that was made by another program.
#[derive(Debug)]
pub(crate) struct Assignment {
    /// Endpoints of a slice at most.
    max: usize,
    of_endpoint: HashMap<Key, SmolStr>,
    slices: HashMap<SmolStr, Slice>,
    /// Slices with room by namespace, by their number of endpoints.
    with_room: BTreeMap<SmolStr, BTreeSet<(usize, SmolStr)>>,
}

impl Assignment {
    pub(crate) fn new(max: usize) -> Assignment {
        Assignment { max, of_endpoint: HashMap::new(), slices: HashMap::new(), with_room: BTreeMap::new() }
    }

    /// Returns the number of endpoints and of slices.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.of_endpoint.len(), self.slices.len())
    }

    /// Whether there is such a slice.
    pub(crate) fn has(&self, slice: &str) -> bool {
        self.slices.contains_key(slice)
    }

    /// Returns the namespace of a slice and the names of its endpoints.
    pub(crate) fn contents(&self, slice: &str) -> Option<(&SmolStr, &BTreeSet<SmolStr>)> {
        self.slices.get(slice).map(|slice| (&slice.namespace, &slice.endpoints))
    }

    /// Takes over a slice that exists, with those of its endpoints that are in no other one, up to the maximum.
    pub(crate) fn adopt(
        &mut self,
        slice: &SmolStr,
        namespace: &SmolStr,
        endpoints: impl IntoIterator<Item = SmolStr>,
    ) {
        if self.has(slice) {
            return;
        }
        self.insert_slice(slice.clone(), namespace.clone());
        for name in endpoints {
            let key = Key::new(namespace.clone(), name);
            if self.slices[slice].endpoints.len() < self.max && !self.of_endpoint.contains_key(&key) {
                self.put(&key, slice);
            }
        }
    }

    /// Returns the slice of an endpoint; one that is in none gets into the fullest of its namespace that has room.
    pub(crate) fn assign(&mut self, endpoint: &Key) -> SmolStr {
        if let Some(slice) = self.of_endpoint.get(endpoint) {
            return slice.clone();
        }
        let fullest = self.with_room.get(&endpoint.namespace).and_then(|slices| slices.last());
        let slice = match fullest {
            Some((_, slice)) => slice.clone(),
            None => {
                let name = self.unused_name();
                self.insert_slice(name.clone(), endpoint.namespace.clone());
                name
            }
        };
        self.put(endpoint, &slice);
        slice
    }

    /// Removes an endpoint. Returns the slice that it was in.
    pub(crate) fn remove(&mut self, endpoint: &Key) -> Option<SmolStr> {
        let name = self.of_endpoint.remove(endpoint)?;
        self.change(&name, |endpoints| {
            endpoints.remove(&endpoint.name);
        });
        Some(name)
    }

    /// Forgets a slice if it is empty. Returns whether it is.
    pub(crate) fn forget_empty(&mut self, slice: &SmolStr) -> bool {
        let Some(found) = self.slices.get(slice) else { return true };
        if !found.endpoints.is_empty() {
            return false;
        }
        if let Some(slices) = self.with_room.get_mut(&found.namespace) {
            slices.remove(&(0, slice.clone()));
            if slices.is_empty() {
                self.with_room.remove(&found.namespace);
            }
        }
        self.slices.remove(slice);
        true
    }

    fn insert_slice(&mut self, name: SmolStr, namespace: SmolStr) {
        self.with_room.entry(namespace.clone()).or_default().insert((0, name.clone()));
        self.slices.insert(name, Slice { namespace, endpoints: BTreeSet::new() });
    }

    fn put(&mut self, endpoint: &Key, slice: &SmolStr) {
        self.of_endpoint.insert(endpoint.clone(), slice.clone());
        self.change(slice, |endpoints| {
            endpoints.insert(endpoint.name.clone());
        });
    }

    /// Changes the endpoints of a slice, and where it is among those with room.
    fn change(&mut self, name: &SmolStr, change: impl FnOnce(&mut BTreeSet<SmolStr>)) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        let before = slice.endpoints.len();
        change(&mut slice.endpoints);
        let after = slice.endpoints.len();
        let namespace = slice.namespace.clone();
        let slices = self.with_room.entry(namespace.clone()).or_default();
        slices.remove(&(before, name.clone()));
        if after < self.max {
            slices.insert((after, name.clone()));
        } else if slices.is_empty() {
            self.with_room.remove(&namespace);
        }
    }

    fn unused_name(&self) -> SmolStr {
        loop {
            let name = random_name();
            if !self.has(&name) {
                return name;
            }
        }
    }
}

/// Returns a name as Cilium gives them: `ces-bh4q9wzxk-7m2tn`.
fn random_name() -> SmolStr {
    let word = |length: usize| -> String {
        let character = || char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]);
        std::iter::repeat_with(character).take(length).collect()
    };
    format!("ces-{}-{}", word(9), word(5)).into()
}

//! Interning of strings that many objects share.

use std::hash::{BuildHasher, Hash, RandomState};

use k8s_types::{OwnerReference, Resource, Shared, SmolStr, StringMap};

/// The number of slots per type, as a set-associative cache: the least recently used value of a set is evicted.
const SLOTS: usize = 512;
/// The number of slots in a set. With fewer, values that consecutive objects have in common could evict each other.
const WAYS: usize = 4;

/// A bounded cache of recent strings: the pods of a ReplicaSet are adjacent in lists and have equal labels, owners and
/// images.
pub struct Pool {
    maps: Vec<StringMap>,
    texts: Vec<SmolStr>,
    owners: Vec<Shared<OwnerReference>>,
    hasher: RandomState,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { maps: Vec::new(), texts: Vec::new(), owners: Vec::new(), hasher: RandomState::new() }
    }
}

impl Pool {
    /// Interns the metadata that objects of all kinds have.
    pub(crate) fn metadata<T: Resource>(&mut self, object: &mut T) {
        let meta = object.metadata_mut();
        self.text(&mut meta.namespace);
        self.text(&mut meta.generate_name);
        self.map(&mut meta.labels);
        self.map(&mut meta.annotations);
        if !meta.owner_references.is_empty() {
            share(&mut self.owners, &self.hasher, &mut meta.owner_references);
        }
    }

    /// Interns a string, unless it is stored inline.
    pub fn text(&mut self, text: &mut SmolStr) {
        if text.is_heap_allocated() {
            share(&mut self.texts, &self.hasher, text);
        }
    }

    /// Interns a string, if there is one.
    pub fn option(&mut self, text: &mut Option<SmolStr>) {
        if let Some(text) = text {
            self.text(text);
        }
    }

    /// Interns a map of strings.
    pub fn map(&mut self, map: &mut StringMap) {
        if !map.is_empty() {
            share(&mut self.maps, &self.hasher, map);
        }
    }
}

fn share<T: Clone + Default + PartialEq + Hash>(slots: &mut Vec<T>, hasher: &RandomState, value: &mut T) {
    if slots.is_empty() {
        slots.resize(SLOTS, T::default());
    }
    let place = hasher.hash_one(&*value) as usize % (SLOTS / WAYS) * WAYS;
    let slots = &mut slots[place..place + WAYS];
    match slots.iter().position(|slot| slot == value) {
        Some(at) => {
            *value = slots[at].clone();
            slots[..=at].rotate_right(1);
        }
        None => {
            slots.rotate_right(1);
            slots[0] = value.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::core::Pod;

    use super::*;

    #[test]
    fn equal_labels_share_memory() {
        let mut pool = Pool::default();
        let mut pod = |name: &str, app: &str| {
            let json = format!(r#"{{"metadata": {{"name": "{name}", "labels": {{"app": "{app}"}}}}}}"#);
            let mut pod: Pod = k8s_types::decode(json.as_bytes()).unwrap();
            pool.metadata(&mut pod);
            pod
        };
        let (a, b, c) = (pod("a", "web"), pod("b", "web"), pod("c", "db"));
        assert!(
            a.metadata.labels.shares(&b.metadata.labels) && !a.metadata.labels.shares(&c.metadata.labels)
        );
        assert_eq!(c.metadata.labels.get("app").map(SmolStr::as_str), Some("db"));
    }
}

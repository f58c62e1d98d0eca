//! Interning of strings that many objects share.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

use k8s_types::{OwnerReference, Resource, Shared, SmolStr, StringMap};

/// The number of slots per type, as a set-associative cache: the least recently used value of a set is evicted.
const SLOTS: usize = 512;
/// The number of slots in a set. With fewer, values that consecutive objects have in common could evict each other.
const WAYS: usize = 4;
/// The maximum number of names of nodes; more than the nodes of the largest clusters. At the limit the set is cleared, which
/// costs only memory.
const MAX_NODES: usize = 8192;

/// A bounded cache of recent strings: the pods of a ReplicaSet are adjacent in lists and have equal labels, owners and
/// images.
pub struct Pool {
    maps: Vec<StringMap>,
    texts: Vec<SmolStr>,
    owners: Vec<Shared<OwnerReference>>,
    nodes: HashSet<SmolStr>,
    hasher: RandomState,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool {
            maps: Vec::new(),
            texts: Vec::new(),
            owners: Vec::new(),
            nodes: HashSet::new(),
            hasher: RandomState::new(),
        }
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
            share(&mut self.owners, &self.hasher, &mut meta.owner_references, |_| ());
        }
    }

    /// Interns a string, unless it is stored inline.
    pub fn text(&mut self, text: &mut SmolStr) {
        if text.is_heap_allocated() {
            share(&mut self.texts, &self.hasher, text, |_| ());
        }
    }

    /// Interns the name of a node. Unlike other strings it occurs in objects that are far apart in a list: all of them are kept.
    pub fn node(&mut self, name: &mut SmolStr) {
        if !name.is_heap_allocated() {
            return;
        }
        if let Some(known) = self.nodes.get(name) {
            *name = known.clone();
            return;
        }
        if self.nodes.len() >= MAX_NODES {
            self.nodes.clear();
        }
        self.nodes.insert(name.clone());
    }

    /// Interns a string, if there is one.
    pub fn option(&mut self, text: &mut Option<SmolStr>) {
        if let Some(text) = text {
            self.text(text);
        }
    }

    /// Interns a map of strings. The strings of a new one are interned, too: objects with other values have the same names.
    pub fn map(&mut self, map: &mut StringMap) {
        if !map.is_empty() {
            share(&mut self.maps, &self.hasher, map, |map| {
                map.for_each_mut(|text| {
                    if text.is_heap_allocated() {
                        share(&mut self.texts, &self.hasher, text, |_| ());
                    }
                });
            });
        }
    }
}

/// Replaces a value by an equal one of the slots; stores one that they do not have, after `prepare`.
fn share<T: Clone + Default + PartialEq + Hash>(
    slots: &mut Vec<T>,
    hasher: &RandomState,
    value: &mut T,
    prepare: impl FnOnce(&mut T),
) {
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
            prepare(value);
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

    #[test]
    fn labels_with_other_values_share_their_names() {
        let mut pool = Pool::default();
        let mut names = |service: &str| {
            let labels =
                [("kubernetes.io/service-name", service), ("app.kubernetes.io/managed-by", "a-tool")];
            let mut map: StringMap = labels.into_iter().collect();
            pool.map(&mut map);
            map.iter().map(|(name, _)| name.as_ptr()).collect::<Vec<_>>()
        };
        assert_eq!(names("a"), names("b"));
    }

    #[test]
    fn names_of_all_nodes_share_memory_and_their_number_is_bounded() {
        let mut pool = Pool::default();
        let mut node = |number: usize| {
            let mut name = SmolStr::new(format!("worker-{number:05}.compute.example"));
            pool.node(&mut name);
            (name, pool.nodes.len())
        };
        let first: Vec<SmolStr> = (0..5000).map(|number| node(number).0).collect();
        for (number, first) in first.iter().enumerate() {
            assert_eq!(node(number).0.as_ptr(), first.as_ptr());
        }
        let most = (0..3 * MAX_NODES).map(|number| node(number).1).max();
        assert_eq!(most, Some(MAX_NODES));
    }
}

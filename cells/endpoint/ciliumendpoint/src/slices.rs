//! CiliumEndpoints in slices: which slice has the current state of each.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

use k8s_tables::{Key, Row};
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumEndpointSlice, CoreCiliumEndpoint};
use statedb::Obj;

type Slice = Obj<Row<CiliumEndpointSlice>>;

/// The slices, and for each endpoint those that have it. While the operator moves an endpoint, two slices have it.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    slices: HashMap<SmolStr, Slice>,
    /// The current state of each endpoint: that of the slice that had it inserted or changed last. There is one for every
    /// pod of the cluster, so the names are those of the slices.
    current: HashSet<Position>,
    /// The other slices of endpoints that several have; the last one is the next to count.
    others: HashMap<Key, Vec<SmolStr>>,
}

/// An endpoint in a slice, in sets by its name.
#[derive(Debug)]
struct Position {
    slice: Slice,
    index: usize,
}

impl Position {
    fn endpoint(&self) -> &CoreCiliumEndpoint {
        &self.slice.endpoints[self.index]
    }

    fn is_in(&self, slice: &str) -> bool {
        self.slice.metadata.name == slice
    }
}

/// The namespace and name of an endpoint.
trait Named {
    fn name(&self) -> (&str, &str);
}

impl Named for Position {
    fn name(&self) -> (&str, &str) {
        (&self.slice.namespace, &self.endpoint().name)
    }
}

impl Named for Key {
    fn name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Named + '_ {}

impl Hash for dyn Named + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for Position {
    fn eq(&self, other: &Position) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Position {}

impl Hash for Position {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl<'a> Borrow<dyn Named + 'a> for Position {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

fn key(slice: &CiliumEndpointSlice, endpoint: &CoreCiliumEndpoint) -> Key {
    Key::new(slice.namespace.clone(), endpoint.name.clone())
}

impl Slices {
    /// Inserts, replaces or removes a slice; returns the endpoints whose current state may have changed.
    pub(crate) fn apply(&mut self, slice: &Slice, is_deleted: bool) -> BTreeSet<Key> {
        let name = &slice.metadata.name;
        let before = match is_deleted {
            true => self.slices.remove(name),
            false => self.slices.insert(name.clone(), slice.clone()),
        };
        let endpoints = |slice: &CiliumEndpointSlice| -> BTreeMap<Key, usize> {
            let named = slice.endpoints.iter().enumerate().filter(|(_, endpoint)| !endpoint.name.is_empty());
            named.map(|(index, endpoint)| (key(slice, endpoint), index)).collect()
        };
        let old = before.as_ref().map(|slice| endpoints(slice)).unwrap_or_default();
        let new = if is_deleted { BTreeMap::new() } else { endpoints(slice) };
        let mut changed = BTreeSet::new();
        for key in old.keys().filter(|key| !new.contains_key(key)) {
            self.remove(key, name);
            changed.insert(key.clone());
        }
        for (key, index) in new {
            let was = before.as_ref().and_then(|before| before.endpoints.get(*old.get(&key)?));
            let position = Position { slice: slice.clone(), index };
            if was != slice.endpoints.get(index) {
                self.insert(&key, position);
                changed.insert(key);
            } else if self.position(&key).is_some_and(|current| current.is_in(name)) {
                // The previous version of the slice must not stay in memory.
                self.current.replace(position);
            }
        }
        changed
    }

    /// Makes this the current state of an endpoint.
    fn insert(&mut self, key: &Key, position: Position) {
        let name = position.slice.metadata.name.clone();
        let mut others = self.others.remove(key).unwrap_or_default();
        others.retain(|other| *other != name);
        if let Some(before) = self.current.replace(position).filter(|before| !before.is_in(&name)) {
            others.push(before.slice.metadata.name.clone());
        }
        if !others.is_empty() {
            self.others.insert(key.clone(), others);
        }
    }

    /// Removes an endpoint from a slice.
    fn remove(&mut self, key: &Key, slice: &str) {
        let is_current = self.position(key).is_some_and(|current| current.is_in(slice));
        let others = self.others.get_mut(key);
        let next = others.and_then(|others| {
            others.retain(|other| other != slice);
            if is_current { others.pop() } else { None }
        });
        if self.others.get(key).is_some_and(Vec::is_empty) {
            self.others.remove(key);
        }
        if is_current {
            let next = next.and_then(|name| {
                let slice = self.slices.get(&name)?.clone();
                let index = slice.endpoints.iter().rposition(|endpoint| endpoint.name == key.name)?;
                Some(Position { slice, index })
            });
            match next {
                Some(next) => drop(self.current.replace(next)),
                None => drop(self.current.take(key as &dyn Named)),
            }
        }
    }

    fn position(&self, key: &Key) -> Option<&Position> {
        self.current.get(key as &dyn Named)
    }

    /// Returns the current state of an endpoint.
    pub(crate) fn current(&self, key: &Key) -> Option<&CoreCiliumEndpoint> {
        self.position(key).map(Position::endpoint)
    }

    /// Whether there is no slice.
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Returns the endpoints with their current states.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Key, &CoreCiliumEndpoint)> {
        self.current.iter().map(|position| (key(&position.slice, position.endpoint()), position.endpoint()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use statedb::{Db, RwTable};

    use super::*;

    /// Slices as rows of a table.
    struct Stage(Slices, RwTable<Row<CiliumEndpointSlice>>);

    impl Stage {
        fn new() -> Stage {
            Stage(Slices::default(), Db::new().table().unwrap())
        }

        fn put(&mut self, name: &str, endpoints: &[(&str, u32)]) -> Vec<String> {
            let endpoints: Vec<Value> =
                endpoints.iter().map(|(name, id)| json!({"name": name, "id": id})).collect();
            let slice = json!({"metadata": {"name": name}, "namespace": "shop", "endpoints": endpoints});
            let slice = k8s_types::decode(slice.to_string().as_bytes()).unwrap();
            self.1.transact(|w| drop(w.insert(Row::of(slice))));
            self.apply(name, false)
        }

        fn delete(&mut self, name: &str) -> Vec<String> {
            self.apply(name, true)
        }

        fn apply(&mut self, name: &str, is_deleted: bool) -> Vec<String> {
            let table = self.1.reader();
            let row = table.get(&table.snapshot(), Row::by_name("", name)).cloned().unwrap();
            self.0.apply(&row, is_deleted).iter().map(ToString::to_string).collect()
        }

        fn current(&self) -> Vec<(String, i64)> {
            let all = self.0.all().map(|(key, endpoint)| (key.name.to_string(), endpoint.identity_id));
            let mut all: Vec<_> = all.collect();
            all.sort();
            all
        }
    }

    fn named(endpoints: &[(&str, i64)]) -> Vec<(String, i64)> {
        endpoints.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect()
    }

    #[test]
    fn an_endpoint_in_two_slices_has_the_state_of_the_last_and_falls_back_to_the_other() {
        let mut stage = Stage::new();
        assert_eq!(stage.put("a", &[("web", 1), ("db", 2)]), ["shop/db", "shop/web"]);
        assert_eq!(stage.put("b", &[("web", 3)]), ["shop/web"]);
        assert_eq!(stage.current(), named(&[("db", 2), ("web", 3)]));
        assert_eq!(stage.put("a", &[("web", 1), ("db", 4)]), ["shop/db"], "web is unchanged");
        assert_eq!(stage.current(), named(&[("db", 4), ("web", 3)]));
        // The move is undone, then done again.
        assert_eq!(stage.delete("b"), ["shop/web"]);
        assert_eq!(stage.current(), named(&[("db", 4), ("web", 1)]));
        stage.put("b", &[("web", 3)]);
        assert_eq!(stage.put("a", &[("db", 4)]), ["shop/web"]);
        assert_eq!(stage.current(), named(&[("db", 4), ("web", 3)]));
        stage.put("a", &[("db", 4), ("web", 5)]);
        assert_eq!(stage.current(), named(&[("db", 4), ("web", 5)]));
        stage.delete("a");
        stage.delete("b");
        assert_eq!(stage.current(), named(&[]));
        assert!(stage.0.current.is_empty() && stage.0.others.is_empty() && stage.0.slices.is_empty());
    }

    #[test]
    fn previous_versions_of_a_slice_are_not_kept() {
        let mut stage = Stage::new();
        stage.put("a", &[("web", 1), ("db", 2)]);
        stage.put("a", &[("web", 1), ("db", 3), ("new", 4)]);
        let last = &stage.0.slices["a"];
        assert_eq!(stage.0.current.len(), 3);
        assert!(stage.0.current.iter().all(|position| position.slice.same(last)));
    }

    #[test]
    fn names_that_are_missing_or_there_twice_do_no_harm() {
        let mut stage = Stage::new();
        assert_eq!(stage.put("a", &[("", 1), ("web", 2), ("web", 3)]), ["shop/web"]);
        assert_eq!(stage.current().len(), 1);
        assert_eq!(stage.delete("a"), ["shop/web"]);
        assert_eq!(stage.current(), named(&[]));
    }
}

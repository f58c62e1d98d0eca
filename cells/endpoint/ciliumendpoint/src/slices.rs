//! CiliumEndpoints in slices: which slice has the current state of each.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_tables::{Key, Row};
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumEndpointSlice, CoreCiliumEndpoint};
use smallvec::SmallVec;
use statedb::Obj;

/// The slices, and for each endpoint those that have it. While the operator moves an endpoint, two slices have it.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    slices: HashMap<SmolStr, Obj<Row<CiliumEndpointSlice>>>,
    /// The slices of an endpoint: the one that had it inserted or changed last is at the end and counts.
    of_endpoint: HashMap<Key, SmallVec<[SmolStr; 1]>>,
}

fn key(slice: &CiliumEndpointSlice, endpoint: &CoreCiliumEndpoint) -> Key {
    Key::new(slice.namespace.clone(), endpoint.name.clone())
}

impl Slices {
    /// Inserts, replaces or removes a slice; returns the endpoints whose current state may have changed.
    pub(crate) fn apply(&mut self, slice: &Obj<Row<CiliumEndpointSlice>>, is_deleted: bool) -> BTreeSet<Key> {
        let name = &slice.metadata.name;
        let before = match is_deleted {
            true => self.slices.remove(name),
            false => self.slices.insert(name.clone(), slice.clone()),
        };
        let endpoints = |slice: &CiliumEndpointSlice| -> BTreeMap<Key, usize> {
            let named = slice.endpoints.iter().enumerate().filter(|(_, endpoint)| !endpoint.name.is_empty());
            named.map(|(at, endpoint)| (key(slice, endpoint), at)).collect()
        };
        let old = before.as_ref().map(|slice| endpoints(slice)).unwrap_or_default();
        let new = if is_deleted { BTreeMap::new() } else { endpoints(slice) };
        let mut changed = BTreeSet::new();
        for key in old.keys().filter(|key| !new.contains_key(key)) {
            if let Some(names) = self.of_endpoint.get_mut(key) {
                names.retain(|other| *other != *name);
                if names.is_empty() {
                    self.of_endpoint.remove(key);
                }
            }
            changed.insert(key.clone());
        }
        for (key, at) in new {
            let was = before.as_ref().and_then(|before| before.endpoints.get(*old.get(&key)?));
            if was == slice.endpoints.get(at) {
                continue;
            }
            let names = self.of_endpoint.entry(key.clone()).or_default();
            names.retain(|other| *other != *name);
            names.push(name.clone());
            changed.insert(key);
        }
        changed
    }

    /// Returns the current state of an endpoint.
    pub(crate) fn current(&self, key: &Key) -> Option<&CoreCiliumEndpoint> {
        let slice = self.slices.get(self.of_endpoint.get(key)?.last()?)?;
        slice.endpoints.iter().rfind(|endpoint| endpoint.name == key.name)
    }

    /// Whether there is no slice.
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Returns the endpoints with their current states.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &CoreCiliumEndpoint)> {
        self.of_endpoint.keys().filter_map(|key| Some((key, self.current(key)?)))
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
        assert!(stage.0.of_endpoint.is_empty() && stage.0.slices.is_empty());
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

//! Metadata of all kinds: names, labels, owners; label selectors.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use crate::Time;
use crate::slim::{Empty, Nil, slim};

/// The namespace of objects without one.
pub const DEFAULT_NAMESPACE: &str = "default";

slim! {
    /// `metadata` of an object.
    pub struct ObjectMeta {
        /// The object's name.
        pub name: SmolStr,
        /// The prefix of its name, if the server chose it.
        pub generate_name: SmolStr,
        /// Its namespace; empty for cluster-scoped kinds.
        pub namespace: SmolStr,
        /// Distinguishes it from earlier objects of the name; empty if the source has none.
        pub uid: SmolStr,
        /// Its version, to be compared for equality only.
        pub resource_version: SmolStr,
        /// The number of changes of the desired state.
        pub generation: i64,
        /// The time of creation.
        pub creation_timestamp: Option<Time>,
        /// The time of the requested deletion, while finalizers are pending.
        pub deletion_timestamp: Option<Time>,
        /// Labels.
        pub labels: StringMap,
        /// Annotations.
        pub annotations: StringMap,
        /// The owners, with which it is garbage-collected.
        pub owner_references: Shared<OwnerReference>,
        /// Finalizers, which delay its deletion.
        pub finalizers: Shared<SmolStr>,
    }

    /// An object that owns another one.
    #[derive(Eq, PartialOrd, Ord, Hash)]
    pub struct OwnerReference {
        /// Its version.
        always pub api_version: SmolStr,
        /// Its kind.
        always pub kind: SmolStr,
        /// Its name.
        always pub name: SmolStr,
        /// Its uid.
        always pub uid: SmolStr,
        /// Whether it is the managing controller.
        pub controller: Option<bool>,
        /// Whether a foreground deletion of the owner waits for the object.
        pub block_owner_deletion: Option<bool>,
    }

    /// A selection of objects by their labels: all conditions must hold.
    pub struct LabelSelector {
        /// Labels with their values.
        pub match_labels: StringMap,
        /// Further conditions.
        pub match_expressions: Vec<LabelSelectorRequirement>,
    }

    /// A condition on a label.
    pub struct LabelSelectorRequirement {
        /// The label.
        always pub key: SmolStr,
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
        always pub operator: SmolStr,
        /// Values, for the first two.
        pub values: Vec<SmolStr>,
    }
}

/// A short list, often equal to those of other objects. Clones share it; an empty one takes no memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shared<T>(Option<Arc<[T]>>);

impl<T> Shared<T> {
    /// Returns the items for changes; none if a clone shares them.
    pub fn get_mut(&mut self) -> &mut [T] {
        self.0.as_mut().and_then(Arc::get_mut).unwrap_or_default()
    }

    /// Whether both share their memory.
    pub fn shares(&self, other: &Shared<T>) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(None)
    }
}

impl<T> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Shared<T> {
        let items: Vec<T> = items.into_iter().collect();
        Shared((!items.is_empty()).then(|| items.into()))
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

impl<T> Nil for Shared<T> {
    fn is_nil(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Empty for Shared<T> {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// A sorted map of strings: labels, annotations. Clones share it; an empty one takes no memory.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringMap(Option<Arc<[(SmolStr, SmolStr)]>>);

impl StringMap {
    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&SmolStr> {
        let items = self.items();
        items.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok().map(|at| &items[at].1)
    }

    /// Returns names and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&SmolStr, &SmolStr)> {
        self.items().iter().map(|(key, value)| (key, value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.items().len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Calls a function with each name and value, for interning: they must stay equal. None is called if a clone shares the map.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&mut SmolStr)) {
        for (key, value) in self.0.as_mut().and_then(Arc::get_mut).unwrap_or_default() {
            change(key);
            change(value);
        }
    }

    /// Whether both share their memory.
    pub fn shares(&self, other: &StringMap) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    fn items(&self) -> &[(SmolStr, SmolStr)] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Empty for StringMap {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Nil for StringMap {
    fn is_nil(&self) -> bool {
        self.is_empty()
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// For duplicate names the last value is kept.
impl<K: Into<SmolStr>, V: Into<SmolStr>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> StringMap {
        let mut items: Vec<(SmolStr, SmolStr)> =
            items.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        items.reverse();
        items.sort_by(|a, b| a.0.cmp(&b.0));
        items.dedup_by(|later, earlier| later.0 == earlier.0);
        StringMap((!items.is_empty()).then(|| items.into()))
    }
}

impl From<&StringMap> for BTreeMap<String, String> {
    fn from(map: &StringMap) -> Self {
        map.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }
}

impl Serialize for StringMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = StringMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut items: Vec<(SmolStr, SmolStr)> = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some((key, value)) = map.next_entry::<SmolStr, Option<SmolStr>>()? {
                    items.push((key, value.unwrap_or_default()));
                }
                Ok(items.into_iter().collect())
            }
        }
        deserializer.deserialize_map(Strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_sorted_and_keep_the_last_value() {
        let map: StringMap = serde_json::from_str(r#"{"b": "1", "a": null, "b": "2"}"#).unwrap();
        assert_eq!(serde_json::to_string(&map).unwrap(), r#"{"a":"","b":"2"}"#);
        assert_eq!((map.get("b").map(SmolStr::as_str), map.get("c"), map.len()), (Some("2"), None, 2));
        assert_eq!(serde_json::from_str::<StringMap>("{}").unwrap(), StringMap::default());
        assert!(serde_json::from_str::<StringMap>(r#"{"a": 1}"#).is_err());
    }
}

//! Maps and sets as JSON and YAML.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Map, Set};

/// An entry as `{k: .., v: ..}`.
#[derive(Serialize, Deserialize)]
struct Entry<K, V> {
    k: K,
    v: V,
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|(k, v)| Entry { k, v }))
    }
}

impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Deserialize<'de> for Map<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Option::<Vec<Entry<K, V>>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(entries.into_iter().map(|Entry { k, v }| (k, v)).collect())
    }
}

impl<K: Serialize> Serialize for Set<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, K: Deserialize<'de> + Ord + Clone> Deserialize<'de> for Set<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Option::<Vec<K>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(keys.into_iter().collect())
    }
}

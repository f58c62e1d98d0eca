//! A reader of a source's events, for tests.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{Key, SourceError, WatchEvent};

/// The objects according to the events of a watch: a list replaces all, changes follow.
///
/// ```
/// use k8s_types::testing::Reader;
/// use k8s_types::{Key, WatchEvent};
///
/// let mut reader = Reader::default();
/// let json = r#"{"metadata": {"name": "web"}, "spec": 7}"#.into();
/// for event in [WatchEvent::Restart, WatchEvent::Applied { json, origin: "".into() }, WatchEvent::Listed] {
///     reader.apply(Ok(event));
/// }
/// assert_eq!(reader.objects()[&Key::new("", "web")]["spec"], 7);
/// assert_eq!(reader.apply(Ok(WatchEvent::Deleted(Key::new("", "web")))).unwrap(), "deleted web");
/// ```
#[derive(Debug, Default)]
pub struct Reader {
    objects: BTreeMap<Key, Value>,
    list: Option<BTreeMap<Key, Value>>,
    /// The number of complete lists.
    pub lists: usize,
    /// Errors, oldest first.
    pub errors: Vec<String>,
}

impl Reader {
    /// Applies an event; returns it as a short text: `restart`, `listed`, `applied web`, `unreadable web`, `deleted
    /// web`; none for errors and keep-alives.
    ///
    /// # Panics
    /// If a list ends that has not begun, or an object is invalid.
    pub fn apply(&mut self, event: Result<WatchEvent, SourceError>) -> Option<String> {
        let known = self.list.as_mut().unwrap_or(&mut self.objects);
        match event {
            Ok(WatchEvent::Restart) => {
                self.list = Some(BTreeMap::new());
                Some("restart".to_owned())
            }
            Ok(WatchEvent::Listed) => {
                self.objects = self.list.take().expect("a list that ends has begun");
                self.lists += 1;
                Some("listed".to_owned())
            }
            Ok(WatchEvent::Applied { json, .. }) => {
                let object: Value = serde_json::from_slice(&json).expect("objects are whole");
                let key = key(&object);
                let said = format!("applied {}", key.name);
                known.insert(key, object);
                Some(said)
            }
            Ok(WatchEvent::Deleted(key)) => {
                known.remove(&key);
                Some(format!("deleted {}", key.name))
            }
            Ok(WatchEvent::Unreadable { key, reason }) => {
                let before = key.as_ref().and_then(|key| Some((key.clone(), self.objects.get(key)?.clone())));
                if let Some(list) = &mut self.list {
                    list.extend(before);
                }
                self.errors.push(reason);
                Some(format!("unreadable {}", key.unwrap_or_default().name))
            }
            Ok(WatchEvent::Progress) => None,
            Err(error) => {
                self.errors.push(error.0);
                None
            }
        }
    }

    /// Returns the objects of the last complete list with the changes since.
    pub fn objects(&self) -> &BTreeMap<Key, Value> {
        &self.objects
    }

    /// Whether no list is incomplete.
    pub fn is_complete(&self) -> bool {
        self.list.is_none()
    }

    /// Returns the versions of the objects.
    pub fn versions(&self) -> BTreeMap<Key, String> {
        versions(self.objects.values())
    }
}

/// Returns the key of an object.
pub fn key(object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

/// Returns the versions of objects by key.
pub fn versions<'o>(objects: impl IntoIterator<Item = &'o Value>) -> BTreeMap<Key, String> {
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    objects.into_iter().map(|object| (key(object), version(object))).collect()
}

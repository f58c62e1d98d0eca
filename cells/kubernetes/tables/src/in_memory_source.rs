//! A source of objects in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use k8s_types::{Key, Kind, Selection, SmolStr, Source, SourceError, WatchEvent};

use crate::filter::Filter;

/// A source of objects in memory, for folders and tests. Cheap to clone.
///
/// A watch receives all changes of a kind in one [`write`](InMemorySource::write) together, so that they are one
/// transaction of a table, up to 1,000 objects. Changes of several kinds are sent to all watches before any of them is
/// read.
#[derive(Clone)]
pub struct InMemorySource(Arc<Inner>);

struct Inner {
    name: String,
    kinds: &'static [Kind],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Kind, BTreeMap<Key, Raw>>,
    complete: bool,
    readers: Vec<Reader>,
}

/// An object in a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Raw {
    /// The object.
    pub json: Bytes,
    /// The location where it was read.
    pub origin: SmolStr,
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object is new or has changed.
    Set(Kind, Key, Raw),
    /// The object was deleted.
    Delete(Kind, Key),
}

type Event = Result<WatchEvent, SourceError>;

struct Reader {
    kind: Kind,
    filter: Filter,
    events: mpsc::UnboundedSender<Event>,
}

impl Reader {
    fn send(&self, event: WatchEvent) {
        // Fails for a closed receiver, which is removed at the next change.
        _ = self.events.send(Ok(event));
    }

    /// Sends a list of all objects.
    fn list(&self, state: &State) {
        self.send(WatchEvent::Restart);
        if !state.complete {
            return;
        }
        for (key, raw) in state.objects.get(&self.kind).into_iter().flatten() {
            if self.filter.has(key, &raw.json) {
                self.send(raw.applied());
            }
        }
        self.send(WatchEvent::Listed);
    }

    fn change(&self, key: &Key, before: Option<&Raw>, now: Option<&Raw>) {
        let has = |raw: &&Raw| self.filter.has(key, &raw.json);
        match (before.filter(has), now.filter(has)) {
            (_, Some(now)) => self.send(now.applied()),
            (Some(_), None) => self.send(WatchEvent::Deleted(key.clone())),
            (None, None) => {}
        }
    }
}

impl Raw {
    fn applied(&self) -> WatchEvent {
        WatchEvent::Applied { json: self.json.clone(), origin: self.origin.clone() }
    }
}

impl InMemorySource {
    /// Creates an empty source of these kinds, which is not complete.
    pub fn new(name: &str, kinds: &'static [Kind]) -> InMemorySource {
        InMemorySource(Arc::new(Inner { name: name.to_owned(), kinds, state: Mutex::default() }))
    }

    /// Applies changes, in order; equal objects are not sent. `complete` completes the first list, before which watches
    /// receive nothing.
    pub fn write(&self, changes: Vec<Change>, complete: bool) {
        let mut state = self.0.state.lock();
        let State { objects, complete: completed, readers } = &mut *state;
        readers.retain(|reader| !reader.events.is_closed());
        for change in changes {
            let (kind, key, now) = match change {
                Change::Set(kind, key, raw) => (kind, key, Some(raw)),
                Change::Delete(kind, key) => (kind, key, None),
            };
            let of_kind = objects.entry(kind).or_default();
            let before = match &now {
                Some(now) => of_kind.insert(key.clone(), now.clone()),
                None => of_kind.remove(&key),
            };
            if *completed && before != now {
                let readers = readers.iter().filter(|reader| reader.kind == kind);
                readers.for_each(|reader| reader.change(&key, before.as_ref(), now.as_ref()));
            }
        }
        if complete && !state.complete {
            state.complete = true;
            state.readers.iter().for_each(|reader| reader.list(&state));
        }
    }

    /// Returns the names of the objects of a kind.
    #[cfg(any(test, feature = "test-util"))]
    pub fn keys(&self, kind: Kind) -> Vec<Key> {
        self.0.state.lock().objects.get(&kind).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Whether its first list is complete.
    #[cfg(any(test, feature = "test-util"))]
    pub fn is_complete(&self) -> bool {
        self.0.state.lock().complete
    }

    /// Sends another list of all objects.
    #[cfg(any(test, feature = "test-util"))]
    pub fn list_again(&self) {
        let state = self.0.state.lock();
        state.readers.iter().for_each(|reader| reader.list(&state));
    }

    /// Sends an error to all watches.
    #[cfg(any(test, feature = "test-util"))]
    pub fn fail(&self, error: &str) {
        let state = self.0.state.lock();
        state.readers.iter().for_each(|reader| drop(reader.events.send(Err(SourceError(error.to_owned())))));
    }
}

impl Source for InMemorySource {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn has(&self, kind: Kind) -> bool {
        self.0.kinds.contains(&kind)
    }

    /// Returns false: a folder may have pods without the objects of their namespaces.
    fn has_namespaces(&self) -> bool {
        false
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Event> {
        let filter = match Filter::new(&selection) {
            Ok(filter) => filter,
            Err(error) => return stream::iter([Err(error)]).chain(stream::pending()).boxed(),
        };
        let (events, mut receiver) = mpsc::unbounded_channel();
        let reader = Reader { kind: selection.kind, filter, events };
        let mut state = self.0.state.lock();
        reader.list(&state);
        state.readers.push(reader);
        stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed()
    }
}

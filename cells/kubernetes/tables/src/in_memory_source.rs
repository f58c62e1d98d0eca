//! Objects in memory as a source.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use k8s_types::{Key, Kind, Selection, SmolStr, Source, SourceError, WatchEvent};

use crate::filter::Filter;

/// A source whose objects are in memory: those of a folder, or of a test. Cheap to clone.
///
/// A watch gets all changes of a kind of one [`write`](InMemorySource::write) at once, so that they are one transaction of a
/// table up to 1,000 objects; of several kinds it is there for all of them before anything reads the first.
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

/// An object as a source has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Raw {
    /// The object.
    pub json: Bytes,
    /// Where it was read.
    pub origin: SmolStr,
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It is there and like this.
    Set(Kind, Key, Raw),
    /// It is gone.
    Delete(Kind, Key),
}

type Event = Result<WatchEvent, SourceError>;

struct Reader {
    kind: Kind,
    filter: Filter,
    events: mpsc::UnboundedSender<Event>,
}

impl Reader {
    fn say(&self, event: WatchEvent) {
        // Closed receivers are removed at the next change.
        _ = self.events.send(Ok(event));
    }

    /// All that there is.
    fn list(&self, state: &State) {
        self.say(WatchEvent::Restart);
        if !state.complete {
            return;
        }
        for (key, raw) in state.objects.get(&self.kind).into_iter().flatten() {
            if self.filter.has(key, &raw.json) {
                self.say(raw.applied());
            }
        }
        self.say(WatchEvent::Listed);
    }

    fn change(&self, key: &Key, before: Option<&Raw>, now: Option<&Raw>) {
        let has = |raw: &&Raw| self.filter.has(key, &raw.json);
        match (before.filter(has), now.filter(has)) {
            (_, Some(now)) => self.say(now.applied()),
            (Some(_), None) => self.say(WatchEvent::Deleted(key.clone())),
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
    /// An empty one of this name, for objects of these kinds. It is not complete.
    pub fn new(name: &str, kinds: &'static [Kind]) -> InMemorySource {
        InMemorySource(Arc::new(Inner { name: name.to_owned(), kinds, state: Mutex::default() }))
    }

    /// Applies changes, in order; equal objects are not sent. `complete` ends the first list: before
    /// it, readers get nothing.
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

    /// The objects of a kind.
    #[cfg(any(test, feature = "test-util"))]
    pub fn keys(&self, kind: Kind) -> Vec<Key> {
        self.0.state.lock().objects.get(&kind).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Whether its first list is complete.
    #[cfg(any(test, feature = "test-util"))]
    pub fn is_complete(&self) -> bool {
        self.0.state.lock().complete
    }

    /// Lists all objects again.
    #[cfg(any(test, feature = "test-util"))]
    pub fn list_again(&self) {
        let state = self.0.state.lock();
        state.readers.iter().for_each(|reader| reader.list(&state));
    }

    /// Sends an error.
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

    /// A folder may have pods and no word of their namespaces.
    fn has_namespaces(&self) -> bool {
        false
    }

    fn watch(&self, what: Selection) -> BoxStream<'static, Event> {
        let filter = match Filter::new(&what) {
            Ok(filter) => filter,
            Err(error) => return stream::iter([Err(error)]).chain(stream::pending()).boxed(),
        };
        let (events, mut receiver) = mpsc::unbounded_channel();
        let reader = Reader { kind: what.kind, filter, events };
        let mut state = self.0.state.lock();
        reader.list(&state);
        state.readers.push(reader);
        stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed()
    }
}

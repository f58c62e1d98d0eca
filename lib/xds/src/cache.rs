//! The resources of one type, and the streams of their clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::stream::{Event, ProtocolError, Request, Stream};

/// An encoded resource.
pub type Value = Arc<[u8]>;

/// A stream of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

/// A response to a client. Its nonce is its version, in decimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The version.
    pub version: u64,
    /// All resources that the client subscribes to, in the order of their names.
    pub resources: Vec<Value>,
}

/// The progress of a change towards the clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// No client subscribes to the resource.
    NoClient,
    /// A client has not answered yet.
    Pending,
    /// All clients have accepted it.
    Done,
    /// A client refuses the version with the change, or a later one, for this reason.
    Refused(String),
}

#[derive(Debug)]
struct Resource {
    /// The version at which it was changed.
    version: u64,
    value: Value,
}

/// The resources of one type, with their clients. Operations are linear in the resources of a subscription at most.
#[derive(Debug, Default)]
pub struct Cache {
    version: u64,
    resources: BTreeMap<Arc<str>, Resource>,
    streams: BTreeMap<StreamId, Stream>,
    next_stream: u64,
    is_held: bool,
    was_acked: bool,
}

impl Cache {
    /// Returns a cache without resources, at version 1.
    #[must_use]
    pub fn new() -> Cache {
        Cache { version: 1, ..Cache::default() }
    }

    /// Sets or deletes resources. Returns the version with the change; `None` if nothing differs.
    pub fn update(&mut self, changes: impl IntoIterator<Item = (Arc<str>, Option<Value>)>) -> Option<u64> {
        let next = self.version + 1;
        let mut has_changed = false;
        for (name, value) in changes {
            match value {
                Some(value) if self.resources.get(&name).is_some_and(|old| old.value == value) => {}
                Some(value) => {
                    self.resources.insert(name, Resource { version: next, value });
                    has_changed = true;
                }
                None => has_changed |= self.resources.remove(&name).is_some(),
            }
        }
        if has_changed {
            self.version = next;
        }
        has_changed.then_some(next)
    }

    /// Replaces all resources. Returns the version with the change; `None` if nothing differs.
    pub fn replace(&mut self, resources: BTreeMap<Arc<str>, Value>) -> Option<u64> {
        let gone: Vec<_> =
            self.resources.keys().filter(|name| !resources.contains_key(*name)).cloned().collect();
        let gone = gone.into_iter().map(|name| (name, None));
        self.update(gone.chain(resources.into_iter().map(|(name, value)| (name, Some(value)))))
    }

    /// Returns the version of the resources.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether there are no resources.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Holds back responses, or releases them: while resources are not all known, a client that replaces its state by
    /// them would lose the others. Returns whether that is a change.
    pub fn hold(&mut self, is_held: bool) -> bool {
        std::mem::replace(&mut self.is_held, is_held) != is_held
    }

    /// Opens a stream.
    pub fn open(&mut self) -> StreamId {
        self.next_stream += 1;
        let id = StreamId(self.next_stream);
        self.streams.insert(id, Stream::default());
        id
    }

    /// Makes a stream that of an observer: what it accepts or refuses does not count.
    pub fn observe(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_observer = true;
        }
    }

    /// Closes a stream.
    pub fn close(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    /// Whether a client has a stream with a request.
    #[must_use]
    pub fn has_clients(&self) -> bool {
        self.streams.values().any(|stream| stream.names.is_some() && !stream.is_observer)
    }

    /// Whether a client has ever accepted a response.
    #[must_use]
    pub fn was_acked(&self) -> bool {
        self.was_acked
    }

    /// Handles a request of a stream.
    ///
    /// # Errors
    /// If it breaks the protocol; the stream is to be closed.
    pub fn request(&mut self, id: StreamId, request: Request) -> Result<Event, ProtocolError> {
        let stream = self.streams.get_mut(&id).ok_or(ProtocolError::Ended)?;
        let event = stream.request(request)?;
        match &event {
            // Raised also if equal: the resources need not be those of that version.
            Event::First(held) if *held >= self.version => self.version = held + 1,
            Event::Ack(_) => self.was_acked |= !stream.is_observer,
            Event::First(_) | Event::Nack { .. } | Event::Subscription => {}
        }
        Ok(event)
    }

    /// Returns the response that a stream is due, which counts as sent; `None` if the client has to answer the last one
    /// first, or would get the same again.
    pub fn response(&mut self, id: StreamId) -> Option<Response> {
        let stream = self.streams.get_mut(&id)?;
        let names = stream.names.as_ref()?;
        if self.is_held || stream.in_flight {
            return None;
        }
        let of_all = || self.resources.iter();
        let of_names = || names.iter().filter_map(|name| self.resources.get_key_value(name));
        let content: BTreeMap<Arc<str>, u64> = match names.is_empty() {
            true => of_all().map(|(name, resource)| (name.clone(), resource.version)).collect(),
            false => of_names().map(|(name, resource)| (name.clone(), resource.version)).collect(),
        };
        // A client that subscribes to all resources waits for the first answer, also for an empty one.
        let is_first = stream.sent == 0 && names.is_empty();
        if !is_first && content == stream.content {
            return None;
        }
        // Another subscription at the same version is another response: nonces must not repeat.
        if stream.sent == self.version {
            self.version += 1;
        }
        let resources = match names.is_empty() {
            true => of_all().map(|(_, resource)| resource.value.clone()).collect(),
            false => of_names().map(|(_, resource)| resource.value.clone()).collect(),
        };
        stream.content = content;
        stream.sent = self.version;
        stream.in_flight = true;
        Some(Response { version: self.version, resources })
    }

    /// Returns the progress of a change of a resource that `update` returned this version for.
    #[must_use]
    pub fn delivery(&self, name: &str, version: u64) -> Delivery {
        let mut found = Delivery::NoClient;
        for stream in self.streams.values().filter(|stream| stream.includes(name) && !stream.is_observer) {
            if stream.has_acked(name, version) {
                if found == Delivery::NoClient {
                    found = Delivery::Done;
                }
                continue;
            }
            match &stream.nacked {
                Some((nacked, error)) if *nacked >= version => return Delivery::Refused(error.clone()),
                _ => found = Delivery::Pending,
            }
        }
        found
    }
}

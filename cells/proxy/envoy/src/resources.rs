//! The caches of all types, with the streams of clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use envoy_api::Message;
use envoy_api::discovery::DiscoveryRequest;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;
use xds::{Cache, Delivery, Event, Request, Response, StreamId, Value};

use crate::kind::Kind;
use crate::metrics::Counters;

/// The longest text of a client in logs and health.
const MAX_TEXT: usize = 512;

/// The source of a resource. Each replaces its own only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Policies of endpoints.
    Policy,
    /// Envoy configurations of the cluster.
    Configs,
    /// Secrets of the cluster.
    Secrets,
}

/// The resources of one type with their owners.
struct Owned {
    cache: Cache,
    owners: BTreeMap<Arc<str>, Owner>,
    /// The owners that hold back responses.
    holds: BTreeSet<Owner>,
}

/// All resources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Resources {
    caches: Arc<Mutex<[Owned; Kind::ALL.len()]>>,
    /// Changes with each change of a cache.
    changed: Arc<watch::Sender<()>>,
    counters: Counters,
}

/// Without the resources: some are secrets.
impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resources")
    }
}

/// A stream of a client, closed on drop.
pub(crate) struct Stream {
    resources: Resources,
    kind: Kind,
    id: StreamId,
    is_first: bool,
}

impl Resources {
    pub(crate) fn new(counters: Counters) -> Resources {
        let owned = |_| Owned { cache: Cache::new(), owners: BTreeMap::new(), holds: BTreeSet::new() };
        let caches = Arc::new(Mutex::new(std::array::from_fn(owned)));
        Resources { caches, changed: Arc::new(watch::Sender::new(())), counters }
    }

    /// Returns the counters of the Envoy that gets them.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns a receiver that changes with resources, clients and their answers.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn change<T>(&self, kind: Kind, change: impl FnOnce(&mut Cache) -> T) -> T {
        let result = change(&mut self.caches.lock()[kind as usize].cache);
        self.changed.send_replace(());
        result
    }

    fn read<T>(&self, kind: Kind, read: impl FnOnce(&Cache) -> T) -> T {
        read(&self.caches.lock()[kind as usize].cache)
    }

    /// Replaces all resources of a type that an owner has. A name that another owner has stays that one's. Returns the
    /// version with the change; `None` if nothing differs.
    pub(crate) fn replace(
        &self,
        owner: Owner,
        kind: Kind,
        mut resources: BTreeMap<Arc<str>, Value>,
    ) -> Option<u64> {
        let version = {
            let mut caches = self.caches.lock();
            let Owned { cache, owners, .. } = &mut caches[kind as usize];
            resources.retain(|name, _| owners.get(name).is_none_or(|other| *other == owner));
            let gone = |(name, other): (&Arc<str>, &Owner)| {
                (*other == owner && !resources.contains_key(name)).then(|| name.clone())
            };
            let gone: Vec<Arc<str>> = owners.iter().filter_map(gone).collect();
            gone.iter().for_each(|name| _ = owners.remove(name));
            owners.extend(resources.keys().map(|name| (name.clone(), owner)));
            let gone = gone.into_iter().map(|name| (name, None));
            cache.update(gone.chain(resources.into_iter().map(|(name, value)| (name, Some(value)))))?
        };
        self.changed.send_replace(());
        Some(version)
    }

    /// Returns whether a text names a resource of another owner, such as a refusal that is about that one.
    pub(crate) fn names_other(&self, owner: Owner, kind: Kind, text: &str) -> bool {
        let caches = self.caches.lock();
        let others = caches[kind as usize].owners.iter().filter(|(_, other)| **other != owner);
        others.into_iter().any(|(name, _)| text.contains(&**name))
    }

    /// Sets or deletes resources.
    pub(crate) fn update(&self, kind: Kind, changes: Vec<(Arc<str>, Option<Value>)>) {
        if self.caches.lock()[kind as usize].cache.update(changes).is_some() {
            self.changed.send_replace(());
        }
    }

    /// Holds back responses of a type, or releases them; they come when no owner holds them.
    pub(crate) fn hold(&self, owner: Owner, kind: Kind, is_held: bool) {
        let has_changed = {
            let mut caches = self.caches.lock();
            let Owned { cache, holds, .. } = &mut caches[kind as usize];
            match is_held {
                true => _ = holds.insert(owner),
                false => _ = holds.remove(&owner),
            }
            cache.hold(!holds.is_empty())
        };
        if has_changed {
            self.changed.send_replace(());
        }
    }

    /// Whether no source has a resource of a type.
    pub(crate) fn is_empty(&self, kind: Kind) -> bool {
        self.caches.lock()[kind as usize].owners.is_empty()
    }

    /// Whether a client has requested resources of a type.
    pub(crate) fn has_clients(&self, kind: Kind) -> bool {
        self.read(kind, Cache::has_clients)
    }

    /// Returns the version of a type.
    pub(crate) fn version(&self, kind: Kind) -> u64 {
        self.read(kind, Cache::version)
    }

    /// Returns the progress of a change towards the clients; see [`Cache::delivery`].
    pub(crate) fn delivery(&self, kind: Kind, name: &str, version: u64) -> Delivery {
        self.read(kind, |cache| cache.delivery(name, version))
    }

    /// Opens a stream.
    pub(crate) fn open(&self, kind: Kind) -> Stream {
        let id = self.change(kind, Cache::open);
        Stream { resources: self.clone(), kind, id, is_first: true }
    }
}

impl Stream {
    /// Handles a request.
    pub(crate) fn request(&mut self, request: DiscoveryRequest) -> Result<(), Status> {
        let url = self.kind.type_url();
        if !request.type_url.is_empty() && request.type_url != url {
            return Err(Status::invalid_argument(format!("this service has resources of the type {url}")));
        }
        if std::mem::take(&mut self.is_first) {
            self.identify(&request)?;
        }
        let names: BTreeSet<Arc<str>> = request.resource_names.into_iter().map(Arc::from).collect();
        let error = request.error_detail.map(|status| status.message).unwrap_or_default();
        let request = Request {
            version: request.version_info,
            nonce: request.response_nonce,
            names,
            error: error.chars().take(MAX_TEXT).collect(),
        };
        let (kind, id) = (self.kind, self.id);
        let event = self.resources.change(kind, |cache| cache.request(id, request));
        match event.map_err(|error| Status::invalid_argument(error.to_string()))? {
            Event::Ack(_) => self.resources.counters.answered(&url, true),
            Event::Nack { version, error } => {
                self.resources.counters.answered(&url, false);
                tracing::warn!(%url, version, %error, "Envoy refuses resources");
            }
            Event::First(version) => tracing::debug!(%url, version, "Envoy requests resources"),
            Event::Subscription => {}
        }
        Ok(())
    }

    /// Checks the id of the node, `type~ip~id~domain`. Only the Envoy of this agent has a loopback address in it: what
    /// other clients acknowledge does not count.
    fn identify(&self, request: &DiscoveryRequest) -> Result<(), Status> {
        let id = request.node.as_ref().map(|node| node.id.as_str()).unwrap_or_default();
        let parts: Vec<&str> = id.split('~').collect();
        let [_, ip, _, _] = parts[..] else {
            return Err(Status::invalid_argument(
                "the first request needs the id of a node: TYPE~IP~ID~DOMAIN",
            ));
        };
        if ip != "127.0.0.1" {
            self.resources.change(self.kind, |cache| cache.observe(self.id));
        }
        Ok(())
    }

    /// Returns the response that is due, which counts as sent.
    pub(crate) fn response(&self) -> Option<Response> {
        let mut caches = self.resources.caches.lock();
        // Listeners refer to clusters: Envoy has to know these first.
        let clusters = &caches[Kind::Clusters as usize].cache;
        if self.kind == Kind::Listeners && !clusters.is_empty() && !clusters.was_acked() {
            return None;
        }
        caches[self.kind as usize].cache.response(self.id)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.resources.subscribe()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.resources.change(self.kind, |cache| cache.close(self.id));
    }
}

/// Returns an encoded resource.
pub(crate) fn encoded(message: &impl Message) -> Value {
    message.encode_to_vec().into()
}

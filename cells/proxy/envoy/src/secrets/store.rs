//! The secrets that are followed, as last read; those of whole namespaces are resources of SDS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hive::{JobCx, JobGroup};
use k8s_types::{Resource as _, Source};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::follow::follow;
use super::secret::Secret;
use crate::kind::Kind;
use crate::resources::{Owner, Resources};

/// Secrets by their names.
pub(crate) type Secrets = BTreeMap<Arc<str>, Arc<Secret>>;

/// A selection of secrets: those of a namespace, or one of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Option<Arc<str>>,
}

impl Scope {
    fn covers(&self, namespace: &str, name: &str) -> bool {
        *self.namespace == *namespace && self.name.as_ref().is_none_or(|own| **own == *name)
    }
}

/// The result of a lookup.
pub(crate) enum Lookup {
    Found(Arc<Secret>),
    /// No source has it.
    Missing,
    /// It is not followed, or not all sources have been listed.
    Unknown,
}

/// The secrets of a selection in one source. They are all, once it has been listed.
type Listed = Option<Secrets>;

#[derive(Default)]
struct State {
    /// The number of sources; `None` until they are followed.
    sources: Option<usize>,
    namespaces: BTreeSet<Scope>,
    references: BTreeSet<Scope>,
    listed: BTreeMap<(Scope, usize), Secrets>,
}

impl State {
    fn listed(&self, scope: &Scope) -> impl Iterator<Item = Listed> {
        let sources = 0..self.sources.unwrap_or_default();
        sources.map(|number| self.listed.get(&(scope.clone(), number)).cloned())
    }
}

/// The secrets of all sources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store {
    resources: Resources,
    state: Arc<Mutex<State>>,
    scopes: Arc<watch::Sender<BTreeSet<Scope>>>,
    changed: Arc<watch::Sender<()>>,
}

/// Without the secrets.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    pub(crate) fn new(resources: Resources) -> Store {
        Store {
            resources,
            state: Arc::default(),
            scopes: Arc::new(watch::Sender::new(BTreeSet::new())),
            changed: Arc::new(watch::Sender::new(())),
        }
    }

    /// Follows the sources that have secrets, by a job each; those of the first caller.
    pub(crate) fn start(&self, sources: &[Arc<dyn Source>], jobs: &JobGroup) {
        let sources = sources.iter().filter(|source| source.has(k8s_types::core::Secret::KIND));
        let sources: Vec<Arc<dyn Source>> = sources.cloned().collect();
        {
            let mut state = self.state.lock();
            if state.sources.is_some() {
                return;
            }
            state.sources = Some(sources.len());
        }
        for (number, source) in sources.into_iter().enumerate() {
            let (store, job) = (self.clone(), format!("secrets-{}", source.name()));
            jobs.one_shot(job, move |cx: JobCx| follow(store, number, source, cx)).add();
        }
    }

    /// Adds a namespace: its secrets are resources of SDS, `NAMESPACE/NAME`. None are given before all namespaces have
    /// been listed: an Envoy that has run while the agent was away would lose some.
    pub(crate) fn add_namespace(&self, namespace: &str) {
        self.state.lock().namespaces.insert(Scope { namespace: namespace.into(), name: None });
        self.update_scopes();
        self.publish();
    }

    /// Replaces the single secrets that are followed.
    pub(crate) fn set_references(&self, references: BTreeSet<Scope>) {
        {
            let mut state = self.state.lock();
            if state.references == references {
                return;
            }
            state.references = references;
        }
        self.update_scopes();
    }

    fn update_scopes(&self) {
        let state = self.state.lock();
        let scopes: BTreeSet<Scope> = &state.namespaces | &state.references;
        self.scopes.send_if_modified(|current| std::mem::replace(current, scopes.clone()) != scopes);
    }

    /// Returns the selections to follow.
    pub(crate) fn scopes(&self) -> watch::Receiver<BTreeSet<Scope>> {
        self.scopes.subscribe()
    }

    /// Returns a receiver that changes with secrets.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Replaces the secrets of a selection in a source; `None` if it is not followed any more.
    pub(crate) fn set(&self, scope: &Scope, source: usize, secrets: Listed) {
        let has_changed = {
            let mut state = self.state.lock();
            let key = (scope.clone(), source);
            match secrets {
                Some(secrets) => state.listed.insert(key, secrets.clone()) != Some(secrets),
                None => state.listed.remove(&key).is_some(),
            }
        };
        if has_changed {
            self.publish();
            self.changed.send_replace(());
        }
    }

    /// Returns a secret.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Lookup {
        let state = self.state.lock();
        let scopes = state.namespaces.iter().chain(&state.references);
        let (mut is_followed, mut is_complete) = (false, true);
        for scope in scopes.filter(|scope| scope.covers(namespace, name)) {
            is_followed = true;
            for secrets in state.listed(scope) {
                match secrets {
                    None => is_complete = false,
                    Some(secrets) => {
                        if let Some(secret) = secrets.get(name) {
                            return Lookup::Found(secret.clone());
                        }
                    }
                }
            }
        }
        match is_followed && is_complete {
            true => Lookup::Missing,
            false => Lookup::Unknown,
        }
    }

    /// Publishes the secrets of namespaces.
    fn publish(&self) {
        let state = self.state.lock();
        let mut resources = BTreeMap::new();
        let mut is_complete = true;
        for scope in &state.namespaces {
            for secrets in state.listed(scope) {
                is_complete &= secrets.is_some();
                for (name, secret) in secrets.unwrap_or_default() {
                    let name = format!("{}/{name}", scope.namespace);
                    if let Ok(resource) = secret.resource(&name) {
                        resources.insert(name.into(), resource);
                    }
                }
            }
        }
        self.resources.replace(Owner::Secrets, Kind::Secrets, resources);
        self.resources.hold(Owner::Secrets, Kind::Secrets, !is_complete);
    }
}

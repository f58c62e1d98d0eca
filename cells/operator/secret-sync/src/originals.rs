//! Secrets as they are followed: one original, or all of the namespace of copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_tables::{ObjectEvent, Row};
use k8s_types::core::Secret;
use k8s_types::{SmolStr, SourceError};

/// An event of a watch of secrets.
pub(crate) type Event = Result<ObjectEvent<Row<Secret>>, SourceError>;

/// The secrets of a selection by name. Without `Debug`: nothing prints them.
#[derive(Default)]
pub(crate) struct Secrets {
    secrets: BTreeMap<SmolStr, Arc<Secret>>,
    /// Those of a list that is not complete yet: the former ones count meanwhile.
    listing: Option<BTreeMap<SmolStr, Arc<Secret>>>,
    is_listed: bool,
    error: Option<SourceError>,
}

/// The names of secrets that an event may have changed.
pub(crate) enum Changed {
    Nothing,
    One(SmolStr),
    All,
}

impl Secrets {
    /// Whether all are known.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns a secret.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Secret>> {
        self.secrets.get(name)
    }

    /// Returns the names of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &SmolStr> {
        self.secrets.keys()
    }

    /// Returns the error of the watch, while there is one.
    pub(crate) fn error(&self) -> Option<&SourceError> {
        self.error.as_ref()
    }

    /// Applies an event.
    pub(crate) fn apply(&mut self, event: Event) -> Changed {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.error = Some(error);
                return Changed::Nothing;
            }
        };
        self.error = None;
        match event {
            ObjectEvent::Restart => self.listing = Some(BTreeMap::new()),
            ObjectEvent::Listed => {
                self.secrets = self.listing.take().unwrap_or_default();
                self.is_listed = true;
                return Changed::All;
            }
            ObjectEvent::Applied(row) => {
                let name = row.metadata.name.clone();
                let secrets = self.listing.as_mut().unwrap_or(&mut self.secrets);
                secrets.insert(name.clone(), Arc::new(row.object));
                return Changed::One(name);
            }
            ObjectEvent::Deleted(key) => {
                self.listing.as_mut().unwrap_or(&mut self.secrets).remove(&key.name);
                return Changed::One(key.name);
            }
            ObjectEvent::Invalid(_) | ObjectEvent::Progress => {}
        }
        Changed::Nothing
    }
}

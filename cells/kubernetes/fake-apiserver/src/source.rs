//! The source: lists and watches.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use k8s_types::selector::FieldSelector;
use k8s_types::{Key, Kind, Selection, SmolStr, Source, SourceError, WatchEvent};
use serde_json::Value;
use statedb::{Obj, Snapshot, Table};

use crate::object::Object;
use crate::tracker::{Tracker, list};
use crate::types::Type;

/// The name of the source, the same as of the real client.
pub const SOURCE: &str = "daemon-k8s";

/// Lists are in order of names, changes in order of revisions; changes of an object between two reads are coalesced.
/// Label selectors are ignored.
impl Source for Tracker {
    fn name(&self) -> &str {
        SOURCE
    }

    fn has(&self, _: Kind) -> bool {
        true
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        match selection.fields.parse() {
            Ok(fields) => {
                let watch = Watch {
                    objects: self.objects(),
                    of: selection.kind.into(),
                    namespace: selection.namespace,
                    fields,
                    listed_revision: None,
                    sent: HashSet::new(),
                    queue: VecDeque::new(),
                };
                stream::unfold(watch, |watch| watch.next().map(Some)).boxed()
            }
            Err(error) => {
                stream::iter([Err(SourceError(error.to_string()))]).chain(stream::pending()).boxed()
            }
        }
    }
}

struct Watch {
    objects: Table<Object>,
    of: Type,
    namespace: Option<SmolStr>,
    fields: FieldSelector,
    /// The revision up to which all changes were sent; none before the first list.
    listed_revision: Option<u64>,
    /// The objects that were sent and not deleted.
    sent: HashSet<Key>,
    /// Pending events.
    queue: VecDeque<WatchEvent>,
}

impl Watch {
    async fn next(mut self) -> (Result<WatchEvent, SourceError>, Watch) {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return (Ok(event), self);
            }
            let snapshot = self.objects.snapshot();
            self.collect(&snapshot);
            if self.queue.is_empty() {
                let watch = self.objects.watch(&snapshot);
                drop(snapshot);
                watch.changed().await;
            }
        }
    }

    fn collect(&mut self, snapshot: &Snapshot) {
        let changed: Option<Vec<Obj<Object>>> = self.listed_revision.and_then(|listed_revision| {
            let later = self.objects.by_revision(snapshot, listed_revision + 1);
            let changed: Vec<Obj<Object>> = later.filter(|object| self.concerns(object)).cloned().collect();
            // After a resync in between, this version is too old to continue from.
            changed.iter().all(|object| object.resync() <= listed_revision).then_some(changed)
        });
        match changed {
            Some(changed) => changed.iter().for_each(|object| self.change(object)),
            None => self.list(snapshot),
        }
        self.listed_revision = Some(self.objects.revision(snapshot));
    }

    fn concerns(&self, object: &Object) -> bool {
        let namespace = self.namespace.as_ref().is_none_or(|wanted| *wanted == object.name().namespace);
        namespace && object.domain() == self.of.domain() && *object.gvr() == self.of.gvr
    }

    fn list(&mut self, snapshot: &Snapshot) {
        self.sent.clear();
        self.queue.push_back(WatchEvent::Restart);
        let namespace = self.namespace.as_deref();
        for object in list(&self.objects, snapshot, self.of.domain(), &self.of.gvr, namespace) {
            self.change(&object);
        }
        self.queue.push_back(WatchEvent::Listed);
    }

    fn change(&mut self, object: &Object) {
        let name = object.name();
        if !object.deleted() && self.fields.matches_object(object.value()) {
            self.sent.insert(name.clone());
            self.queue
                .push_back(WatchEvent::Applied { json: json(object.value()), origin: SmolStr::default() });
        } else if self.sent.remove(name) {
            self.queue.push_back(WatchEvent::Deleted(name.clone()));
        }
    }
}

pub(crate) fn json(value: &Value) -> Bytes {
    value.to_string().into()
}

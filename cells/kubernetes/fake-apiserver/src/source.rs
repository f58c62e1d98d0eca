//! The objects as a source: lists and watches.

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

/// The name of the source, as that of an API server.
pub const SOURCE: &str = "daemon-k8s";

/// Lists come in order of names, changes in order of revisions; several changes of an object between two looks are one.
/// Selectors of labels have no effect.
impl Source for Tracker {
    fn name(&self) -> &str {
        SOURCE
    }

    fn has(&self, _: Kind) -> bool {
        true
    }

    fn watch(&self, what: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        match what.fields.parse() {
            Ok(fields) => {
                let watch = Watch {
                    objects: self.objects(),
                    of: what.kind.into(),
                    namespace: what.namespace,
                    fields,
                    seen: None,
                    known: HashSet::new(),
                    said: VecDeque::new(),
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
    /// The revision up to which everything was said; none before the first list.
    seen: Option<u64>,
    /// The objects that were said to be there.
    known: HashSet<Key>,
    /// Events that are still to be delivered.
    said: VecDeque<WatchEvent>,
}

impl Watch {
    async fn next(mut self) -> (Result<WatchEvent, SourceError>, Watch) {
        loop {
            if let Some(event) = self.said.pop_front() {
                return (Ok(event), self);
            }
            let snapshot = self.objects.snapshot();
            self.look(&snapshot);
            if self.said.is_empty() {
                let watch = self.objects.watch(&snapshot);
                drop(snapshot);
                watch.changed().await;
            }
        }
    }

    fn look(&mut self, snapshot: &Snapshot) {
        let changed: Option<Vec<Obj<Object>>> = self.seen.and_then(|seen| {
            let later = self.objects.by_revision(snapshot, seen + 1);
            let changed: Vec<Obj<Object>> = later.filter(|object| self.concerns(object)).cloned().collect();
            // A resync in between: this version is too old to go on from.
            changed.iter().all(|object| object.resync() <= seen).then_some(changed)
        });
        match changed {
            Some(changed) => changed.iter().for_each(|object| self.change(object)),
            None => self.list(snapshot),
        }
        self.seen = Some(self.objects.revision(snapshot));
    }

    fn concerns(&self, object: &Object) -> bool {
        let namespace = self.namespace.as_ref().is_none_or(|wanted| *wanted == object.name().namespace);
        namespace && object.domain() == self.of.domain() && *object.gvr() == self.of.gvr
    }

    fn list(&mut self, snapshot: &Snapshot) {
        self.known.clear();
        self.said.push_back(WatchEvent::Restart);
        let namespace = self.namespace.as_deref();
        for object in list(&self.objects, snapshot, self.of.domain(), &self.of.gvr, namespace) {
            self.change(&object);
        }
        self.said.push_back(WatchEvent::Listed);
    }

    fn change(&mut self, object: &Object) {
        let name = object.name();
        if !object.deleted() && self.fields.matches_object(object.value()) {
            self.known.insert(name.clone());
            self.said
                .push_back(WatchEvent::Applied { json: json(object.value()), origin: SmolStr::default() });
        } else if self.known.remove(name) {
            self.said.push_back(WatchEvent::Deleted(name.clone()));
        }
    }
}

pub(crate) fn json(value: &Value) -> Bytes {
    value.to_string().into()
}

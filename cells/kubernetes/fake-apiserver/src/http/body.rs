//! Bodies: lists, and watches as streams of events.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::HeaderValue;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_types::selector::FieldSelector;
use k8s_types::{Key, SmolStr};
use serde_json::{Value, json};
use statedb::{Obj, Prefix, Snapshot, Table};
use tokio::time::{Instant, sleep_until};

use crate::object::Object;
use crate::types::Type;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The size from which events are sent without waiting for more.
const CHUNK_BYTES: usize = 64 << 10;

/// The interval of bookmarks, as of kube-apiserver.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// The objects of a list or a watch.
pub(super) struct Selection {
    pub(super) of: Type,
    pub(super) namespace: Option<SmolStr>,
    pub(super) fields: FieldSelector,
}

impl Selection {
    /// Returns all objects, in order of their names.
    fn all(&self, table: &Table<Object>, snapshot: &Snapshot) -> Vec<Obj<Object>> {
        let start = match &self.namespace {
            Some(namespace) => Object::all_in(self.of.domain(), &self.of.gvr, namespace),
            None => Object::all_of(self.of.domain(), &self.of.gvr),
        };
        let objects = table.prefix(snapshot, Prefix::primary(&*start));
        objects.filter(|object| self.is_live(object)).cloned().collect()
    }

    fn is_live(&self, object: &Object) -> bool {
        !object.deleted() && self.fields.matches_object(object.value())
    }

    /// Whether an object is of this kind and namespace.
    fn concerns(&self, object: &Object) -> bool {
        let namespace = self.namespace.as_ref().is_none_or(|of| *of == object.name().namespace);
        namespace && object.domain() == self.of.domain() && *object.gvr() == self.of.gvr
    }

    /// Returns a page of the list. The token of the next page is the number of objects before it: a list of a cluster that
    /// changes meanwhile may miss objects, which its watch does not deliver later.
    pub(super) fn list(&self, table: &Table<Object>, from: u64, limit: Option<u64>) -> Value {
        let snapshot = table.snapshot();
        let all = self.all(table, &snapshot);
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let to = from.saturating_add(limit).min(all.len());
        let mut metadata = json!({"resourceVersion": table.revision(&snapshot).to_string()});
        if to < all.len() {
            metadata["continue"] = to.to_string().into();
        }
        let items: Vec<&Value> = all[from..to].iter().map(|object| object.value()).collect();
        json!({
            "apiVersion": self.api_version(), "items": items, "kind": format!("{}List", self.of.name),
            "metadata": metadata,
        })
    }

    fn api_version(&self) -> String {
        let gvr = &self.of.gvr;
        match gvr.group.as_str() {
            "" => gvr.version.to_string(),
            group => format!("{group}/{}", gvr.version),
        }
    }
}

/// The events of a watch.
pub(super) struct Events {
    table: Table<Object>,
    selection: Selection,
    /// The revision up to which all changes were sent; none before the initial list.
    revision: Option<u64>,
    /// Objects of the initial list that were not sent yet, the last one first.
    pending: Vec<Obj<Object>>,
    /// Objects that this watch has sent; objects may cease to match the fields.
    sent: HashSet<Key>,
    /// Whether the client has objects of an earlier watch.
    is_resumed: bool,
    is_initial: bool,
    has_ended: bool,
    until: Instant,
}

impl Events {
    /// Creates the events since a version, or of all objects if there is none.
    pub(super) fn new(
        table: Table<Object>,
        selection: Selection,
        version: Option<u64>,
        lifetime: Duration,
    ) -> Events {
        Events {
            table,
            selection,
            revision: version,
            pending: Vec::new(),
            sent: HashSet::new(),
            is_resumed: version.is_some(),
            is_initial: version.is_none(),
            has_ended: false,
            until: Instant::now() + lifetime,
        }
    }

    pub(super) fn into_body(self) -> Body {
        let frames = stream::unfold(self, |mut events| async move {
            let chunk = events.next().await?;
            Some((Ok(Frame::data(Bytes::from(chunk))), events))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    /// Returns the next events, as many as there are; none at the end of the watch.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.has_ended {
                return None;
            }
            let snapshot = self.table.snapshot();
            let mut text = String::new();
            self.collect(&snapshot, &mut text);
            if !text.is_empty() {
                return Some(text);
            }
            let bookmark = Instant::now() + BOOKMARK_INTERVAL;
            let watch = self.table.watch(&snapshot);
            drop(snapshot);
            tokio::select! {
                () = watch.changed() => {}
                () = sleep_until(self.until) => self.has_ended = true,
                () = sleep_until(bookmark) => return Some(self.bookmark(false)),
            }
        }
    }

    fn collect(&mut self, snapshot: &Snapshot, text: &mut String) {
        let Some(revision) = self.revision else {
            self.pending = self.selection.all(&self.table, snapshot);
            self.pending.reverse();
            self.revision = Some(self.table.revision(snapshot));
            return self.send_pending(text);
        };
        if self.is_initial {
            return self.send_pending(text);
        }
        let later = self.table.by_revision(snapshot, revision + 1);
        let later: Vec<Obj<Object>> =
            later.filter(|object| self.selection.concerns(object)).cloned().collect();
        self.revision = Some(self.table.revision(snapshot));
        if later.iter().any(|object| object.resync() > revision) {
            let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
            push(text, "ERROR", &expired);
            self.has_ended = true;
            return;
        }
        for object in later {
            self.change(&object, text);
        }
    }

    fn send_pending(&mut self, text: &mut String) {
        while let Some(object) = self.pending.pop() {
            self.change(&object, text);
            if text.len() >= CHUNK_BYTES {
                return;
            }
        }
        self.is_initial = false;
        text.push_str(&self.bookmark(true));
    }

    fn change(&mut self, object: &Obj<Object>, text: &mut String) {
        let name = object.name();
        if self.selection.is_live(object) {
            let is_new = self.sent.insert(name.clone());
            push(text, if is_new { "ADDED" } else { "MODIFIED" }, object.value());
        } else if self.sent.remove(name) || self.is_resumed {
            let mut last = object.value().clone();
            last["metadata"]["resourceVersion"] = object.revision().to_string().into();
            push(text, "DELETED", &last);
        }
    }

    fn bookmark(&self, ends_list: bool) -> String {
        let revision = self.revision.unwrap_or_default();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if ends_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "kind": self.selection.of.name.as_str(), "apiVersion": self.selection.api_version(), "metadata": metadata,
        });
        let mut text = String::new();
        push(&mut text, "BOOKMARK", &object);
        text
    }
}

fn push(text: &mut String, kind: &str, object: &Value) {
    let _ = writeln!(text, "{{\"type\":\"{kind}\",\"object\":{object}}}");
}

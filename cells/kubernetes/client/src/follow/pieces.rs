//! Conversion of the pieces of a response into events.

use bytes::Bytes;
use k8s_types::{SmolStr, WatchEvent};
use tokio::time::Instant;

use super::Follow;
use crate::request_error::{About, ErrorKind, RequestError};
use crate::scan::{EventKind, Piece, find, key, text};
use crate::watch_timeouts::spread;

impl Follow {
    pub(super) fn take(&mut self, piece: Piece) -> Result<Option<WatchEvent>, RequestError> {
        match piece {
            Piece::Event { kind, object } => self.event(kind, object),
            Piece::Item(object) => {
                if let Some(reading) = &mut self.reading {
                    reading.items += 1;
                }
                Ok(Some(self.applied(object, 1)))
            }
            Piece::End(metadata) => self.end_of_page(&metadata),
            Piece::TooLarge { kind: Some(EventKind::Deleted), key: Some(key) } => {
                self.state.object(-1);
                Ok(Some(WatchEvent::Deleted(key)))
            }
            Piece::TooLarge { key: None, .. } if !self.listed => {
                // The list is incomplete without this object, so the reader has to keep the previous objects.
                let text = format!(
                    "the list of {} has an object of more than 16 MiB that does not say its name within them: make it \
                     smaller",
                    self.target.name
                );
                Err(RequestError::new(ErrorKind::Nonsense, text))
            }
            Piece::TooLarge { kind, key } => {
                match &mut self.reading {
                    Some(reading) if kind.is_none() => reading.items += 1,
                    _ => {}
                }
                self.state.object(if matches!(kind, None | Some(EventKind::Added)) { 1 } else { 0 });
                let reason = "has more than 16 MiB, which no cluster needs: make it smaller".to_owned();
                Ok(Some(WatchEvent::Unreadable { key, reason }))
            }
        }
    }

    fn event(&mut self, kind: EventKind, object: Bytes) -> Result<Option<WatchEvent>, RequestError> {
        let more = match kind {
            EventKind::Added => 1,
            EventKind::Modified => 0,
            EventKind::Deleted => -1,
            EventKind::Bookmark => return self.bookmark(&object),
            EventKind::Error => {
                let lease = self.reading.as_ref().map(|reading| &reading.lease);
                let (url, names) =
                    lease.map(|lease| (lease.url.clone(), lease.names.clone())).unwrap_or_default();
                let about = About {
                    name: &self.target.name,
                    verb: "watch",
                    plural: self.target.plural,
                    group: self.target.group,
                    server: &url,
                    names: &names,
                };
                return Err(RequestError::of_event(&object, &about));
            }
        };
        if self.listed {
            self.advance(&object)?;
            self.progress();
        }
        Ok(Some(match kind {
            EventKind::Deleted => {
                self.state.object(more);
                WatchEvent::Deleted(key(&object))
            }
            _ => self.applied(object, more),
        }))
    }

    fn applied(&self, json: Bytes, more: i64) -> WatchEvent {
        self.state.object(more);
        WatchEvent::Applied { json, origin: SmolStr::default() }
    }

    fn bookmark(&mut self, object: &[u8]) -> Result<Option<WatchEvent>, RequestError> {
        if self.listed {
            self.advance(object)?;
            self.progress();
            self.bookmarks = true;
            // Updated with each bookmark, so that the row's time shows that the watch is alive.
            self.health.ok(format!("{} objects, changes are followed", self.state.objects()));
            return Ok(Some(WatchEvent::Progress));
        }
        self.progress();
        let annotations = find(object, "metadata").and_then(|metadata| find(metadata, "annotations"));
        let ends = annotations.and_then(|annotations| text(annotations, "k8s.io/initial-events-end"));
        if ends.as_deref() == Some("true") {
            self.version_of(object);
            return Ok(Some(self.all_listed()));
        }
        Ok(None)
    }

    fn end_of_page(&mut self, metadata: &[u8]) -> Result<Option<WatchEvent>, RequestError> {
        self.reading = None;
        self.continue_token = text(metadata, "continue").filter(|token| !token.is_empty());
        if self.continue_token.is_some() {
            self.failures = 0;
            return Ok(None);
        }
        match text(metadata, "resourceVersion") {
            Some(version) if !version.is_empty() => self.version = version,
            _ => {
                let text = format!("the list of {} has no metadata.resourceVersion", self.target.name);
                return Err(RequestError::new(ErrorKind::Nonsense, text));
            }
        }
        Ok(Some(self.all_listed()))
    }

    fn all_listed(&mut self) -> WatchEvent {
        let now = Instant::now();
        (self.listed, self.whole, self.broken_streams) = (true, false, 0);
        (self.listed_at, self.received_at) = (now, now);
        self.relist_after = spread(self.timeouts.relist);
        self.state.listed();
        self.progress();
        self.health.ok(format!("{} objects listed, changes are followed", self.state.objects()));
        WatchEvent::Listed
    }
}

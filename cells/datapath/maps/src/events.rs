//! The last writes to maps, for `GET /map/{name}/events`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use api::Response;
use api_models::{DateTime, MapEvent};
use bpf::WriteObserver;
use bytes::Bytes;
use futures::stream;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::text;

/// The maps that have a journal, and the capacity of each: Cilium's defaults.
const CAPACITIES: [(&str, usize); 8] = [
    ("cilium_ipcache_v2", 1024),
    ("cilium_lxc", 128),
    ("cilium_lb4_services_v2", 128),
    ("cilium_lb4_backends_v3", 128),
    ("cilium_lb4_reverse_nat", 128),
    ("cilium_lb6_services_v2", 128),
    ("cilium_lb6_backends_v3", 128),
    ("cilium_lb6_reverse_nat", 128),
];

/// The journals of the maps that have one.
#[derive(Debug)]
pub(crate) struct Journals(Vec<Arc<Journal>>);

impl Default for Journals {
    fn default() -> Self {
        let journal = |(name, capacity): &(&'static str, usize)| Arc::new(Journal::new(name, *capacity));
        Self(CAPACITIES.iter().map(journal).collect())
    }
}

impl Journals {
    /// Returns the journal of a map.
    pub(crate) fn of(&self, map: &str) -> Option<&Arc<Journal>> {
        self.0.iter().find(|journal| journal.map == map)
    }
}

/// The last writes to a map. A write costs a copy of its bytes: they are formatted when they are read.
#[derive(Debug)]
pub(crate) struct Journal {
    map: &'static str,
    capacity: usize,
    written: Mutex<Written>,
    /// The number of writes.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Written {
    count: u64,
    last: VecDeque<Event>,
}

#[derive(Clone, Debug)]
struct Event {
    at: SystemTime,
    key: Box<[u8]>,
    /// `None` for a deletion.
    value: Option<Box<[u8]>>,
    error: Option<Box<str>>,
}

impl WriteObserver for Journal {
    fn updated(&self, key: &[u8], value: &[u8], result: &bpf::Result<()>) {
        self.push(key, Some(value), result);
    }

    fn deleted(&self, key: &[u8], result: &bpf::Result<()>) {
        self.push(key, None, result);
    }
}

impl Journal {
    fn new(map: &'static str, capacity: usize) -> Self {
        Self { map, capacity, written: Mutex::default(), count: watch::Sender::new(0) }
    }

    fn push(&self, key: &[u8], value: Option<&[u8]>, result: &bpf::Result<()>) {
        let error = result.as_ref().err().map(|error| error.to_string().into());
        let event = Event { at: SystemTime::now(), key: key.into(), value: value.map(Into::into), error };
        let mut written = self.written.lock();
        if written.last.len() == self.capacity {
            written.last.pop_front();
        }
        written.last.push_back(event);
        written.count += 1;
        // Under the lock, so that a follower never sees the count decrease.
        self.count.send_replace(written.count);
    }

    /// Returns the lines of the writes after the first `seen` that are still kept, and the number of all writes.
    fn since(&self, seen: u64) -> (String, u64) {
        let (events, count) = {
            let written = self.written.lock();
            let kept = written.last.len();
            let new = usize::try_from(written.count - seen).unwrap_or(usize::MAX).min(kept);
            // Copied, as formatting under the lock would delay writers of the map.
            (written.last.range(kept - new..).cloned().collect::<Vec<_>>(), written.count)
        };
        (events.iter().map(|event| self.line(event)).collect(), count)
    }

    fn line(&self, event: &Event) -> String {
        // A deletion has no value, but the formatter needs one beside the key.
        let zeros = || vec![0; MAX_VALUE].into_boxed_slice();
        let value = event.value.clone().unwrap_or_else(zeros);
        let Some(row) = text::row(self.map, &event.key, &value) else { return String::new() };
        let is_update = event.value.is_some();
        let desired_action = match (&event.error, is_update) {
            (None, _) => "sync",
            (Some(_), true) => "to-be-inserted",
            (Some(_), false) => "to-be-deleted",
        };
        let event = MapEvent {
            action: if is_update { "update" } else { "delete" }.to_owned(),
            desired_action: desired_action.to_owned(),
            key: row.key,
            last_error: event.error.as_deref().unwrap_or(NIL).to_owned(),
            timestamp: DateTime::from(event.at),
            value: if is_update { row.value } else { NIL.to_owned() },
        };
        let json = serde_json::to_string(&event).unwrap_or_default();
        // Go's encoder escapes characters with a meaning in HTML; they only occur in strings.
        json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026") + "\n"
    }

    /// Returns the response of `GET /map/{name}/events`: a JSON object per line; with `follow` also future ones.
    pub(crate) fn answer(self: &Arc<Self>, follow: bool) -> Response {
        let (first, seen) = self.since(0);
        let first = (!first.is_empty()).then(|| Bytes::from(first));
        if !follow {
            return Response::stream(200, CONTENT_TYPE, stream::iter(first));
        }
        let (journal, changes) = (self.clone(), self.count.subscribe());
        let rest = stream::unfold((journal, changes, seen), |(journal, mut changes, seen)| async move {
            changes.wait_for(|count| *count > seen).await.ok()?;
            let (lines, seen) = journal.since(seen);
            Some((Bytes::from(lines), (journal, changes, seen)))
        });
        let all = stream::StreamExt::chain(stream::iter(first), rest);
        Response::stream(200, CONTENT_TYPE, all)
    }
}

const CONTENT_TYPE: &str = "application/json";

/// Go's text of a missing value.
const NIL: &str = "<nil>";

/// An upper bound of the value sizes of these maps, in bytes.
const MAX_VALUE: usize = 64;

#[cfg(test)]
mod tests {
    use datapath_abi::{IpcacheKey, Pod, RemoteEndpointInfo};
    use futures::StreamExt;

    use super::*;

    fn write(journal: &Journal, last: u8) {
        let key = IpcacheKey::v4([10, 0, 0, last].into(), 32);
        let info = RemoteEndpointInfo { sec_identity: 1, ..RemoteEndpointInfo::default() };
        journal.updated(key.as_bytes(), info.as_bytes(), &Ok(()));
    }

    /// Except for its time, the line was written by Cilium.
    #[test]
    fn a_line_is_as_cilium_writes_it() {
        let journal = Journal::new("cilium_ipcache_v2", 8);
        let key = IpcacheKey::v4([10, 99, 0, 1].into(), 32);
        let info = RemoteEndpointInfo { sec_identity: 1, ..RemoteEndpointInfo::default() };
        journal.updated(key.as_bytes(), info.as_bytes(), &Ok(()));
        journal.written.lock().last[0].at =
            SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_795_263_029_932);
        assert_eq!(
            journal.since(0).0,
            "{\"action\":\"update\",\"desired-action\":\"sync\",\"key\":\"10.99.0.1/32\",\
             \"last-error\":\"\\u003cnil\\u003e\",\"timestamp\":\"2026-11-21T12:10:29.932Z\",\
             \"value\":\"identity=1 encryptkey=0 tunnelendpoint=0.0.0.0 flags=\\u003cnone\\u003e\"}\n"
        );
        journal.deleted(key.as_bytes(), &Ok(()));
        let deleted = journal.since(1).0;
        assert!(
            deleted
                .starts_with("{\"action\":\"delete\",\"desired-action\":\"sync\",\"key\":\"10.99.0.1/32\"")
        );
        assert!(deleted.ends_with("\"value\":\"\\u003cnil\\u003e\"}\n"), "{deleted}");
    }

    #[tokio::test]
    async fn the_last_writes_are_kept_and_followed() {
        let journal = Arc::new(Journal::new("cilium_ipcache_v2", 3));
        (1..=5).for_each(|last| write(&journal, last));
        let body = journal.answer(false).body().await;
        let text = String::from_utf8(body.to_vec()).unwrap();
        let keys: Vec<_> = text.lines().map(|line| line.split("\"key\":\"").nth(1).unwrap()).collect();
        assert_eq!(keys.len(), 3, "{text}");
        assert!(keys[0].starts_with("10.0.0.3/32") && keys[2].starts_with("10.0.0.5/32"), "{text}");
        // A follower gets later writes, and missed ones only as far as they are kept.
        let (mut changes, seen) = (journal.count.subscribe(), journal.since(0).1);
        write(&journal, 6);
        changes.changed().await.unwrap();
        assert_eq!(journal.since(seen).0.lines().count(), 1);
        (7..=20).for_each(|last| write(&journal, last));
        assert_eq!(journal.since(seen).0.lines().count(), 3);
        let mut chunks = stream::iter(Some(journal.since(seen).0)).boxed();
        assert!(chunks.next().await.unwrap().contains("10.0.0.20/32"));
    }
}

//! The objects of this node's endpoints as they were last written, and the next write of each: no requests, clock or tasks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use endpoints::EndpointId;
use k8s_tables::Key;
use k8s_types::SmolStr;
use k8s_types::cilium::CiliumEndpoint;
use tokio::time::Instant;

use crate::desired::Desired;

/// How long a change of the state alone waits: it is written with the next change, or not at all if it is undone.
const STATE_INTERVAL: Duration = Duration::from_secs(10);
/// The least time between two corrections of changes by others.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(15);
/// How long health reports a correction.
const REPORT_DURATION: Duration = Duration::from_secs(60);
/// The interval of attempts to adopt an object that is not of this node.
const ADOPTION_INTERVAL: Duration = Duration::from_secs(15);

/// The endpoint of an object in a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Current {
    /// There is none.
    None,
    /// An endpoint with this desired object.
    Desired(Arc<Desired>),
    /// An endpoint without a pod or an identity so far, or whose pod is gone: its object stays as it is.
    Unknown(EndpointId),
}

/// An object in a snapshot of its table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) object: Option<&'a CiliumEndpoint>,
    /// Whether the table follows the objects; with slices it does not.
    pub(crate) is_followed: bool,
    /// Whether it has all of them.
    pub(crate) is_complete: bool,
    /// The uid of the object that the table has had until now.
    pub(crate) deleted: Option<&'a str>,
}

/// The next write of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Turn {
    Nothing,
    /// Nothing before this time.
    At(Instant),
    /// Create it without reading it first.
    Create(Arc<Desired>),
    /// Read it, then create, adopt, patch or replace it.
    Ensure(Arc<Desired>),
    /// The object exists as desired: store its uid.
    Adopt(Arc<Desired>, SmolStr),
    /// Patch the object with this uid: its status, its labels.
    Patch(Arc<Desired>, SmolStr, bool, bool),
    /// Delete the object with this uid and create another one, for another pod of the name.
    Recreate(Arc<Desired>, SmolStr),
    /// Delete the object: that with the uid, if it is known, else the one that this pod owns.
    Delete {
        uid: SmolStr,
        pod_uid: SmolStr,
    },
}

/// An object that is written or being written.
#[derive(Debug)]
struct Entry {
    desired: Arc<Desired>,
    /// Empty until it is known.
    uid: SmolStr,
    /// Its version; older rows of the table are no news.
    version: u64,
    /// Whether the table has had the object since.
    is_seen: bool,
    /// The id of the write in flight.
    in_flight: Option<u64>,
    /// Since when the state alone differs.
    differs_since: Option<Instant>,
    corrected: Option<Instant>,
    /// When to try again after the object could not be adopted, and why it could not.
    refused: Option<(Instant, String)>,
}

/// The objects of this node's endpoints.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<Key, Entry>,
    last_write: u64,
    corrections: BTreeMap<Key, (Instant, String)>,
}

/// Versions of objects are numbers of one sequence (KEP-5504); one that is none counts as old.
pub(crate) fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

impl Ledger {
    /// Returns the next write of an object. `is_restored`: whether the endpoint is of the previous run, so that the object
    /// probably exists.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        key: &Key,
        current: Current,
        is_restored: bool,
        stored: Stored<'_>,
    ) -> Turn {
        let desired = match current {
            Current::Desired(desired) => desired,
            Current::Unknown(id)
                if self.entries.get(key).is_none_or(|entry| entry.desired.endpoint == id) =>
            {
                return Turn::Nothing;
            }
            Current::Unknown(_) | Current::None => return self.remove(key),
        };
        let Some(entry) = self.entries.get_mut(key) else {
            return begin(desired, is_restored, stored);
        };
        match entry.next(now, &desired, stored) {
            Next::Turn(turn) => turn,
            Next::Correct(fields) => match entry.corrected.map(|corrected| corrected + CORRECTION_INTERVAL) {
                Some(at) if now < at => Turn::At(at),
                _ => {
                    entry.corrected = Some(now);
                    self.corrections.insert(key.clone(), (now, fields.join(", ")));
                    Turn::Ensure(desired)
                }
            },
        }
    }

    fn remove(&mut self, key: &Key) -> Turn {
        match self.entries.remove(key) {
            Some(Entry { desired, uid, refused: None, .. }) => {
                Turn::Delete { uid, pod_uid: desired.pod_uid.clone() }
            }
            Some(_) | None => Turn::Nothing,
        }
    }

    /// Records that a write was enqueued; returns its id.
    pub(crate) fn enqueued(&mut self, key: &Key, desired: &Arc<Desired>) -> u64 {
        self.last_write += 1;
        let write = self.last_write;
        self.entry(key, desired).in_flight = Some(write);
        write
    }

    /// Records that an object exists as desired.
    pub(crate) fn adopted(&mut self, key: &Key, desired: &Arc<Desired>, uid: &SmolStr, version: u64) {
        let entry = self.entry(key, desired);
        *entry = Entry { version, is_seen: true, ..Entry::new(desired.clone()) };
        entry.uid = uid.clone();
    }

    /// Records the end of a write: the object's uid and version. False if another write has taken its place.
    pub(crate) fn written(
        &mut self,
        key: &Key,
        write: u64,
        desired: Arc<Desired>,
        uid: SmolStr,
        version: u64,
    ) -> bool {
        let Some(entry) = self.in_flight(key, write) else { return false };
        entry.in_flight = None;
        entry.refused = None;
        entry.differs_since = None;
        entry.is_seen = false;
        entry.version = entry.version.max(version);
        entry.uid = uid;
        entry.desired = desired;
        true
    }

    /// Records that the object cannot be adopted.
    pub(crate) fn refused(&mut self, now: Instant, key: &Key, write: u64, reason: String) {
        if let Some(entry) = self.in_flight(key, write) {
            entry.in_flight = None;
            entry.refused = Some((now + ADOPTION_INTERVAL, reason));
        }
    }

    /// Returns the objects that cannot be adopted, with the reasons.
    pub(crate) fn refusals(&self) -> BTreeMap<&Key, &str> {
        let refused = |(key, entry)| Some((key, Entry::refusal(entry)?));
        self.entries.iter().filter_map(refused).collect()
    }

    /// Returns the objects that others have changed lately, with the fields, and when the report changes next.
    pub(crate) fn corrections(&mut self, now: Instant) -> (Vec<String>, Option<Instant>) {
        self.corrections.retain(|_, (at, _)| now < *at + REPORT_DURATION);
        let texts = self.corrections.iter().map(|(key, (_, fields))| format!("{key}: {fields}"));
        let next = self.corrections.values().map(|(at, _)| *at + REPORT_DURATION).min();
        (texts.collect(), next)
    }

    fn entry(&mut self, key: &Key, desired: &Arc<Desired>) -> &mut Entry {
        self.entries.entry(key.clone()).or_insert_with(|| Entry::new(desired.clone()))
    }

    fn in_flight(&mut self, key: &Key, write: u64) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.in_flight == Some(write))
    }
}

/// Returns the first write of an endpoint's object.
fn begin(desired: Arc<Desired>, is_restored: bool, stored: Stored<'_>) -> Turn {
    match stored.object {
        Some(object) if desired.owns(&object.metadata.uid) && desired.differences(object).is_empty() => {
            Turn::Adopt(desired, object.metadata.uid.clone())
        }
        Some(_) => Turn::Ensure(desired),
        None if !is_restored => Turn::Create(desired),
        None if !stored.is_followed => Turn::Ensure(desired),
        // The object of the previous run is about to be listed.
        None if !stored.is_complete => Turn::Nothing,
        None => Turn::Create(desired),
    }
}

/// The next write of a known object, or the fields that others have changed.
enum Next {
    Turn(Turn),
    Correct(Vec<&'static str>),
}

impl Entry {
    fn new(desired: Arc<Desired>) -> Entry {
        Entry {
            desired,
            uid: SmolStr::default(),
            version: 0,
            is_seen: false,
            in_flight: None,
            differs_since: None,
            corrected: None,
            refused: None,
        }
    }

    fn refusal(&self) -> Option<&str> {
        self.refused.as_ref().map(|(_, reason)| reason.as_str())
    }

    fn next(&mut self, now: Instant, desired: &Arc<Desired>, stored: Stored<'_>) -> Next {
        if self.in_flight.is_some() {
            return Next::Turn(Turn::Nothing);
        }
        if let Some((at, _)) = self.refused {
            let is_same = self.desired.may_adopt == desired.may_adopt;
            return Next::Turn(match is_same && now < at {
                true => Turn::At(at),
                false => Turn::Ensure(desired.clone()),
            });
        }
        if self.desired.pod_uid != desired.pod_uid {
            return Next::Turn(Turn::Recreate(desired.clone(), self.uid.clone()));
        }
        if desired.differs_in_state_alone(&self.desired) {
            let at = *self.differs_since.get_or_insert(now) + STATE_INTERVAL;
            if now < at {
                return Next::Turn(Turn::At(at));
            }
        } else {
            self.differs_since = None;
        }
        let (status, labels) = (desired.status != self.desired.status, desired.labels != self.desired.labels);
        if status || labels {
            return Next::Turn(Turn::Patch(desired.clone(), self.uid.clone(), status, labels));
        }
        match stored.object {
            Some(object) if version(&object.metadata.resource_version) < self.version => {
                Next::Turn(Turn::Nothing)
            }
            Some(object) => {
                self.is_seen = true;
                let fields = match object.metadata.uid == self.uid {
                    true => desired.differences(object),
                    false => vec!["the object itself"],
                };
                if fields.is_empty() { Next::Turn(Turn::Nothing) } else { Next::Correct(fields) }
            }
            None if stored.is_followed
                && stored.is_complete
                && (self.is_seen || stored.deleted == Some(&self.uid)) =>
            {
                Next::Correct(vec!["the object itself"])
            }
            // The table may not have it yet.
            None => Next::Turn(Turn::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use endpoints::{Endpoint, State};
    use k8s_types::decode;
    use serde_json::Value;

    use super::*;
    use crate::desired::tests::{desired, endpoint};

    const NOTHING: Stored<'static> =
        Stored { object: None, is_followed: true, is_complete: true, deleted: None };

    fn key() -> Key {
        Key::new("default", "p1")
    }

    fn at(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn row(desired: &Desired, uid: &str, version: u64, edit: impl FnOnce(&mut Value)) -> CiliumEndpoint {
        let mut object = desired.object();
        object["metadata"]["name"] = "p1".into();
        object["metadata"]["namespace"] = "default".into();
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        edit(&mut object);
        decode(object.to_string().as_bytes()).unwrap()
    }

    fn stored(object: &CiliumEndpoint) -> Stored<'_> {
        Stored { object: Some(object), ..NOTHING }
    }

    /// A ledger whose object `u-1` was created at version 10.
    struct Created(Ledger, Arc<Desired>, Instant);

    impl Created {
        fn new() -> Created {
            let (mut ledger, now) = (Ledger::default(), Instant::now());
            let desired = Arc::new(desired(&endpoint(7)));
            let turn = ledger.turn(now, &key(), Current::Desired(desired.clone()), false, NOTHING);
            assert_eq!(turn, Turn::Create(desired.clone()));
            let write = ledger.enqueued(&key(), &desired);
            assert!(ledger.written(&key(), write, desired.clone(), "u-1".into(), 10));
            Created(ledger, desired, now)
        }

        fn turn(&mut self, seconds: u64, desired: &Arc<Desired>, stored: Stored<'_>) -> Turn {
            self.0.turn(at(seconds, self.2), &key(), Current::Desired(desired.clone()), false, stored)
        }
    }

    #[test]
    fn a_pod_is_one_creation_and_one_deletion() {
        let mut created = Created::new();
        for state in [State::WaitingToRegenerate, State::Regenerating, State::Ready, State::Restoring] {
            let desired = Arc::new(desired(&Endpoint { state, ..endpoint(7) }));
            assert_eq!(created.turn(100, &desired, NOTHING), Turn::Nothing, "{state}");
        }
        let delete = Turn::Delete { uid: "u-1".into(), pod_uid: "pod-1".into() };
        let Created(mut ledger, _, now) = created;
        assert_eq!(ledger.turn(now, &key(), Current::None, false, NOTHING), delete);
        assert_eq!(ledger.turn(now, &key(), Current::None, false, NOTHING), Turn::Nothing);
    }

    #[test]
    fn a_state_that_comes_and_goes_is_not_written() {
        let mut created = Created::new();
        let Created(_, ready, start) = &created;
        let (ready, start) = (ready.clone(), *start);
        let waiting = Arc::new(desired(&Endpoint { state: State::WaitingForIdentity, ..endpoint(7) }));
        assert_eq!(created.turn(0, &waiting, NOTHING), Turn::At(at(10, start)));
        assert_eq!(created.turn(3, &ready, NOTHING), Turn::Nothing);
        assert_eq!(created.turn(4, &waiting, NOTHING), Turn::At(at(14, start)));
        let patch = Turn::Patch(waiting.clone(), "u-1".into(), true, false);
        assert_eq!(created.turn(14, &waiting, NOTHING), patch);
        // Another identity is written at once.
        let mut other = (*ready).clone();
        other.status.identity.as_mut().unwrap().id = 7001;
        let other = Arc::new(other);
        let patch = Turn::Patch(other.clone(), "u-1".into(), true, false);
        assert_eq!(created.turn(5, &other, NOTHING), patch);
    }

    #[test]
    fn changes_wait_for_the_write_in_flight() {
        let mut created = Created::new();
        let mut other = (*created.1).clone();
        other.labels = [("app", "p2")].into_iter().collect();
        let other = Arc::new(other);
        assert_eq!(created.turn(0, &other, NOTHING), Turn::Patch(other.clone(), "u-1".into(), false, true));
        let write = created.0.enqueued(&key(), &other);
        let first = created.1.clone();
        assert_eq!(created.turn(1, &first, NOTHING), Turn::Nothing);
        assert!(!created.0.written(&key(), write + 1, other.clone(), "u-9".into(), 11), "of another write");
        assert!(created.0.written(&key(), write, other, "u-1".into(), 11));
        assert_eq!(created.turn(1, &first, NOTHING), Turn::Patch(first.clone(), "u-1".into(), false, true));
    }

    #[test]
    fn what_others_change_or_delete_is_corrected_every_15_seconds_at_most() {
        let mut created = Created::new();
        let (desired, start) = (created.1.clone(), created.2);
        let bad = |object: &mut Value| object["status"]["identity"]["id"] = 1.into();
        let old = row(&desired, "u-1", 9, bad);
        assert_eq!(created.turn(0, &desired, stored(&old)), Turn::Nothing, "older than the write");
        assert_eq!(created.turn(0, &desired, NOTHING), Turn::Nothing, "the table does not have it yet");
        let good = row(&desired, "u-1", 10, |_| ());
        assert_eq!(created.turn(0, &desired, stored(&good)), Turn::Nothing);
        let edited = row(&desired, "u-1", 11, bad);
        assert_eq!(created.turn(1, &desired, stored(&edited)), Turn::Ensure(desired.clone()));
        assert_eq!(created.turn(2, &desired, NOTHING), Turn::At(at(16, start)), "the next one waits");
        assert_eq!(created.turn(16, &desired, NOTHING), Turn::Ensure(desired.clone()), "it was deleted");
        let (texts, next) = created.0.corrections(at(17, start));
        assert_eq!((texts, next), (vec!["default/p1: the object itself".into()], Some(at(76, start))));
        assert_eq!(created.0.corrections(at(76, start)), (Vec::new(), None));

        // A creation and a deletion that the table has seen as one change.
        let mut created = Created::new();
        let deleted = Stored { deleted: Some("u-0"), ..NOTHING };
        assert_eq!(created.turn(0, &desired, deleted), Turn::Nothing, "an object of this name before");
        let deleted = Stored { deleted: Some("u-1"), ..NOTHING };
        assert_eq!(created.turn(0, &desired, deleted), Turn::Ensure(desired.clone()));
        let mut created = Created::new();
        let foreign = row(&desired, "u-2", 12, |_| ());
        assert_eq!(created.turn(0, &desired, stored(&foreign)), Turn::Ensure(desired));
    }

    #[test]
    fn a_restored_endpoint_adopts_its_object_without_a_write() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let mut desired = desired(&endpoint(7));
        desired.may_adopt = false;
        desired.stored_uid = "u-1".into();
        let desired = Arc::new(desired);
        let mut turn = |stored| ledger.turn(now, &key(), Current::Desired(desired.clone()), true, stored);
        assert_eq!(turn(Stored { is_complete: false, ..NOTHING }), Turn::Nothing, "it may be listed yet");
        assert_eq!(turn(NOTHING), Turn::Create(desired.clone()), "it is gone");
        let unseen = Stored { is_followed: false, ..NOTHING };
        assert_eq!(turn(unseen), Turn::Ensure(desired.clone()), "slices do not have its uid");
        let object = row(&desired, "u-1", 10, |_| ());
        assert_eq!(turn(stored(&object)), Turn::Adopt(desired.clone(), "u-1".into()));
        let foreign = row(&desired, "u-2", 10, |_| ());
        assert_eq!(turn(stored(&foreign)), Turn::Ensure(desired.clone()));
        let changed = row(&desired, "u-1", 10, |object| object["status"]["state"] = "x".into());
        assert_eq!(turn(stored(&changed)), Turn::Ensure(desired.clone()));
        ledger.adopted(&key(), &desired, &"u-1".into(), 10);
        let current = Current::Desired(desired.clone());
        assert_eq!(ledger.turn(now, &key(), current, true, NOTHING), Turn::Ensure(desired));
    }

    #[test]
    fn an_object_that_cannot_be_adopted_is_reported_tried_again_and_never_deleted() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let desired = Arc::new(Desired { may_adopt: false, ..desired(&endpoint(7)) });
        let write = ledger.enqueued(&key(), &desired);
        ledger.refused(now, &key(), write, "not of this node".into());
        assert_eq!(ledger.refusals(), BTreeMap::from([(&key(), "not of this node")]));
        let mut turn = |desired: &Arc<Desired>, now| {
            ledger.turn(now, &key(), Current::Desired(desired.clone()), false, NOTHING)
        };
        assert_eq!(turn(&desired, now), Turn::At(at(15, now)));
        assert_eq!(turn(&desired, at(15, now)), Turn::Ensure(desired.clone()));
        let here = Arc::new(Desired { may_adopt: true, ..(*desired).clone() });
        assert_eq!(turn(&here, now), Turn::Ensure(here.clone()), "the pod's object shows this node now");
        assert_eq!(ledger.turn(now, &key(), Current::None, false, NOTHING), Turn::Nothing);
        assert!(ledger.refusals().is_empty());
    }

    #[test]
    fn another_pod_of_the_name_gets_another_object_and_a_pod_that_is_gone_keeps_its() {
        let mut created = Created::new();
        let next =
            Arc::new(Desired { pod_uid: "pod-2".into(), endpoint: EndpointId(8), ..(*created.1).clone() });
        assert_eq!(created.turn(0, &next, NOTHING), Turn::Recreate(next.clone(), "u-1".into()));
        let Created(mut ledger, _, now) = created;
        let unknown = |id| Current::Unknown(EndpointId(id));
        assert_eq!(ledger.turn(now, &key(), unknown(7), false, NOTHING), Turn::Nothing);
        let delete = Turn::Delete { uid: "u-1".into(), pod_uid: "pod-1".into() };
        assert_eq!(ledger.turn(now, &key(), unknown(8), false, NOTHING), delete, "the endpoint is gone");
        assert_eq!(ledger.turn(now, &key(), unknown(8), false, NOTHING), Turn::Nothing);
    }
}

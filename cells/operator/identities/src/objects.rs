//! CiliumIdentities by labels, and the choice of an id for labels that have none.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use identity_core::{ClusterIdentity, ClusterObject, Range, label_key};
use k8s_types::Time;
use labels::LabelArray;
use tokio::time::Instant;

use crate::label_sets::SetKey;

/// How long the id of a deleted object is kept for its labels: as long as agents keep it.
pub const QUARANTINE: Duration = Duration::from_secs(15 * 60);

/// The objects of the cluster.
#[derive(Debug)]
pub(crate) struct Objects {
    range: Range,
    by_id: HashMap<u32, (SetKey, ClusterObject)>,
    /// Oldest first.
    by_labels: HashMap<SetKey, BTreeSet<(Option<Time>, u32)>>,
    quarantine: Quarantine,
}

/// Ids of deleted objects.
#[derive(Debug, Default)]
struct Quarantine {
    by_id: HashMap<u32, (SetKey, Instant)>,
    by_labels: HashMap<SetKey, BTreeSet<u32>>,
    /// Oldest first. An id that left the quarantine early is still in it.
    order: VecDeque<(Instant, u32)>,
}

impl Quarantine {
    fn insert(&mut self, id: u32, set: &SetKey, now: Instant) {
        self.remove(id);
        self.by_id.insert(id, (set.clone(), now));
        self.by_labels.entry(set.clone()).or_default().insert(id);
        self.order.push_back((now, id));
    }

    fn remove(&mut self, id: u32) {
        let Some((set, _)) = self.by_id.remove(&id) else { return };
        if let Some(ids) = self.by_labels.get_mut(&set) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_labels.remove(&set);
            }
        }
    }

    /// Removes ids that left early from the front. Returns the oldest id, and since when it is quarantined.
    fn oldest(&mut self) -> Option<(u32, Instant)> {
        while let Some(&(since, id)) = self.order.front() {
            if self.by_id.get(&id).is_some_and(|(_, current)| *current == since) {
                return Some((id, since));
            }
            self.order.pop_front();
        }
        None
    }
}

impl Objects {
    pub(crate) fn new(range: Range) -> Objects {
        Objects { range, by_id: HashMap::new(), by_labels: HashMap::new(), quarantine: Quarantine::default() }
    }

    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Takes an object over. Returns the label sets that it concerns: its own, and the one that it had before.
    pub(crate) fn upsert(&mut self, identity: &ClusterIdentity, now: Instant) -> BTreeSet<SetKey> {
        let set: SetKey = label_key(&identity.labels).into();
        let mut changed = self.remove(identity.id, now);
        self.quarantine.remove(identity.id);
        self.by_labels.entry(set.clone()).or_default().insert((identity.object.created, identity.id));
        self.by_id.insert(identity.id, (set.clone(), identity.object));
        changed.insert(set);
        changed
    }

    /// Takes a deletion over.
    pub(crate) fn remove(&mut self, id: u32, now: Instant) -> BTreeSet<SetKey> {
        let Some((set, object)) = self.by_id.remove(&id) else { return BTreeSet::new() };
        if let Some(ids) = self.by_labels.get_mut(&set) {
            ids.remove(&(object.created, id));
            if ids.is_empty() {
                self.by_labels.remove(&set);
            }
        }
        self.quarantine.insert(id, &set, now);
        BTreeSet::from([set])
    }

    /// Returns the identity of a label set, the oldest if there are several, and whether it is marked as unused.
    pub(crate) fn of(&self, set: &str) -> Option<(u32, bool)> {
        let (_, id) = self.by_labels.get(set)?.first()?;
        Some((*id, self.by_id.get(id)?.1.heartbeat))
    }

    /// Returns the ids of all objects.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_id.keys().copied()
    }

    /// Returns the id that labels without an object have had, while it is kept for them.
    pub(crate) fn former_id(&self, set: &str, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        self.quarantine.by_labels.get(set)?.iter().copied().find(|id| !is_taken(*id))
    }

    /// Returns the first free id for labels, in the order that they determine. Costs up to the size of the range.
    pub(crate) fn free_id(&self, labels: &LabelArray, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        let is_free = |id: &u32| {
            !is_taken(*id) && !self.by_id.contains_key(id) && !self.quarantine.by_id.contains_key(id)
        };
        self.range.candidates(labels).find(is_free)
    }

    /// Ends the quarantine of ids whose time is over. Returns whether there were any.
    pub(crate) fn release(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        while let Some((id, since)) = self.quarantine.oldest() {
            if now.saturating_duration_since(since) < QUARANTINE {
                break;
            }
            self.quarantine.remove(id);
            is_any = true;
        }
        is_any
    }

    /// Returns when the next quarantine ends.
    pub(crate) fn next_release(&mut self) -> Option<Instant> {
        self.quarantine.oldest().map(|(_, since)| since + QUARANTINE)
    }
}

#[cfg(test)]
mod tests {
    use labels::Labels;

    use super::*;

    fn labels(text: &str) -> LabelArray {
        LabelArray::from(&Labels::parse([text]))
    }

    fn identity(id: u32, text: &str, created: Option<&str>) -> ClusterIdentity {
        let created = created.map(|time| time.parse().unwrap());
        ClusterIdentity { id, labels: labels(text), object: ClusterObject { created, heartbeat: false } }
    }

    #[test]
    fn the_oldest_object_counts_and_ids_are_not_reused_for_other_labels_too_early() {
        let range = Range { first: 256, last: 259 };
        let (mut objects, begin) = (Objects::new(range), Instant::now());
        objects.upsert(&identity(256, "k8s:a=1", Some("2026-01-02T00:00:00Z")), begin);
        objects.upsert(&identity(259, "k8s:a=1", Some("2026-01-01T00:00:00Z")), begin);
        assert_eq!(objects.of("k8s:a=1"), Some((259, false)));
        assert_eq!(objects.remove(259, begin).into_iter().collect::<Vec<_>>(), ["k8s:a=1".into()]);
        assert_eq!(objects.of("k8s:a=1"), Some((256, false)));

        // The same labels get their id back, others do not, until the quarantine is over.
        let second = begin + Duration::from_secs(1);
        objects.remove(256, second);
        assert_eq!(objects.former_id("k8s:a=1", |_| false), Some(256));
        assert_eq!(objects.former_id("k8s:a=1", |id| id == 256), Some(259));
        assert_eq!(objects.former_id("k8s:b=1", |_| false), None);
        let others = |objects: &mut Objects, now| {
            objects.release(now);
            let mut taken = BTreeSet::new();
            while let Some(id) = objects.free_id(&labels("k8s:b=1"), |id| taken.contains(&id)) {
                taken.insert(id);
            }
            taken.len()
        };
        assert_eq!(objects.next_release(), Some(begin + QUARANTINE));
        assert_eq!(others(&mut objects, begin + QUARANTINE - Duration::from_secs(1)), 2);
        assert_eq!(others(&mut objects, begin + QUARANTINE), 3);
        assert_eq!(objects.next_release(), Some(second + QUARANTINE));

        // An id that has an object again is not released.
        objects.upsert(&identity(256, "k8s:a=1", None), second);
        assert_eq!((objects.next_release(), objects.former_id("k8s:a=1", |_| false)), (None, None));
        assert_eq!(others(&mut objects, second + QUARANTINE), 3);
    }

    #[test]
    fn an_object_with_other_labels_concerns_both_label_sets() {
        let (mut objects, now) = (Objects::new(Range::of_cluster(0, 255)), Instant::now());
        objects.upsert(&identity(300, "k8s:a=1", None), now);
        let changed = objects.upsert(&identity(300, "k8s:b=1", None), now);
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), ["k8s:a=1".into(), "k8s:b=1".into()]);
        assert_eq!((objects.of("k8s:a=1"), objects.of("k8s:b=1")), (None, Some((300, false))));
    }
}

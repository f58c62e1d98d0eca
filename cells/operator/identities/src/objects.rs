//! CiliumIdentities by labels, and the choice of an id for labels that have none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Ids of deleted objects, with their labels.
    quarantined: BTreeMap<u32, (SetKey, Instant)>,
}

impl Objects {
    pub(crate) fn new(range: Range) -> Objects {
        Objects { range, by_id: HashMap::new(), by_labels: HashMap::new(), quarantined: BTreeMap::new() }
    }

    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Takes an object over. Returns the label sets that it concerns: its own, and the one that it had before.
    pub(crate) fn upsert(&mut self, identity: &ClusterIdentity, now: Instant) -> BTreeSet<SetKey> {
        let set: SetKey = label_key(&identity.labels).into();
        let mut changed = self.remove(identity.id, now);
        self.quarantined.remove(&identity.id);
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
        self.quarantined.insert(id, (set.clone(), now));
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

    /// Returns an id for labels without an object: one that they have had, else the first free one.
    pub(crate) fn free_id(
        &mut self,
        labels: &LabelArray,
        is_taken: impl Fn(u32) -> bool,
        now: Instant,
    ) -> Option<u32> {
        self.quarantined.retain(|_, (_, since)| now.saturating_duration_since(*since) < QUARANTINE);
        let set = label_key(labels);
        let own = self.quarantined.iter().find(|(id, (of, _))| **of == *set && !is_taken(**id));
        let is_free =
            |id: &u32| !is_taken(*id) && !self.by_id.contains_key(id) && !self.quarantined.contains_key(id);
        own.map(|(id, _)| *id).or_else(|| self.range.candidates(labels).find(is_free))
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
        objects.remove(256, begin);
        assert_eq!(objects.free_id(&labels("k8s:a=1"), |_| false, begin), Some(256));
        assert_eq!(objects.free_id(&labels("k8s:a=1"), |id| id == 256, begin), Some(259));
        let others = |objects: &mut Objects, now| {
            let mut taken = BTreeSet::new();
            while let Some(id) = objects.free_id(&labels("k8s:b=1"), |id| taken.contains(&id), now) {
                taken.insert(id);
            }
            taken.len()
        };
        assert_eq!(others(&mut objects, begin + QUARANTINE - Duration::from_secs(1)), 2);
        assert_eq!(others(&mut objects, begin + QUARANTINE), 4);
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

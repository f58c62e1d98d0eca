//! The previous engine as the reference: a persistent ordered map for each index, cloned for each version.

use imbl::OrdMap;

use crate::blobs::Blob;

/// One version of the table of blobs: its clone is a snapshot.
#[derive(Clone, Default)]
pub(crate) struct Reference {
    pub(crate) revision: u64,
    primary: OrdMap<Vec<u8>, (Blob, u64)>,
    by_revision: OrdMap<u64, Vec<u8>>,
    by_tag: OrdMap<(Vec<u8>, Vec<u8>), ()>,
    graves: OrdMap<Vec<u8>, u64>,
    graveyard: OrdMap<u64, Blob>,
}

/// A change: key, revision, whether it is a delete.
pub(crate) type Seen = (Vec<u8>, u64, bool);

impl Reference {
    pub(crate) fn insert(&mut self, blob: Blob) -> Option<Blob> {
        self.revision += 1;
        let key = blob.key.clone();
        let old = self.unlink(&key);
        if let Some(revision) = self.graves.remove(&key) {
            self.graveyard.remove(&revision);
        }
        for tag in &blob.tags {
            self.by_tag.insert((tag.clone(), key.clone()), ());
        }
        self.by_revision.insert(self.revision, key.clone());
        self.primary.insert(key, (blob, self.revision));
        old
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Option<Blob> {
        let old = self.unlink(key)?;
        self.revision += 1;
        self.graves.insert(key.to_vec(), self.revision);
        self.graveyard.insert(self.revision, old.clone());
        Some(old)
    }

    fn unlink(&mut self, key: &[u8]) -> Option<Blob> {
        let (old, revision) = self.primary.remove(key)?;
        self.by_revision.remove(&revision);
        for tag in &old.tags {
            self.by_tag.remove(&(tag.clone(), key.to_vec()));
        }
        Some(old)
    }

    pub(crate) fn len(&self) -> usize {
        self.primary.len()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&(Blob, u64)> {
        self.primary.get(key)
    }

    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &(Blob, u64)> {
        self.primary.values()
    }

    pub(crate) fn prefix<'s>(&'s self, start: &'s [u8]) -> impl Iterator<Item = &'s (Blob, u64)> {
        self.from(start).take_while(move |(blob, _)| blob.key.starts_with(start))
    }

    pub(crate) fn from(&self, key: &[u8]) -> impl DoubleEndedIterator<Item = &(Blob, u64)> {
        self.primary.range(key.to_vec()..).map(|(_, row)| row)
    }

    /// Returns the keys from `start` (inclusive) to `end` (exclusive).
    pub(crate) fn between(&self, start: &[u8], end: &[u8]) -> impl DoubleEndedIterator<Item = &(Blob, u64)> {
        let end = end.max(start);
        self.primary.range(start.to_vec()..end.to_vec()).map(|(_, row)| row)
    }

    pub(crate) fn by_revision(&self, from: u64) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        self.by_revision.range(from..).map(|(revision, key)| (*revision, key))
    }

    pub(crate) fn tagged(&self, tag: &[u8]) -> Vec<Vec<u8>> {
        let all = self.by_tag.range((tag.to_vec(), Vec::new())..);
        all.take_while(|((other, _), ())| other == tag).map(|((_, key), ())| key.clone()).collect()
    }

    /// Returns the keys of the rows with a tag that starts with this, each once, in order of the smallest such tag.
    pub(crate) fn tag_prefix(&self, start: &[u8]) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let all = self.by_tag.range((start.to_vec(), Vec::new())..);
        for ((_, key), ()) in all.take_while(|((tag, _), ())| tag.starts_with(start)) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        keys
    }

    /// Returns the next changes of an iterator that has seen all up to a revision.
    pub(crate) fn changes(&self, seen: u64, limit: usize) -> Vec<Seen> {
        let updates =
            self.by_revision.range(seen + 1..).map(|(revision, key)| (key.clone(), *revision, false));
        let deletes =
            self.graveyard.range(seen + 1..).map(|(revision, blob)| (blob.key.clone(), *revision, true));
        let mut all: Vec<Seen> = updates.chain(deletes).collect();
        all.sort_by_key(|seen| seen.1);
        all.truncate(limit);
        all
    }
}

//! Rows with arbitrary keys, which may be prefixes of each other, that count their instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use statedb::{Index, IndexDef, IndexKey, KeyBuf, KeyParseError, PrefixOf, Query, TableDisplay, TableSpec};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Blob {
    pub(crate) key: Vec<u8>,
    pub(crate) tags: Vec<Vec<u8>>,
    pub(crate) value: u64,
    #[serde(skip)]
    #[expect(dead_code, reason = "counts by being there")]
    pub(crate) counted: Counted,
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.tags, self.value) == (&other.key, &other.tags, other.value)
    }
}

/// A counter of its live instances.
#[derive(Debug, Default)]
pub(crate) struct Counted(pub(crate) Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count.clone())
    }
}

impl Clone for Counted {
    /// Returns an instance that is not counted: clones belong to the test, not to the table.
    fn clone(&self) -> Self {
        Counted::new(&Arc::default())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes encoded without escaping or terminator.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl IndexKey for Raw<'_> {
    fn encode(&self, key: &mut KeyBuf) {
        key.push(self.0);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        key.push(text.as_bytes());
        Ok(())
    }
}

impl PrefixOf<Raw<'static>> for Raw<'_> {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        key.push(self.0);
    }
}

pub(crate) const BY_TAG: Index<Blob, [u8]> =
    Index::new("tag", |blob, keys| keys.extend(blob.tags.iter().map(|tag| &**tag)));

impl TableSpec for Blob {
    const NAME: &'static str = "blobs";
    type Key<'a> = Raw<'a>;

    fn key(&self) -> Raw<'_> {
        Raw(&self.key)
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_TAG.def()]
    }
}

impl TableDisplay for Blob {
    fn columns() -> &'static [&'static str] {
        &["Key"]
    }

    fn row(&self) -> Vec<String> {
        vec![format!("{:?}", self.key)]
    }
}

pub(crate) fn by_key(key: &[u8]) -> Query<Blob> {
    Query::primary(Raw(key))
}

/// Keys that split, grow, shrink, chain and merge nodes.
pub(crate) fn a_key() -> impl Strategy<Value = Vec<u8>> {
    let long = |len: usize| {
        (vec(0..3u8, 0..3), vec(0..3u8, 0..2)).prop_map(move |(mut head, tail)| {
            head.extend(std::iter::repeat_n(7, len));
            head.extend(tail);
            head
        })
    };
    prop_oneof![
        4 => vec(0..2u8, 0..6),
        4 => any::<u8>().prop_map(|byte| vec![byte]),
        3 => (0..2u8, any::<u8>()).prop_map(|(first, byte)| vec![first, byte]),
        2 => vec(any::<u8>(), 0..4),
        1 => long(18),
        1 => long(21),
        1 => long(45),
        1 => long(70),
    ]
}

pub(crate) fn some_tags() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..4), 0..3)
}

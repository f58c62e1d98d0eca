//! Scopes of identities, and the ranges that they are allocated from.

use labels::LabelArray;

/// Where an identity is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Below 256: fixed, never allocated.
    Reserved,
    /// Workloads.
    Global,
    /// Prefixes, on this node only: bit 24.
    Local,
    /// Addresses of other nodes, on this node only: bit 25.
    RemoteNode,
}

/// The first identity of workloads in a cluster with id zero.
const FIRST: u32 = 256;
const LOCAL: u32 = 1 << 24;
const REMOTE_NODE: u32 = 2 << 24;

impl Scope {
    /// Returns the scope of an identity.
    pub fn of(id: u32) -> Scope {
        match id {
            0..FIRST => Scope::Reserved,
            FIRST..LOCAL => Scope::Global,
            LOCAL..REMOTE_NODE => Scope::Local,
            REMOTE_NODE.. => Scope::RemoteNode,
        }
    }

    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Reserved => "reserved",
            Scope::Global => "global",
            Scope::Local => "local",
            Scope::RemoteNode => "remote-node",
        }
    }
}

/// Identities that may be allocated, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl Range {
    /// The identities of prefixes.
    pub const PREFIXES: Range = Range { first: LOCAL + 1, last: REMOTE_NODE - 1 };

    /// The identities of other nodes.
    pub const REMOTE_NODES: Range = Range { first: REMOTE_NODE + 1, last: REMOTE_NODE + LOCAL - 1 };

    /// Returns the identities of workloads of a cluster, a part of its own unless its id is zero. In a mesh of 511
    /// clusters each has half as many as in one of 255.
    pub fn of_cluster(cluster_id: u32, max_connected_clusters: u32) -> Range {
        let bits = if max_connected_clusters > 255 { 15 } else { 16 };
        match cluster_id {
            0 => Range { first: FIRST, last: (1 << bits) - 1 },
            id => Range { first: (id << bits).max(FIRST), last: ((id + 1) << bits) - 1 },
        }
    }

    /// Whether the identity is in the range.
    pub fn contains(self, id: u32) -> bool {
        (self.first..=self.last).contains(&id)
    }

    /// Returns the number of identities in the range.
    pub fn len(self) -> u32 {
        self.last - self.first + 1
    }

    /// Whether the range is empty, which it never is.
    pub fn is_empty(self) -> bool {
        self.last < self.first
    }

    /// Iterates over all identities once, from `start`, wrapping around at the end.
    pub fn around(self, start: u32) -> impl Iterator<Item = u32> {
        (start..=self.last).chain(self.first..start)
    }

    /// Iterates over all ids in the order that the labels determine: allocators that search for the same labels at once agree on
    /// an id.
    pub fn candidates(self, labels: &LabelArray) -> impl Iterator<Item = u32> + use<> {
        self.shuffled(hash(&label_key(labels)))
    }

    /// Iterates over all identities once, in an order that the seed determines. A linear probe would walk along
    /// clusters of used ids; this order finds a free one in few steps even if the range is almost full.
    fn shuffled(self, seed: u64) -> impl Iterator<Item = u32> {
        let len = u64::from(self.len());
        let mut step = (seed >> 32) % len;
        while gcd(step, len) != 1 {
            step = (step + 1) % len;
        }
        (0..len).scan(seed % len, move |at, _| {
            let here = *at;
            *at = (here + step) % len;
            Some(self.first + here as u32)
        })
    }
}

/// Returns all labels as one text, by which identities are indexed.
pub fn label_key(labels: &LabelArray) -> String {
    labels.texts().join(";")
}

/// Returns the FNV-1a hash with an additional mixing step: the same on every node and in every version.
fn hash(text: &str) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_do_not_share_identities() {
        let range = |id, max| Range::of_cluster(id, max).to_string();
        assert_eq!(range(0, 255), "256-65535");
        assert_eq!(range(1, 255), "65536-131071");
        assert_eq!(range(255, 255), "16711680-16777215");
        assert_eq!(range(0, 511), "256-32767");
        assert_eq!(range(511, 511), "16744448-16777215");
        assert_eq!(Scope::of(16_777_215), Scope::Global);
        assert_eq!(Scope::of(16_777_216), Scope::Local);
        assert_eq!(Scope::of(33_554_432), Scope::RemoteNode);
    }

    #[test]
    fn a_search_visits_every_id_once() {
        let range = Range { first: 3, last: 6 };
        for start in 3..=6 {
            let mut seen: Vec<u32> = range.around(start).collect();
            assert_eq!(seen[0], start);
            seen.sort_unstable();
            assert_eq!(seen, [3, 4, 5, 6]);
        }
        for seed in [0, 7, 1 << 32, 0xdead_beef_0123_4567, u64::MAX] {
            let range = Range::of_cluster(0, 255);
            let mut seen: Vec<u32> = range.shuffled(seed).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(256..=65_535));
        }
    }
}

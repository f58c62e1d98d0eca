//! Where numbers are valid, and which of them may be given out.

/// Where a number is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Below 256: the same everywhere, never given out.
    Reserved,
    /// Workloads.
    Global,
    /// Prefixes, on this node only: bit 24.
    Local,
    /// Addresses of other nodes, on this node only: bit 25.
    RemoteNode,
}

/// First number of workloads in a cluster without a number of its own.
const FIRST: u32 = 256;
const LOCAL: u32 = 1 << 24;
const REMOTE_NODE: u32 = 2 << 24;

impl Scope {
    /// The scope of a number.
    pub fn of(id: u32) -> Scope {
        match id {
            0..FIRST => Scope::Reserved,
            FIRST..LOCAL => Scope::Global,
            LOCAL..REMOTE_NODE => Scope::Local,
            REMOTE_NODE.. => Scope::RemoteNode,
        }
    }

    /// The word in the table.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Reserved => "reserved",
            Scope::Global => "global",
            Scope::Local => "local",
            Scope::RemoteNode => "remote-node",
        }
    }
}

/// Numbers that may be given out, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl Range {
    /// Numbers of prefixes.
    pub(crate) const PREFIXES: Range = Range { first: LOCAL + 1, last: REMOTE_NODE - 1 };

    /// Numbers of workloads of a cluster, which has a part of them for itself unless its own number is zero. In a mesh
    /// of 511 clusters each has half as many as in one of 255.
    pub fn of_cluster(cluster_id: u32, max_connected_clusters: u32) -> Range {
        let bits = if max_connected_clusters > 255 { 15 } else { 16 };
        match cluster_id {
            0 => Range { first: FIRST, last: (1 << bits) - 1 },
            id => Range { first: (id << bits).max(FIRST), last: ((id + 1) << bits) - 1 },
        }
    }

    /// Whether the number is one of them.
    pub fn contains(self, id: u32) -> bool {
        (self.first..=self.last).contains(&id)
    }

    /// How many there are.
    pub fn len(self) -> u32 {
        self.last - self.first + 1
    }

    /// Whether there is none; never so.
    pub fn is_empty(self) -> bool {
        self.last < self.first
    }

    /// All numbers once, from one on and around.
    pub(crate) fn around(self, start: u32) -> impl Iterator<Item = u32> {
        (start..=self.last).chain(self.first..start)
    }

    /// All numbers once, in an order that the seed tells: a full range costs each search few steps more, where one that
    /// goes from neighbour to neighbour would run along the crowd.
    pub(crate) fn shuffled(self, seed: u64) -> impl Iterator<Item = u32> {
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
    fn clusters_do_not_share_numbers() {
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
    fn a_search_comes_by_every_number_once() {
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

//! Maglev tables: the backend for each hash of a packet, the same on every node and in every version.
//!
//! Each backend has a permutation of all positions, from the hash of its text; in turns each takes its next free
//! position. Texts, hash, order and turns equal those of Cilium byte for byte: a connection that moves to another node,
//! or that continues after an upgrade, keeps its backend.

use std::fmt::Write;
use std::sync::Arc;

use crate::model::address::LbAddress;
use crate::option_values::{MaglevSeed, MaglevTableSize};

/// The valid sizes of a table: primes, so that every step size visits all positions.
pub const TABLE_SIZES: [u32; 10] = [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131_071];

/// The parameters of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maglev {
    size: u32,
    seed: u32,
}

/// A backend in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its address; tables depend on addresses, not on ids.
    pub address: LbAddress,
    /// Its share of the table, relative to that of others.
    pub weight: u16,
    /// Its id, which differs from node to node.
    pub id: u32,
}

/// The table computed last: frontends of one service usually have the same backends.
#[derive(Debug, Default)]
pub(crate) struct LastTable(Option<(Vec<Share>, Arc<[u32]>)>);

impl LastTable {
    pub(crate) fn of(&mut self, maglev: Maglev, shares: &[Share]) -> Arc<[u32]> {
        match &self.0 {
            Some((last, table)) if last == shares => table.clone(),
            _ => {
                let table: Arc<[u32]> = maglev.table(shares).into();
                self.0 = Some((shares.to_vec(), table.clone()));
                table
            }
        }
    }
}

/// A free position: no backend has this id.
const FREE: u32 = u32::MAX;

/// A backend's permutation of the positions of a table.
struct Walk {
    /// The next position to try.
    at: u32,
    /// One to four steps, each less than the table's size.
    steps: [u32; 4],
    share: Share,
}

/// The default values of the options.
impl Default for Maglev {
    fn default() -> Maglev {
        Maglev { size: 16381, seed: 0x24b7_ef82 }
    }
}

/// Returns a hash that distinguishes tables, so that they need not be stored.
pub fn digest(table: &[u32]) -> u64 {
    murmur3_128(bpf::bytes_of(table), 0).0
}

impl Maglev {
    /// Returns the parameters for tables of this size and seed.
    pub fn new(size: MaglevTableSize, seed: MaglevSeed) -> Maglev {
        Maglev { size: size.positions(), seed: seed.of_backends() }
    }

    /// Returns the number of positions of a table.
    pub fn size(self) -> u32 {
        self.size
    }

    /// Returns the ids of the backends by position, independent of the order of `shares`. Empty without backends.
    pub fn table(self, shares: &[Share]) -> Vec<u32> {
        if shares.is_empty() {
            return Vec::new();
        }
        let mut named: Vec<(String, Share)> =
            shares.iter().map(|share| (text(&share.address), *share)).collect();
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut walks: Vec<Walk> = named.iter().map(|(text, share)| self.walk(text, *share)).collect();
        let equal = shares.iter().all(|share| share.weight == shares[0].weight);
        let sum: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
        let mut table = Table::new(self.size);
        if equal || sum / shares.len() as u64 <= 1 {
            // With equal weights no backend ever skips a turn.
            let mut turn = 0;
            for _ in 0..self.size {
                table.take(&mut walks[turn]);
                turn = if turn + 1 == walks.len() { 0 } else { turn + 1 };
            }
        } else {
            table.take_weighted(&mut walks, sum);
        }
        table.ids
    }

    fn walk(self, text: &str, share: Share) -> Walk {
        let (h1, h2) = murmur3_128(text.as_bytes(), self.seed);
        let size = u64::from(self.size);
        let skip = h2 % (size - 1) + 1;
        Walk { at: (h1 % size) as u32, steps: [1, 2, 3, 4].map(|n| (skip * n % size) as u32), share }
    }
}

/// A table under construction.
struct Table {
    size: u32,
    ids: Vec<u32>,
    /// Whether a position is taken: smaller than the ids, and read much more often.
    taken: Vec<bool>,
}

impl Table {
    fn new(size: u32) -> Table {
        let ids = vec![FREE; size as usize];
        Table { size, ids, taken: vec![false; size as usize] }
    }

    /// Takes the next free position of a backend.
    #[inline]
    fn take(&mut self, walk: &mut Walk) {
        let at = self.next(walk);
        self.ids[at as usize] = walk.share.id;
        self.taken[at as usize] = true;
        walk.at = self.plus(at, walk.steps[0]);
    }

    /// Weights decide which backend skips a turn, as in Cilium: with its rounding.
    fn take_weighted(&mut self, walks: &mut [Walk], sum: u64) {
        let count = walks.len();
        let weight = |walk: &Walk| u64::from(walk.share.weight);
        let mut counters: Vec<f64> = walks.iter().map(|walk| weight(walk) as f64 / count as f64).collect();
        for n in 0..self.size {
            let mut turn = n as usize % count;
            while u64::from(n + 1) * weight(&walks[turn]) < counters[turn] as u64 {
                turn = (turn + 1) % count;
            }
            counters[turn] += sum as f64;
            self.take(&mut walks[turn]);
        }
    }

    #[inline]
    fn plus(&self, at: u32, step: u32) -> u32 {
        let sum = at + step;
        if sum >= self.size { sum - self.size } else { sum }
    }

    /// Returns the next free position, four at a time: the processor needs not guess where it is.
    #[inline]
    fn next(&self, walk: &Walk) -> u32 {
        let mut at = walk.at;
        loop {
            let tries = [
                at,
                self.plus(at, walk.steps[0]),
                self.plus(at, walk.steps[1]),
                self.plus(at, walk.steps[2]),
            ];
            let free = tries.map(|position| !self.taken[position as usize]);
            let first = free[0] as usize
                | (free[1] as usize) << 1
                | (free[2] as usize) << 2
                | (free[3] as usize) << 3;
            if first != 0 {
                return tries[first.trailing_zeros() as usize];
            }
            at = self.plus(at, walk.steps[3]);
        }
    }
}

/// Returns the text that a backend is hashed by. The state is always this one, also of the last resort.
fn text(address: &LbAddress) -> String {
    let mut text = String::with_capacity(64);
    let _ = write!(text, "[{address},State:active]");
    text
}

/// MurmurHash3 of 128 bits for 64-bit machines, as its author published it; both halves have the same seed.
pub(crate) fn murmur3_128(bytes: &[u8], seed: u32) -> (u64, u64) {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (mut h1, mut h2) = (u64::from(seed), u64::from(seed));
    let blocks = bytes.chunks_exact(16);
    let tail = blocks.remainder();
    for block in blocks {
        h1 ^= mix1(word(&block[..8]));
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix2(word(&block[8..]));
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    // An empty half adds nothing.
    h2 ^= mix2(word(tail.get(8..).unwrap_or_default()));
    h1 ^= mix1(word(&tail[..tail.len().min(8)]));
    let finish = |mut h: u64| {
        h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^ h >> 33
    };
    h1 ^= bytes.len() as u64;
    h2 ^= bytes.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1);
    h2 = finish(h2);
    h1 = h1.wrapping_add(h2);
    (h1, h2.wrapping_add(h1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Returns the parameters for tables of this size with the default seed.
    fn tables(size: u32) -> Maglev {
        Maglev::new(MaglevTableSize::new(size).unwrap(), MaglevSeed::from_base64("JLfvgnHc2kaSUFaI").unwrap())
    }

    fn share(ip: &str, port: u16, weight: u16, id: u32) -> Share {
        Share { address: format!("{ip}:{port}/TCP").parse().unwrap(), weight, id }
    }

    /// Counts positions by backend as Cilium's dump does: largest first.
    fn counts(table: &[u32]) -> Vec<(u32, usize)> {
        let mut counts = BTreeMap::<u32, usize>::new();
        table.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(id, count)| (usize::MAX - count, *id));
        counts
    }

    /// Computes a table by the definition: whole permutations, one position after the other.
    fn plain(Maglev { size, seed }: Maglev, shares: &[Share]) -> Vec<u32> {
        let mut named: Vec<(String, Share)> =
            shares.iter().map(|share| (format!("[{},State:active]", share.address), *share)).collect();
        named.sort_by_key(|(text, _)| text.clone());
        let m = u64::from(size);
        let permutations: Vec<Vec<u64>> = named
            .iter()
            .map(|(text, _)| {
                let (h1, h2) = murmur3_128(text.as_bytes(), seed);
                (0..m).map(|j| (h1 % m + j * (h2 % (m - 1) + 1)) % m).collect()
            })
            .collect();
        let count = named.len();
        let weights: Vec<u64> = named.iter().map(|(_, share)| share.weight.into()).collect();
        let sum: u64 = weights.iter().sum();
        let mut counters: Vec<f64> = weights.iter().map(|weight| *weight as f64 / count as f64).collect();
        let mut next = vec![0; count];
        let mut table = vec![FREE; size as usize];
        for n in 0..m {
            let mut i = n as usize % count;
            if sum / count as u64 > 1 {
                while (n + 1) * weights[i] < counters[i] as u64 {
                    i = (i + 1) % count;
                }
                counters[i] += sum as f64;
            }
            while table[permutations[i][next[i]] as usize] != FREE {
                next[i] += 1;
            }
            table[permutations[i][next[i]] as usize] = named[i].1.id;
        }
        table
    }

    #[test]
    fn the_hash_is_the_published_one() {
        let hash = |text: &str, seed| murmur3_128(text.as_bytes(), seed);
        assert_eq!(hash("", 0), (0, 0));
        let fox = "The quick brown fox jumps over the lazy dog";
        assert_eq!(hash(fox, 0), (0xe34b_bc7b_bc07_1b6c, 0x7a43_3ca9_c49a_9347));
        assert_eq!(hash("hello, world", 0), (0x342f_ac62_3a5e_bc8e, 0x4cdc_bc07_9642_414d));
    }

    #[test]
    fn seeds_are_twelve_bytes() {
        for wrong in ["", "JLfvgnHc2kaSUFa", "JLfvgnHc2kaSUFaIJLfv", "JLfvgnHc2kaSUFa=", "JLfvgnHc 2kaSUFa"] {
            assert_eq!(MaglevSeed::from_base64(wrong), None, "{wrong}");
        }
        assert_eq!(tables(16_381), Maglev::default());
    }

    #[test]
    fn shares_are_those_recorded_from_cilium() {
        let maglev = tables(251);
        let even: Vec<Share> = (1..4).map(|n| share(&format!("10.55.0.{n}"), 9696, 100, n)).collect();
        assert_eq!(counts(&maglev.table(&even)), [(1, 84), (2, 84), (3, 83)]);
        assert_eq!(counts(&maglev.table(&[even[0], even[2]])), [(1, 126), (3, 125)]);
        let maglev = tables(509);
        let of = |weight| [share("10.55.1.1", 9797, weight, 1), share("10.55.1.2", 9797, 150, 2)];
        assert_eq!(counts(&maglev.table(&of(50))), [(2, 381), (1, 128)]);
        assert_eq!(counts(&maglev.table(&of(150))), [(1, 255), (2, 254)]);
        assert_eq!(maglev.table(&[]), [] as [u32; 0]);
    }

    /// Of ten backends one leaves: a tenth of the flows must move, and few others do.
    #[test]
    fn few_positions_move_when_a_backend_leaves() {
        let maglev = tables(16_381);
        let all: Vec<Share> = (1..=10).map(|n| share(&format!("10.55.0.{n}"), 9696, 100, n)).collect();
        let (before, after) = (maglev.table(&all), maglev.table(&all[..9]));
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        let others = moved.filter(|(before, _)| **before != 10).count();
        assert!(others * 100 < 16_381 * 5, "{others}");
    }

    #[test]
    fn the_largest_table_is_exact() {
        let maglev = tables(131_071);
        let shares: Vec<Share> = (1..=7).map(|n| share(&format!("10.0.0.{n}"), 80, 100, n)).collect();
        assert_eq!(maglev.table(&shares), plain(maglev, &shares));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn tables_are_those_of_whole_permutations(
            size in prop::sample::select(&TABLE_SIZES[..7]),
            weights in proptest::collection::vec(prop_oneof![Just(100_u16), 0_u16..4, 1_u16..65_535], 1..40),
            equal in any::<bool>(),
            v6 in any::<bool>(),
        ) {
            let maglev = tables(size);
            let share = |(n, weight): (usize, &u16)| {
                let ip = if v6 { format!("[fd00::{n:x}]") } else { format!("10.1.{}.{n}", n % 3) };
                share(&ip, 8080, if equal { 100 } else { *weight }, n as u32 + 1)
            };
            let shares: Vec<Share> = weights.iter().enumerate().map(share).collect();
            prop_assert_eq!(maglev.table(&shares), plain(maglev, &shares));
            // The order of the input has no effect.
            let reversed: Vec<Share> = shares.iter().rev().copied().collect();
            prop_assert_eq!(maglev.table(&reversed), maglev.table(&shares));
        }
    }
}

//! Mutated inputs of the corpus, without the engine: as many as a test run can afford. `ROUNDS` sets the number.

use std::fs;
use std::path::Path;

use fuzz::{TARGETS, Target};

/// The number of mutations of each input.
const ROUNDS: u64 = 10;

/// SplitMix64: the same inputs in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}

fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Byte strings with a meaning in one of the parsers.
const WORDS: [&[u8]; 24] = [
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b"\n~\n",
    b"null",
    b"-1",
    b"4294967296",
    b"18446744073709551616",
    b"1e400",
    b"\\u0000",
    b"\xff",
    b"%00",
    b"/",
    b"..",
    b"&a",
    b"*a",
    b"---\n",
    b"0",
    b"",
];

/// Applies one to four mutations: a byte, a word, a removed piece, a repeated piece, a piece of another input.
fn change(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(16)).min(data.len());
        match random.below(6) {
            0 if at < data.len() => data[at] = random.below(256) as u8,
            1 if at < data.len() => data[at] ^= 1 << random.below(8),
            2 => drop(data.drain(at..end)),
            3 => {
                let piece = data[at..end].to_vec();
                data.splice(at..at, piece);
            }
            4 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                data.splice(at..end, other[from..to].iter().copied());
            }
            _ => drop(data.splice(at..end, WORDS[random.below(WORDS.len())].iter().copied())),
        }
    }
}

#[test]
fn changed_inputs_pass() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let only = std::env::var("TARGET").ok();
    for target in TARGETS.iter().filter(|target| only.as_deref().is_none_or(|only| only == target.name)) {
        let inputs = inputs(target);
        let mut random = Random(20);
        for round in 0..rounds {
            for (at, input) in inputs.iter().enumerate() {
                let mut data = input.clone();
                change(&mut data, &inputs[random.below(inputs.len())], &mut random);
                data.truncate(target.longest);
                if std::panic::catch_unwind(|| (target.run)(&data)).is_err() {
                    panic!(
                        "{}, round {round}, input {at}: {:?}",
                        target.name,
                        String::from_utf8_lossy(&data)
                    );
                }
            }
        }
    }
}

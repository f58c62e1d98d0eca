//! Keys that are so many leading bits of something, in a form in which the prefixes that cover a key are found on the way
//! to it.
//!
//! Such a key is a word of symbols, one byte each. A symbol stands for up to five bits: they are its upper bits, their
//! number its lower three. All symbols but the last stand for five bits, the last for fewer, maybe none. So no word is a
//! prefix of another, words compare as the bits do, and what covers comes before what it covers.

use super::{Bytes, INLINE, KeyBuf};

/// Bits a symbol, and the bytes whose bits fill whole symbols.
const STRIDE: usize = 5;
const SYMBOLS: usize = 8;

impl KeyBuf {
    /// Appends the first so many bits of `data` as a key of a longest-prefix-match index.
    ///
    /// # Panics
    /// If `data` has fewer.
    pub fn push_bits(&mut self, data: &[u8], bits: u16) {
        let bits = usize::from(bits);
        assert!(bits <= data.len() * 8, "{bits} bits of {} bytes", data.len());
        if let Ok(bytes) = data.try_into() {
            return self.push_bits_of_16(u128::from_be_bytes(bytes), bits);
        }
        let mut chunk = [0; 8];
        let mut parts = data[..bits.div_ceil(8)].chunks(STRIDE);
        let mut left = bits;
        while left >= STRIDE * 8 {
            let part = parts.next().unwrap_or_default();
            chunk[3..].copy_from_slice(part);
            self.push(&symbols(u64::from_be_bytes(chunk)));
            left -= STRIDE * 8;
        }
        let part = parts.next().unwrap_or_default();
        chunk[3..].fill(0);
        chunk[3..3 + part.len()].copy_from_slice(part);
        let mut last = symbols(u64::from_be_bytes(chunk));
        let (whole, rest) = (left / STRIDE, left % STRIDE);
        last[whole] = first_bits(last[whole], rest as u8);
        self.push(&last[..=whole]);
    }

    /// The same without a loop, for addresses.
    #[inline]
    fn push_bits_of_16(&mut self, data: u128, bits: usize) {
        let mut all = [0; 4 * SYMBOLS];
        for (at, part) in all.chunks_exact_mut(SYMBOLS).enumerate() {
            part.copy_from_slice(&symbols((data << (at * STRIDE * 8) >> 88) as u64));
        }
        let (whole, rest) = (bits / STRIDE, bits % STRIDE);
        all[whole] = first_bits(all[whole], rest as u8);
        match &mut self.0 {
            Bytes::Inline { len: len @ 0, data } => {
                const { assert!(4 * SYMBOLS <= INLINE) };
                data[..all.len()].copy_from_slice(&all);
                *len = whole as u8 + 1;
            }
            _ => self.push(&all[..=whole]),
        }
    }
}

/// The symbols of 40 bits.
#[inline]
fn symbols(bits: u64) -> [u8; SYMBOLS] {
    let halves = (bits & 0xff_fff0_0000) << 12 | bits & 0xf_ffff;
    let quarters = (halves & 0x000f_fc00_000f_fc00) << 6 | halves & 0x0000_03ff_0000_03ff;
    let eighths = (quarters & 0x03e0_03e0_03e0_03e0) << 3 | quarters & 0x001f_001f_001f_001f;
    (eighths << 3 | 0x0505_0505_0505_0505).to_be_bytes()
}

/// The symbol of the first so many of a symbol's bits.
#[inline(always)]
fn first_bits(symbol: u8, bits: u8) -> u8 {
    symbol & !(0xff >> bits) | bits
}

/// The last symbols of what covers a word that goes on with this one, in ascending order, the longest maybe several times:
/// itself if it is one.
#[inline(always)]
pub(crate) fn covering(symbol: u8) -> [u8; STRIDE] {
    let longest = (symbol & 7).min(STRIDE as u8 - 1);
    std::array::from_fn(|bits| first_bits(symbol, longest.min(bits as u8)))
}

/// What the words inside a prefix are below: all of them start so, and are between the prefix's own word and this one. None
/// if all that start so are inside.
pub(crate) fn inside(word: &[u8]) -> (&[u8], Option<KeyBuf>) {
    match word.split_last() {
        None | Some((0, _)) => (word.split_last().map_or(word, |(_, start)| start), None),
        Some((last, start)) => {
            let mut end = KeyBuf::new();
            end.push(start);
            end.push(&[last | 0xff >> (last & 7)]);
            (start, Some(end))
        }
    }
}

//! Keys that are prefixes of bit strings, encoded so that a lookup passes all prefixes that cover a key on its way.
//!
//! The encoding is a word of symbols, one byte each. A symbol stands for up to five bits, which are its upper bits;
//! their count is in its lower three. All symbols but the last stand for five bits, the last for fewer, possibly none.
//! Hence no word is a prefix of another, words compare as the bits do, and a prefix sorts before those that it covers.

use super::{Bytes, INLINE, KeyBuf};

/// The number of bits in a symbol, and also of bytes in a block: 5 bytes are 40 bits, which are 8 symbols.
const STRIDE: usize = 5;
const SYMBOLS: usize = 8;

impl KeyBuf {
    /// Appends the first `bits` bits of `data` as a key of a longest-prefix-match index.
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

    /// Like `push_bits`, for the 16 bytes of addresses: always encodes all four blocks, and copies the used part.
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
                data.0[..all.len()].copy_from_slice(&all);
                *len = whole as u8 + 1;
            }
            _ => self.push(&all[..=whole]),
        }
    }
}

/// Returns the symbols of 40 bits: spreads them over 8 bytes, then sets the count of each to 5.
#[inline]
fn symbols(bits: u64) -> [u8; SYMBOLS] {
    let halves = (bits & 0xff_fff0_0000) << 12 | bits & 0xf_ffff;
    let quarters = (halves & 0x000f_fc00_000f_fc00) << 6 | halves & 0x0000_03ff_0000_03ff;
    let eighths = (quarters & 0x03e0_03e0_03e0_03e0) << 3 | quarters & 0x001f_001f_001f_001f;
    (eighths << 3 | 0x0505_0505_0505_0505).to_be_bytes()
}

/// Returns the symbol for the first `bits` bits of a symbol.
#[inline(always)]
fn first_bits(symbol: u8, bits: u8) -> u8 {
    symbol & !(0xff >> bits) | bits
}

/// Returns the possible last symbols of the words that cover a word with `symbol` at this place, in ascending order.
/// The longest may be repeated; it is `symbol` itself if that is a last symbol.
#[inline(always)]
pub(crate) fn covering(symbol: u8) -> [u8; STRIDE] {
    let longest = (symbol & 7).min(STRIDE as u8 - 1);
    std::array::from_fn(|bits| first_bits(symbol, longest.min(bits as u8)))
}

/// Returns the range of the words inside a prefix: their common start, and the exclusive upper bound of those at or
/// after the prefix's own word. No bound if all words with that start are inside.
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

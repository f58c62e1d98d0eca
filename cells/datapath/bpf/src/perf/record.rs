//! Records of a ring: `struct perf_event_header` of `linux/perf_event.h` and what follows it.

/// `PERF_RECORD_LOST`: records for which the ring had no space, reported with the next one that fits.
const LOST: u32 = 2;
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// The size of `struct perf_event_header`: kind, flags, size of the record.
const HEADER_LEN: usize = 8;

/// A record of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Bytes that a program wrote, padded by the kernel. A record around the end of the ring has a second part.
    Sample {
        /// The bytes up to the end of the ring.
        head: &'a [u8],
        /// The bytes from its begin on.
        tail: &'a [u8],
    },
    /// Records that did not fit.
    Lost {
        /// Their number.
        count: u64,
    },
}

/// Bytes of a ring: two parts if they go around its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

/// The records of a span, oldest first. Kinds other than those of [`Record`] are skipped. A record whose sizes
/// contradict each other is a lost one; if the size of the whole record is impossible, the rest is skipped with it.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: Span<'a>,
}

impl<'a> Span<'a> {
    /// Returns the span of two parts, of which either may be empty.
    #[must_use]
    pub fn new(first: &'a [u8], second: &'a [u8]) -> Self {
        Self { first, second }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Splits after so many bytes; `None` if there are fewer.
    fn split_at(self, at: usize) -> Option<(Self, Self)> {
        if let Some((head, rest)) = self.first.split_at_checked(at) {
            return Some((Self::new(head, &[]), Self::new(rest, self.second)));
        }
        let (head, rest) = self.second.split_at_checked(at - self.first.len())?;
        Some((Self::new(self.first, head), Self::new(rest, &[])))
    }

    /// Removes the first bytes and returns them.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.split_at(N)?;
        *self = rest;
        let mut bytes = [0; N];
        bytes[..head.first.len()].copy_from_slice(head.first);
        bytes[head.first.len()..].copy_from_slice(head.second);
        Some(bytes)
    }
}

impl<'a> Records<'a> {
    /// Returns the records of a span that begins with one.
    #[must_use]
    pub fn new(span: Span<'a>) -> Self {
        Self { rest: span }
    }

    /// Returns the number of bytes that have not been read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.rest.len()
    }

    /// Removes the next record; returns its kind and what follows the header. `None` if its size is impossible.
    fn take(&mut self) -> Option<(u32, Span<'a>)> {
        let header: [u8; HEADER_LEN] = { self.rest }.take()?;
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let (record, rest) = self.rest.split_at(size)?;
        let (_, body) = record.split_at(HEADER_LEN)?;
        self.rest = rest;
        Some((kind, body))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        while !self.rest.is_empty() {
            let record = match self.take() {
                Some((SAMPLE, body)) => sample(body),
                Some((LOST, body)) => lost(body),
                Some(_) => continue,
                None => {
                    self.rest = Span::default();
                    None
                }
            };
            return Some(record.unwrap_or(Record::Lost { count: 1 }));
        }
        None
    }
}

/// Returns the sample of a record with `PERF_SAMPLE_RAW` alone: a size and so many bytes.
fn sample(mut body: Span<'_>) -> Option<Record<'_>> {
    let size = u32::from_ne_bytes(body.take()?);
    let (raw, _) = body.split_at(size as usize)?;
    Some(Record::Sample { head: raw.first, tail: raw.second })
}

/// Returns the number of lost records, which follows the id of the perf event.
fn lost(mut body: Span<'_>) -> Option<Record<'_>> {
    let _id: [u8; 8] = body.take()?;
    Some(Record::Lost { count: u64::from_ne_bytes(body.take()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record of a size that may differ from that of its body.
    fn record(kind: u32, size: usize, body: &[u8]) -> Vec<u8> {
        [&kind.to_ne_bytes()[..], &0_u16.to_ne_bytes(), &(size as u16).to_ne_bytes(), body].concat()
    }

    fn sample_of(bytes: &[u8]) -> Vec<u8> {
        let body = [&(bytes.len() as u32).to_ne_bytes(), bytes].concat();
        record(SAMPLE, HEADER_LEN + body.len(), &body)
    }

    fn lost_of(count: u64) -> Vec<u8> {
        record(LOST, 24, &[7_u64.to_ne_bytes(), count.to_ne_bytes()].concat())
    }

    /// Returns samples as their bytes, and lost records as their number.
    fn read(first: &[u8], second: &[u8]) -> Vec<Result<Vec<u8>, u64>> {
        let mut records = Records::new(Span::new(first, second));
        let all = records.by_ref().map(|record| match record {
            Record::Sample { head, tail } => Ok([head, tail].concat()),
            Record::Lost { count } => Err(count),
        });
        let all = all.collect();
        assert_eq!(records.unread(), 0);
        all
    }

    #[test]
    fn records_are_read_wherever_the_ring_ends() {
        let other = record(5, 16, &[1; 8]);
        let bytes = [sample_of(b"abcd"), lost_of(40), other, sample_of(&[9; 100]), sample_of(&[])].concat();
        let expected = [Ok(b"abcd".to_vec()), Err(40), Ok(vec![9; 100]), Ok(Vec::new())];
        for end in 0..=bytes.len() {
            assert_eq!(read(&bytes[..end], &bytes[end..]), expected, "end of the ring after {end} bytes");
        }
        let wrapped = Record::Sample { head: b"ab", tail: b"cd" };
        assert_eq!(Records::new(Span::new(&bytes[..14], &bytes[14..])).next(), Some(wrapped));
        assert_eq!(read(&[], &[]), []);
    }

    #[test]
    fn sizes_that_contradict_each_other_are_lost_records() {
        let good = sample_of(b"next");
        let then_good = |bytes: Vec<u8>| read(&[bytes, good.clone()].concat(), &[]);
        let next = || Ok(b"next".to_vec());
        // A sample that claims more bytes than its record has, one without a size, and a short report of losses.
        let long = record(SAMPLE, 16, &[&5_u32.to_ne_bytes()[..], b"four"].concat());
        assert_eq!(then_good(long), [Err(1), next()]);
        assert_eq!(then_good(record(SAMPLE, HEADER_LEN, &[])), [Err(1), next()]);
        assert_eq!(then_good(record(LOST, 16, &[0; 8])), [Err(1), next()]);
        // A record that is shorter than its header or longer than the ring: the begin of the next one is unknown.
        for size in [0, HEADER_LEN - 1, 1000, usize::from(u16::MAX)] {
            assert_eq!(then_good(record(SAMPLE, size, &[])), [Err(1)], "{size}");
        }
        assert_eq!(read(&[0; 7], &[]), [Err(1)], "a part of a header");
    }

    #[test]
    fn any_bytes_end_as_records() {
        let mut state = 1_u32;
        let mut bytes = || {
            // xorshift32: any bytes, the same in each run.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            // Small words make plausible kinds and sizes.
            if state & 0x300 == 0 { (state >> 16) as u8 } else { (state >> 16) as u8 & 0x1f }
        };
        for _ in 0..2000 {
            let ring: Vec<u8> = (0..96).map(|_| bytes()).collect();
            let end = usize::from(bytes()) % 97;
            let read = read(&ring[..end], &ring[end..]);
            assert!(read.len() <= ring.len() / HEADER_LEN, "each record has a header");
        }
    }
}

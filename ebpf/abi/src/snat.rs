//! The engine of source address translation: which port a flow gets, and how the pairs of rows in a NAT map are kept
//! whole. Pure over a [`Table`], for the programs and for tests in user space.
//!
//! A translated flow has two rows: by the tuple of its packets (`OUT`) the new source, by that of the replies (`IN`) the
//! original one. An LRU map may evict either. The surviving row restores the other one, but only as long as the port is
//! still the flow's: rows name their owner, and a port that another flow has got meanwhile is not taken from it.

use crate::conntrack::tuple_flag;
use crate::nat::NatKey;

/// Number of ports that are tried for a flow; the last row of the histogram counts flows that got none.
pub const MAX_TRIES: u32 = 32;
/// Number of occupied ports from which on the agent is asked to collect rows without a connection.
pub const SIGNAL_RETRIES: u32 = 16;

/// `-EEXIST`.
const EXISTS: i8 = -17;

/// A range of ports or ICMP identifiers, in the machine's byte order, both ends included.
#[derive(Clone, Copy)]
pub struct Range {
    /// The lowest.
    pub min: u16,
    /// The highest, not below `min`.
    pub max: u16,
}

impl Range {
    /// All identifiers of ICMP echo.
    pub const IDENTIFIERS: Range = Range { min: 0, max: u16::MAX };

    #[inline(always)]
    fn contains(self, port: u32) -> bool {
        port >= self.min as u32 && port <= self.max as u32
    }

    #[inline(always)]
    fn size(self) -> u32 {
        self.max as u32 - self.min as u32 + 1
    }

    /// Returns the port that is as far in the range as 16 random bits in theirs.
    #[inline(always)]
    fn scale(self, bits: u32) -> u32 {
        ((bits & 0xffff) * self.size()) >> 16
    }
}

/// The content of a row.
#[derive(Clone, Copy)]
pub struct Mapping<A> {
    /// The new source, or the original source by the tuple of a reply.
    pub address: A,
    /// Its port as on the wire.
    pub port: u16,
    /// Whether a connection tracking entry was made for the mapping.
    pub needs_ct: bool,
}

/// A NAT map.
pub trait Table {
    /// An address as on the wire.
    type Address: Copy;

    /// Whether addresses are equal.
    fn same(a: Self::Address, b: Self::Address) -> bool;
    /// Returns a row's content.
    fn mapping(&self, key: &NatKey<Self::Address>) -> Option<Mapping<Self::Address>>;
    /// Writes a row that does not exist; the error is a negative errno.
    fn insert(&self, key: &NatKey<Self::Address>, mapping: &Mapping<Self::Address>) -> Result<(), i8>;
    /// Removes a row.
    fn remove(&self, key: &NatKey<Self::Address>);
    /// Returns 32 random bits.
    fn random(&self) -> u32;
}

/// The result for a flow that is translated.
#[derive(Clone, Copy)]
pub struct Translated {
    /// The new port as on the wire.
    pub port: u16,
    /// Number of occupied ports that were tried for a new mapping; `None` for a mapping that existed.
    pub retries: Option<u32>,
}

/// The reason why a flow has no mapping.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq))]
pub enum Failure {
    /// All ports that were tried belong to other flows.
    Occupied,
    /// The map refused a row, with a negative errno.
    Refused(i8),
}

/// Returns the tuple of replies to a flow's packets, which have this source after the translation.
#[inline(always)]
fn reply<A: Copy>(out: &NatKey<A>, address: A, port: u16) -> NatKey<A> {
    let (saddr, sport, nexthdr) = (out.daddr, out.dport, out.nexthdr);
    NatKey { daddr: address, saddr, dport: port, sport, nexthdr, flags: tuple_flag::IN }
}

/// Translates the source of a flow with tuple `out` to `target`: finds its mapping, repairs it, or makes one. The port
/// stays if it is in the range and free. A mapping to another target, or of another class, is replaced.
#[inline(always)]
pub fn translate<T: Table>(
    table: &T,
    out: &NatKey<T::Address>,
    target: T::Address,
    range: Range,
    needs_ct: bool,
) -> Result<Translated, Failure> {
    let original = Mapping { address: out.saddr, port: out.sport, needs_ct };
    let mut key = reply(out, target, 0);
    if let Some(current) = table.mapping(out) {
        (key.daddr, key.dport) = (current.address, current.port);
        let is_current = T::same(current.address, target) && current.needs_ct == needs_ct;
        let mut owner = table.mapping(&key);
        if is_current && owner.is_none() {
            // The second look: another packet of the flow may have restored the row at the same time.
            let _ = table.insert(&key, &original);
            owner = table.mapping(&key);
        }
        let is_own = is_owned_by::<T>(owner, &original);
        if is_current && is_own {
            return Ok(Translated { port: current.port, retries: None });
        }
        table.remove(out);
        if is_own {
            table.remove(&key);
        }
        key.daddr = target;
    }
    create(table, out, &mut key, range, &original)
}

#[inline(always)]
fn is_owned_by<T: Table>(row: Option<Mapping<T::Address>>, original: &Mapping<T::Address>) -> bool {
    match row {
        Some(owner) => T::same(owner.address, original.address) && owner.port == original.port,
        None => false,
    }
}

/// Makes the rows of a flow, that of replies by `key` with a port. Ports after the first one are a random start and steps of a random odd width: as good as
/// independent draws at any fill of the range, where a step of one would queue behind others.
#[inline(always)]
fn create<T: Table>(
    table: &T,
    out: &NatKey<T::Address>,
    key: &mut NatKey<T::Address>,
    range: Range,
    original: &Mapping<T::Address>,
) -> Result<Translated, Failure> {
    let random = table.random();
    let step = range.scale(random >> 16) | 1;
    let mut next = range.min as u32 + range.scale(random);
    let mut port = u16::from_be(out.sport) as u32;
    if !range.contains(port) {
        port = next;
    }
    let mut retries = 0;
    while retries < MAX_TRIES {
        key.dport = (port as u16).to_be();
        // A look before the write: a full LRU map evicts a row for each write, even for one that it refuses.
        let is_taken = match table.mapping(key) {
            None => match table.insert(key, original) {
                Ok(()) => false,
                Err(EXISTS) => !is_owned_by::<T>(table.mapping(key), original),
                Err(errno) => return Err(Failure::Refused(errno)),
            },
            // The flow's own row, of which the other one was evicted.
            owner if is_owned_by::<T>(owner, original) => {
                table.remove(key);
                match table.insert(key, original) {
                    Ok(()) | Err(EXISTS) => false,
                    Err(errno) => return Err(Failure::Refused(errno)),
                }
            }
            Some(_) => true,
        };
        if !is_taken {
            return finish(table, out, key, original, retries);
        }
        retries += 1;
        port = next;
        next += step;
        if next > range.max as u32 {
            next -= range.size();
        }
    }
    Err(Failure::Occupied)
}

/// Writes the second row of a pair.
#[inline(always)]
fn finish<T: Table>(
    table: &T,
    out: &NatKey<T::Address>,
    key: &NatKey<T::Address>,
    original: &Mapping<T::Address>,
    retries: u32,
) -> Result<Translated, Failure> {
    let (address, port, needs_ct) = (key.daddr, key.dport, original.needs_ct);
    match table.insert(out, &Mapping { address, port, needs_ct }) {
        Ok(()) => Ok(Translated { port, retries: Some(retries) }),
        Err(errno) => {
            // Another packet of the flow was faster: its mapping counts.
            if let Some(current) = table.mapping(out)
                && T::same(current.address, key.daddr)
            {
                if current.port != port {
                    table.remove(key);
                }
                return Ok(Translated { port: current.port, retries: Some(retries) });
            }
            table.remove(key);
            Err(Failure::Refused(errno))
        }
    }
}

/// Returns the original source of the flow to which a packet with tuple `key` replies, and restores the other row.
#[inline(always)]
pub fn restore<T: Table>(table: &T, key: &NatKey<T::Address>) -> Option<Mapping<T::Address>> {
    let original = table.mapping(key)?;
    let out = NatKey {
        daddr: key.saddr,
        saddr: original.address,
        dport: key.sport,
        sport: original.port,
        nexthdr: key.nexthdr,
        flags: tuple_flag::OUT,
    };
    if table.mapping(&out).is_none() {
        let translated = Mapping { address: key.daddr, port: key.dport, needs_ct: original.needs_ct };
        // A row that another packet has written meanwhile, or that does not fit: the reply is the flow's in any case.
        let _ = table.insert(&out, &translated);
    }
    Some(original)
}

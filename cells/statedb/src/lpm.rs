//! Indexes of prefixes, asked for the longest one that covers a key.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::key::{KeyBuf, KeyParseError};
use crate::query::{Prefix, Query};
use crate::spec::{Index, IndexDef, Keys, Matching};

/// A value that is so many leading bits of something: a network, or an address as a network of its own.
///
/// For a type of your own, append its bits:
/// ```
/// # use statedb::{KeyBuf, KeyParseError, PrefixKey};
/// /// The upper bits of a port.
/// struct Ports { first: u16, bits: u16 }
///
/// impl PrefixKey for Ports {
///     type Space = Ports;
///     fn encode_bits(&self, key: &mut KeyBuf) { key.push_bits(&self.first.to_be_bytes(), self.bits) }
///     fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
///         let wrong = || KeyParseError { text: text.into(), expected: "a port and a number of bits, joined by `/`" };
///         let (first, bits) = text.split_once('/').ok_or_else(wrong)?;
///         let (first, bits) = (first.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
///         if bits > 16 { return Err(wrong()) }
///         Ports { first, bits }.encode_bits(key);
///         Ok(())
///     }
/// }
/// ```
pub trait PrefixKey {
    /// What all types have in common that cover each other: an index of networks is asked by addresses, too.
    type Space: ?Sized;

    /// Appends the bits, by [`KeyBuf::push_bits`] and nothing else.
    fn encode_bits(&self, key: &mut KeyBuf);

    /// Appends the bits of a value written as text, for the shell and HTTP.
    fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError>;
}

/// The first so many bits of some bytes; what comes after them makes no difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitPrefix {
    data: Vec<u8>,
    bits: u16,
}

impl BitPrefix {
    /// The first `bits` bits of `data`; none if it has fewer.
    pub fn new(data: &[u8], bits: u16) -> Option<Self> {
        let mut data = data.get(..usize::from(bits).div_ceil(8))?.to_vec();
        if let Some(last) = data.last_mut().filter(|_| !bits.is_multiple_of(8)) {
            *last &= !(0xff >> (bits % 8));
        }
        Some(BitPrefix { data, bits })
    }

    /// The bytes that have the bits, zeros behind them.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// How many bits.
    pub fn bits(&self) -> u16 {
        self.bits
    }
}

impl PrefixKey for BitPrefix {
    type Space = BitPrefix;

    fn encode_bits(&self, key: &mut KeyBuf) {
        key.push_bits(&self.data, self.bits);
    }

    /// Hexadecimal bytes joined by `:`, then `/` and the number of bits; all bits if that is left out.
    fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError {
            text: text.to_owned(),
            expected: "hexadecimal bytes joined by `:`, then `/` and a number of bits",
        };
        let (bytes, bits) = text.trim().split_once('/').map_or((text.trim(), None), |(b, n)| (b, Some(n)));
        let bytes = bytes.split(':').filter(|part| !part.is_empty() || bytes.contains(':'));
        let data: Option<Vec<u8>> = bytes.map(|part| u8::from_str_radix(part, 16).ok()).collect();
        let data = data.ok_or_else(wrong)?;
        let bits = match bits {
            Some(bits) => bits.parse().ok(),
            None => u16::try_from(data.len() * 8).ok(),
        };
        let prefix = bits.and_then(|bits| BitPrefix::new(&data, bits)).ok_or_else(wrong)?;
        prefix.encode_bits(key);
        Ok(())
    }
}

/// Bits of IPv6 that IPv4 is mapped behind, `::ffff:0:0`.
const MAPPED: u16 = 96;

fn push_network(ip: IpAddr, len: u8, key: &mut KeyBuf) {
    match ip {
        IpAddr::V4(ip) => key.push_bits(&ip.to_ipv6_mapped().octets(), MAPPED + u16::from(len)),
        IpAddr::V6(ip) => key.push_bits(&ip.octets(), len.into()),
    }
}

macro_rules! networks {
    ($($name:ty: $self:ident => $ip:expr, $len:expr;)*) => {$(
        /// IPv4 is mapped behind `::ffff:0:0/96`: networks of IPv4 cover IPv4 alone, `::/0` covers all of it.
        impl PrefixKey for $name {
            type Space = IpAddr;
            #[inline]
            fn encode_bits(&self, key: &mut KeyBuf) {
                let $self = self;
                push_network($ip.into(), $len, key);
            }
            /// A network or an address of either family.
            fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                let network: IpNetwork = crate::key::parse(text, "an IP address or prefix")?;
                push_network(network.ip(), network.prefix(), key);
                Ok(())
            }
        }
    )*};
}
networks! {
    IpNetwork: network => network.ip(), network.prefix();
    Ipv4Network: network => network.ip(), network.prefix();
    Ipv6Network: network => network.ip(), network.prefix();
    IpAddr: ip => *ip, if ip.is_ipv4() { 32 } else { 128 };
    Ipv4Addr: ip => *ip, 32;
    Ipv6Addr: ip => *ip, 128;
}

impl<K: PrefixKey + ?Sized> PrefixKey for &K {
    type Space = K::Space;

    fn encode_bits(&self, key: &mut KeyBuf) {
        (**self).encode_bits(key);
    }

    fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        K::encode_bits_text(text, key)
    }
}

/// Keys that are found by what they cover, in place of the key type of an [`Index`].
pub struct Lpm<K: ?Sized>(PhantomData<fn(&K)>);

/// A secondary index of rows `T` by prefixes `K`, which answers queries with the longest prefix that covers the key.
///
/// ```
/// # use std::net::IpAddr;
/// # use ipnetwork::IpNetwork;
/// # use statedb::{Index, LpmIndex, Prefix, Query};
/// struct Route { id: u32, cidr: IpNetwork }
/// const BY_CIDR: LpmIndex<Route, IpNetwork> = Index::lpm("cidr", |route, keys| keys.add(&route.cidr));
///
/// impl Route {
///     /// The most specific one for an address.
///     fn to(address: IpAddr) -> Query<Route> { BY_CIDR.query(&address) }
///     /// Those inside a network.
///     fn inside(network: IpNetwork) -> Prefix<Route> { BY_CIDR.prefix(&network) }
/// }
/// ```
/// `get` gives the first row of that prefix, `list` all its rows in order of their primary keys, `prefix` the rows of all
/// prefixes inside a given one, itself included, `lower_bound` those that come at or after it in order: by their bits, and
/// what covers before what it covers. Networks of IPv4 are IPv6 networks behind `::ffff:0:0/96`: what is IPv4 covers IPv4
/// alone, and `::/0` covers both.
///
/// A row may have no prefix, one or several. No such index can be the primary one:
/// ```compile_fail
/// # use statedb::*;
/// #[derive(serde::Serialize)] struct Route { bits: u16 }
/// impl TableSpec for Route {
///     const NAME: &'static str = "routes";
///     type Key<'a> = BitPrefix;
///     fn key(&self) -> BitPrefix { BitPrefix::new(&[0, 0], self.bits).unwrap() }
/// #   fn columns() -> &'static [&'static str] { &["Bits"] }
/// #   fn row(&self) -> Vec<String> { vec![self.bits.to_string()] }
/// }
/// ```
pub type LpmIndex<T, K> = Index<T, Lpm<K>>;

impl<T, K: PrefixKey + ?Sized> Index<T, Lpm<K>> {
    /// An index of prefixes that rows may share.
    pub const fn lpm(name: &'static str, emit: fn(&T, &mut Keys<Lpm<K>>)) -> Self {
        Index { name, unique: false, emit }
    }

    /// An index of prefixes, of which no two rows have the same. The table declares
    /// [`TableSpec::UNIQUE_SECONDARY`](crate::TableSpec::UNIQUE_SECONDARY).
    pub const fn unique_lpm(name: &'static str, emit: fn(&T, &mut Keys<Lpm<K>>)) -> Self {
        Index { name, unique: true, emit }
    }

    /// The rows of the longest prefix that covers this; for a lower bound, all from this on.
    pub fn query<Q: PrefixKey<Space = K::Space> + ?Sized>(&self, key: &Q) -> Query<T> {
        Query::new(Some(self.name), encoded(key))
    }

    /// The rows of the prefixes inside this one.
    pub fn prefix<Q: PrefixKey<Space = K::Space> + ?Sized>(&self, prefix: &Q) -> Prefix<T> {
        Prefix::new(Some(self.name), encoded(prefix))
    }

    /// All rows that have a prefix, in the order of those.
    pub fn all(&self) -> Prefix<T> {
        Prefix::new(Some(self.name), KeyBuf::new())
    }

    /// The declaration for [`TableSpec::indexes`](crate::TableSpec::indexes).
    pub fn def(&self) -> IndexDef<T>
    where
        T: 'static,
        K: 'static,
    {
        IndexDef {
            name: self.name,
            unique: self.unique,
            matching: Matching::Longest,
            emit: self.emit(),
            parse: K::encode_bits_text,
            parse_prefix: K::encode_bits_text,
            raw,
            raw_bound,
        }
    }
}

impl<K: PrefixKey + ?Sized> Keys<Lpm<K>> {
    /// Adds a prefix. The same one twice counts once.
    pub fn add<Q: PrefixKey<Space = K::Space> + ?Sized>(&mut self, prefix: &Q) {
        self.keys.push(encoded(prefix));
    }

    /// Adds all prefixes of a collection.
    pub fn extend<'q, Q: PrefixKey<Space = K::Space> + ?Sized + 'q>(
        &mut self,
        prefixes: impl IntoIterator<Item = &'q Q>,
    ) {
        prefixes.into_iter().for_each(|prefix| self.add(prefix));
    }
}

fn encoded(prefix: &(impl PrefixKey + ?Sized)) -> KeyBuf {
    let mut key = KeyBuf::new();
    prefix.encode_bits(&mut key);
    key
}

/// Bytes as Cilium's clients write them: the data, then the number of bits as 16 bits.
fn raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
    let prefix = raw.split_last_chunk().and_then(|(data, bits)| {
        let bits = u16::from_be_bytes(*bits);
        (usize::from(bits) <= data.len() * 8).then_some((data, bits))
    });
    let wrong = || KeyParseError::raw(raw, "bytes followed by how many of their bits count, in two bytes");
    let (data, bits) = prefix.ok_or_else(wrong)?;
    key.push_bits(data, bits);
    Ok(true)
}

/// As for all keys, no bytes are before everything.
fn raw_bound(bytes: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
    if bytes.is_empty() { Ok(true) } else { raw(bytes, key) }
}

//! Longest-prefix-match indexes.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

#[cfg(feature = "ipnetwork")]
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::key::{KeyBuf, KeyParseError};
use crate::query::{Prefix, Query};
use crate::spec::{Index, IndexDef, Keys, Matching};

/// A value that is a prefix of a bit string: a network, or an address as a network of full length.
///
/// To implement it for another type, append its bits:
/// ```
/// # use statedb::{KeyBuf, KeyParseError, PrefixKey};
/// /// The upper bits of a port.
/// struct Ports { first: u16, bits: u16 }
///
/// impl PrefixKey for Ports {
///     type Space = Ports;
///     fn encode_bits(&self, key: &mut KeyBuf) { key.push_bits(&self.first.to_be_bytes(), self.bits) }
///     fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
///         let wrong = || KeyParseError::new(text, "a port and a number of bits, joined by `/`");
///         let (first, bits) = text.split_once('/').ok_or_else(wrong)?;
///         let (first, bits) = (first.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
///         if bits > 16 { return Err(wrong()) }
///         Ports { first, bits }.encode_bits(key);
///         Ok(())
///     }
/// }
/// ```
pub trait PrefixKey {
    /// A marker shared by all types that can cover each other: an index of networks can be queried by addresses, too.
    type Space: ?Sized;

    /// Appends the bits, by [`KeyBuf::push_bits`] and nothing else.
    fn encode_bits(&self, key: &mut KeyBuf);

    /// Appends the bits of a value written as text, for the shell and HTTP.
    fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError>;
}

/// A number of leading bits of a byte string; the bits behind them are ignored.
#[cfg(feature = "unstable")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitPrefix {
    data: Vec<u8>,
    bits: u16,
}

#[cfg(feature = "unstable")]
impl BitPrefix {
    /// Returns the first `bits` bits of `data`; none if it has fewer.
    pub fn new(data: &[u8], bits: u16) -> Option<Self> {
        let mut data = data.get(..usize::from(bits).div_ceil(8))?.to_vec();
        if let Some(last) = data.last_mut().filter(|_| !bits.is_multiple_of(8)) {
            *last &= !(0xff >> (bits % 8));
        }
        Some(BitPrefix { data, bits })
    }

    /// Returns the bits as bytes, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the number of bits.
    pub fn bits(&self) -> u16 {
        self.bits
    }
}

#[cfg(feature = "unstable")]
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

/// The length of the prefix `::ffff:0:0/96` of IPv4-mapped addresses (RFC 4291, section 2.5.5.2).
const MAPPED: u16 = 96;

fn push_network(ip: IpAddr, len: u8, key: &mut KeyBuf) {
    match ip {
        IpAddr::V4(ip) => key.push_bits(&ip.to_ipv6_mapped().octets(), MAPPED + u16::from(len)),
        IpAddr::V6(ip) => key.push_bits(&ip.octets(), len.into()),
    }
}

/// An address, or an address and the length of its network: `10.0.0.0/8`.
struct ParsedNetwork {
    ip: IpAddr,
    len: u8,
}

impl FromStr for ParsedNetwork {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, len) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, Some(len)));
        let ip: IpAddr = ip.parse().map_err(|_| ())?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Ok(bits), |len| len.parse().map_err(|_| ()))?;
        if len > bits { Err(()) } else { Ok(ParsedNetwork { ip, len }) }
    }
}

macro_rules! networks {
    ($($name:ty: $self:ident => $ip:expr, $len:expr;)*) => {$(
        /// IPv4 is mapped to `::ffff:0:0/96`: IPv4 networks cover only IPv4, `::/0` covers both families.
        impl PrefixKey for $name {
            type Space = IpAddr;
            #[inline]
            fn encode_bits(&self, key: &mut KeyBuf) {
                let $self = self;
                push_network($ip.into(), $len, key);
            }
            /// A network or an address of either family.
            fn encode_bits_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
                let network: ParsedNetwork = crate::key::parse(text, "an IP address or prefix")?;
                push_network(network.ip, network.len, key);
                Ok(())
            }
        }
    )*};
}
#[cfg(feature = "ipnetwork")]
networks! {
    IpNetwork: network => network.ip(), network.prefix();
    Ipv4Network: network => network.ip(), network.prefix();
    Ipv6Network: network => network.ip(), network.prefix();
}
networks! {
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

/// The key type of a longest-prefix-match [`Index`] of prefixes `K`.
pub struct Lpm<K: ?Sized>(PhantomData<fn(&K)>);

/// A secondary index of rows `T` by prefixes `K`. A query finds the longest prefix that covers its key.
///
/// ```
/// # use std::net::IpAddr;
/// # use ipnetwork::IpNetwork;
/// # use statedb::{Index, LpmIndex, Prefix, Query};
/// struct Route { id: u32, cidr: IpNetwork }
/// const BY_CIDR: LpmIndex<Route, IpNetwork> = Index::lpm("cidr", |route, keys| keys.add(&route.cidr));
///
/// impl Route {
///     /// Finds the most specific route to an address.
///     fn to(address: IpAddr) -> Query<Route> { BY_CIDR.query(&address) }
///     /// Finds the routes inside a network.
///     fn inside(network: IpNetwork) -> Prefix<Route> { BY_CIDR.prefix(&network) }
/// }
/// ```
/// `get` returns the first row of that prefix, `list` all its rows in order of their primary keys, `prefix` the rows of
/// all prefixes inside a given one, itself included, and `lower_bound` those at or after it. Prefixes are ordered by
/// their bits, a covering prefix before those that it covers. IPv4 networks are mapped to IPv6 networks inside
/// `::ffff:0:0/96`: they cover only IPv4, and `::/0` covers both families.
///
/// A row may have no prefix, one or several. No such index can be the primary one:
/// ```compile_fail
/// # use statedb::*;
/// struct Route { bits: u16 }
/// impl TableSpec for Route {
///     const NAME: &'static str = "routes";
///     type Key<'a> = Lpm<std::net::IpAddr>;
///     fn key(&self) -> Self::Key<'_> { unreachable!() }
/// }
/// ```
pub type LpmIndex<T, K> = Index<T, Lpm<K>>;

impl<T, K: PrefixKey + ?Sized> Index<T, Lpm<K>> {
    /// Creates an index of prefixes that rows may share.
    pub const fn lpm(name: &'static str, emit: fn(&T, &mut Keys<Lpm<K>>)) -> Self {
        Index { name, unique: false, emit }
    }

    /// Creates an index in which no two rows have the same prefix. The table declares
    /// [`TableSpec::UNIQUE_SECONDARY`](crate::TableSpec::UNIQUE_SECONDARY).
    pub const fn unique_lpm(name: &'static str, emit: fn(&T, &mut Keys<Lpm<K>>)) -> Self {
        Index { name, unique: true, emit }
    }

    /// Returns a query for the rows of the longest prefix that covers `key`; as a lower bound, for all rows from it on.
    pub fn query<Q: PrefixKey<Space = K::Space> + ?Sized>(&self, key: &Q) -> Query<T> {
        Query::new(Some(self.name), encoded(key))
    }

    /// Returns a query for the rows of the prefixes inside this one.
    pub fn prefix<Q: PrefixKey<Space = K::Space> + ?Sized>(&self, prefix: &Q) -> Prefix<T> {
        Prefix::new(Some(self.name), encoded(prefix))
    }

    /// Returns a query for all rows that have a prefix, in order of the prefixes.
    pub fn all(&self) -> Prefix<T> {
        Prefix::new(Some(self.name), KeyBuf::new())
    }

    /// Returns the declaration for [`TableSpec::indexes`](crate::TableSpec::indexes).
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

/// Parses a key given as bytes: the data, then the number of bits as a 16-bit big-endian integer.
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

/// As `raw`, but the empty string is the lower bound of all keys, as for other key types.
fn raw_bound(bytes: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
    if bytes.is_empty() { Ok(true) } else { raw(bytes, key) }
}

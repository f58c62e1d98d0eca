//! Routes as the kernel has them: keys, entries, and their messages of rtnetlink.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::{MappedIp, Route, RouteKey, TABLE_MAIN, table_name};
use ipnetwork::IpNetwork;
use netlink::Message;
use netlink_packet_core::Parseable;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
    RouteProtocol, RouteScope, RouteType, RouteVia,
};
use statedb::{IndexKey, KeyBuf, KeyParseError};

/// `RTPROT_KERNEL`. systemd-networkd removes routes of other protocols that it has not made.
pub(crate) const PROTOCOL: u8 = 2;
/// The kernel's metric of IPv6 routes that name none.
const METRIC_V6: u32 = 1024;
/// `RTN_UNICAST` of `linux/rtnetlink.h`.
const KIND_UNICAST: u8 = 1;
/// `RTN_LOCAL` of `linux/rtnetlink.h`.
const KIND_LOCAL: u8 = 2;

/// `RTN_BLACKHOLE`, `RTN_UNREACHABLE`, `RTN_PROHIBIT`, `RTN_THROW`.
const KINDS_WITHOUT_PATH: [u8; 4] = [6, 7, 8, 9];

/// The key by which the kernel has one route: routing table, destination, metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FibKey {
    /// Routing table.
    pub table: u32,
    /// Destination, without bits behind its prefix.
    pub prefix: IpNetwork,
    /// Metric; 0 for the kernel's default.
    pub priority: u32,
}

impl FibKey {
    /// Returns the key of the main table with the default metric.
    #[must_use]
    pub fn main(prefix: IpNetwork) -> Self {
        Self { table: TABLE_MAIN, prefix: network(prefix), priority: 0 }
    }

    /// Returns the metric that the kernel reports.
    fn metric(&self) -> u32 {
        if self.priority == 0 && self.prefix.is_ipv6() { METRIC_V6 } else { self.priority }
    }

    /// Returns the key that the kernel reports, for comparisons.
    pub(crate) fn normal(&self) -> FibKey {
        FibKey { priority: self.metric(), ..*self }
    }
}

/// As parts of ids: `main:10.0.0.0/8`, with `:100` for a metric.
impl fmt::Display for FibKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", table_name(self.table), self.prefix)?;
        if self.priority == 0 { Ok(()) } else { write!(f, ":{}", self.priority) }
    }
}

/// Orders by table, destination, priority.
impl IndexKey for FibKey {
    fn encode(&self, key: &mut KeyBuf) {
        self.table.encode(key);
        MappedIp::from(self.prefix.ip()).encode(key);
        let mapping = if self.prefix.is_ipv4() { 96 } else { 0 };
        (self.prefix.prefix() + mapping).encode(key);
        self.priority.encode(key);
    }

    /// Parses `table:prefix` or `table:prefix:priority`.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError::new(text, "a route: table:prefix[:priority]");
        let (table, rest) = text.split_once(':').ok_or_else(wrong)?;
        // Colons of IPv6 addresses are before the prefix's length.
        let (address, rest) = rest.split_once('/').ok_or_else(wrong)?;
        let (bits, priority) = rest.split_once(':').unwrap_or((rest, "0"));
        let prefix = format!("{address}/{bits}").parse().map_err(|_| wrong())?;
        let table = table_number(table).ok_or_else(wrong)?;
        FibKey { table, prefix, priority: priority.parse().map_err(|_| wrong())? }.encode(key);
        Ok(())
    }
}

/// Returns the prefix without bits behind its length, as the kernel requires.
pub(crate) fn network(prefix: IpNetwork) -> IpNetwork {
    IpNetwork::new(prefix.network(), prefix.prefix()).unwrap_or(prefix)
}

/// Returns the table of a name, or of a number.
pub(crate) fn table_number(text: &str) -> Option<u32> {
    let named = [0, 252, 253, 254, 255].into_iter().find(|table| table_name(*table) == text);
    named.or_else(|| text.parse().ok())
}

/// A route of the kernel, or one to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FibEntry {
    pub(crate) key: FibKey,
    pub(crate) protocol: u8,
    pub(crate) kind: u8,
    pub(crate) scope: u8,
    pub(crate) src: Option<IpAddr>,
    pub(crate) mtu: u32,
    /// Interface index and next hop of each path.
    pub(crate) hops: Vec<(u32, Option<IpAddr>)>,
}

impl FibEntry {
    /// Converts an entry of which scope and kind may be absent (0) into the one that the kernel reports.
    pub(crate) fn normal(self) -> FibEntry {
        let kind = if self.kind == 0 { KIND_UNICAST } else { self.kind };
        let scope = match self.scope {
            // The scope has no meaning for IPv6.
            _ if self.key.prefix.is_ipv6() => 0,
            0 if kind == KIND_LOCAL => devices::SCOPE_HOST,
            scope => scope,
        };
        // The kernel reports the loopback device for IPv6 routes that lead nowhere.
        let hops = if KINDS_WITHOUT_PATH.contains(&kind) { Vec::new() } else { self.hops };
        FibEntry { key: self.key.normal(), kind, scope, hops, ..self }
    }

    /// Whether both lead packets the same way: by the same paths in any order.
    pub(crate) fn is_equal(&self, other: &FibEntry) -> bool {
        let sorted = |entry: &FibEntry| {
            let mut hops = entry.hops.clone();
            hops.sort_unstable();
            FibEntry { hops, ..entry.clone() }
        };
        sorted(self) == sorted(other)
    }

    /// Whether the live rows of the kernel's routes have this entry, which must be in normal form. `row` finds one.
    pub(crate) fn is_live<'r>(&self, row: impl Fn(RouteKey) -> Option<&'r Route>) -> bool {
        let key = |link_index| RouteKey {
            table: self.key.table,
            link_index,
            dst: self.key.prefix,
            priority: self.key.priority,
        };
        let same = |found: &Route| {
            let scope = if self.key.prefix.is_ipv6() { 0 } else { found.scope };
            (found.kind, scope, found.src, found.mtu) == (self.kind, self.scope, self.src, self.mtu)
        };
        match &*self.hops {
            [] => {
                row(key(0)).is_some_and(same) || (self.key.prefix.is_ipv6() && row(key(1)).is_some_and(same))
            }
            // Paths by the same link share one row.
            hops => hops.iter().all(|(link, _)| {
                row(key(*link)).is_some_and(|found| same(found) && hops.contains(&(*link, found.gateway)))
            }),
        }
    }

    /// Returns the message that adds or replaces the route.
    pub(crate) fn message(&self) -> RouteMessage {
        let mut message = self.key_message();
        message.header.kind = RouteType::from(self.kind);
        message.header.scope = RouteScope::from(self.scope);
        let attributes = &mut message.attributes;
        attributes.extend(self.src.map(|ip| RouteAttribute::PrefSource(ip.into())));
        if self.mtu > 0 {
            attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(self.mtu)]));
        }
        let gateway = |ip: IpAddr| {
            // The next hop of an IPv4 route may be an IPv6 address.
            if ip.is_ipv4() == self.key.prefix.is_ipv4() {
                RouteAttribute::Gateway(ip.into())
            } else {
                RouteAttribute::Via(ip.into())
            }
        };
        match &*self.hops {
            [(link, next)] => {
                attributes.extend((*link != 0).then_some(RouteAttribute::Oif(*link)));
                attributes.extend(next.map(gateway));
            }
            hops => {
                let paths = hops.iter().map(|(link, next)| {
                    let mut path = RouteNextHop::default();
                    path.interface_index = *link;
                    path.attributes.extend(next.map(gateway));
                    path
                });
                let paths: Vec<RouteNextHop> = paths.collect();
                attributes.extend((!paths.is_empty()).then_some(RouteAttribute::MultiPath(paths)));
            }
        }
        message
    }

    /// Returns the message that deletes the route: of this key and protocol, over the same link if there is one. All
    /// paths of a route with several are deleted together.
    pub(crate) fn delete_message(&self) -> RouteMessage {
        let mut message = self.key_message();
        // In a deletion these match any kind and any scope.
        message.header.kind = RouteType::Unspec;
        message.header.scope = RouteScope::NoWhere;
        if let [(link, _)] = &*self.hops
            && *link != 0
        {
            message.attributes.push(RouteAttribute::Oif(*link));
        }
        message
    }

    fn key_message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let FibKey { table, prefix, priority } = self.key;
        message.header = RouteHeader {
            address_family: if prefix.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 },
            destination_prefix_length: prefix.prefix(),
            table: u8::try_from(table).unwrap_or(0),
            protocol: RouteProtocol::from(self.protocol),
            ..RouteHeader::default()
        };
        message.attributes.push(RouteAttribute::Table(table));
        if prefix.prefix() > 0 {
            message.attributes.push(RouteAttribute::Destination(prefix.ip().into()));
        }
        if priority > 0 {
            message.attributes.push(RouteAttribute::Priority(priority));
        }
        message
    }

    /// Converts an answer of a dump; `None` for cached routes and those of other families.
    pub(crate) fn parse(answer: &Message<'_>) -> Result<Option<FibEntry>, netlink::Error> {
        let header = RouteHeader::parse(answer.body).map_err(|error| answer.undecodable(error))?;
        let any: IpAddr = match header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return Ok(None),
        };
        if header.flags.contains(RouteFlags::Cloned) {
            return Ok(None);
        }
        let message = RouteMessage::parse(answer.body).map_err(|error| answer.undecodable(error))?;
        let mut dst = any;
        let mut hop = (0, None);
        let mut entry = FibEntry {
            key: FibKey { table: header.table.into(), prefix: any.into(), priority: 0 },
            protocol: header.protocol.into(),
            kind: header.kind.into(),
            scope: header.scope.into(),
            src: None,
            mtu: 0,
            hops: Vec::new(),
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Table(table) => entry.key.table = *table,
                RouteAttribute::Destination(ip) => dst = ip_of(ip).unwrap_or(any),
                RouteAttribute::PrefSource(ip) => entry.src = ip_of(ip),
                RouteAttribute::Priority(metric) => entry.key.priority = *metric,
                RouteAttribute::Metrics(metrics) => {
                    let mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(bytes) => Some(*bytes),
                        _ => None,
                    });
                    entry.mtu = mtu.unwrap_or(0);
                }
                RouteAttribute::MultiPath(paths) => {
                    for path in paths {
                        let mut one = (path.interface_index, None);
                        path.attributes.iter().for_each(|attribute| next_hop(attribute, &mut one));
                        entry.hops.push(one);
                    }
                }
                other => next_hop(other, &mut hop),
            }
        }
        if entry.hops.is_empty() && hop != (0, None) {
            entry.hops.push(hop);
        }
        let Ok(prefix) = IpNetwork::new(dst, header.destination_prefix_length) else { return Ok(None) };
        entry.key.prefix = prefix;
        Ok(Some(entry.normal()))
    }
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

fn next_hop(attribute: &RouteAttribute, hop: &mut (u32, Option<IpAddr>)) {
    match attribute {
        RouteAttribute::Oif(index) => hop.0 = *index,
        RouteAttribute::Gateway(ip) => hop.1 = ip_of(ip),
        RouteAttribute::Via(RouteVia::Inet(v4)) => hop.1 = Some((*v4).into()),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => hop.1 = Some((*v6).into()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_text_and_in_order() {
        let encode = |text: &str| {
            let mut key = KeyBuf::new();
            FibKey::encode_text(text, &mut key).map(|()| key)
        };
        for text in ["main:10.0.0.0/8", "local:fd00::/64:100", "2004:0.0.0.0/0", "main:::/0:7"] {
            let key = encode(text).unwrap();
            let (table, rest) = text.split_once(':').unwrap();
            let (prefix, priority) = match rest.rsplit_once('/').unwrap().1.split_once(':') {
                Some((bits, priority)) => {
                    (format!("{}/{bits}", rest.rsplit_once('/').unwrap().0), priority.parse().unwrap())
                }
                None => (rest.to_owned(), 0),
            };
            let parsed =
                FibKey { table: table_number(table).unwrap(), prefix: prefix.parse().unwrap(), priority };
            let mut direct = KeyBuf::new();
            parsed.encode(&mut direct);
            assert_eq!((key, parsed.to_string()), (direct, text.to_owned()));
        }
        assert!(encode("main:10.0.0.0/8").unwrap() < encode("local:10.0.0.0/8").unwrap());
        for wrong in ["main", "x:10.0.0.0/8", "main:10.0.0.0", "main:10.0.0.0/8:x"] {
            assert!(encode(wrong).is_err(), "{wrong}");
        }
        let odd: IpNetwork = "10.1.2.3/8".parse().unwrap();
        assert_eq!(FibKey::main(odd).prefix.to_string(), "10.0.0.0/8");
    }
}

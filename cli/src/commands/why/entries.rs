//! Entries of the datapath's maps, looked up by the keys that the programs use.

use std::net::{IpAddr, SocketAddr};

use bpf::{Map, RawMap};
use datapath_abi::{
    CtEntry, CtTuple, EndpointInfo, EndpointKey, IpMasqKey, IpcacheKey, LbAffinity, LbAffinityKey,
    LbAffinityMatch, LbBackend4, LbBackend6, LbReverseNat4, LbReverseNat6, LbService, LbServiceKey,
    LbSourceRange, MasqueradeAddresses, NatEntry4, NatEntry6, Pod, RemoteEndpointInfo, ipv4_from_word,
    ipv4_word, ipv6_from_words, ipv6_words,
};

use crate::commands::bpf::{maglev, pinned};

/// The two ends of a packet, its protocol, and flags of a key ([`datapath_abi::tuple_flag`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tuple {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) protocol: u8,
    pub(super) flags: u8,
}

/// A frontend or one of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Frontend {
    pub(super) address: SocketAddr,
    pub(super) protocol: u8,
    pub(super) scope: u8,
    pub(super) slot: u16,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    pub(super) state: u8,
}

/// Lookups in the maps. A map that does not exist has no entries: its feature is off.
pub(super) trait Entries {
    fn endpoint(&self, ip: IpAddr) -> anyhow::Result<Option<EndpointInfo>>;
    fn ipcache(&self, ip: IpAddr) -> anyhow::Result<Option<RemoteEndpointInfo>>;
    fn service(&self, key: &Frontend) -> anyhow::Result<Option<LbService>>;
    fn backend(&self, id: u32, ipv4: bool) -> anyhow::Result<Option<Backend>>;
    /// Returns the frontend of a service, by its id in network byte order.
    fn reverse_nat(&self, id: u16, ipv4: bool) -> anyhow::Result<Option<SocketAddr>>;
    /// Returns the ids in a service's Maglev table, by its id in network byte order.
    fn maglev(&self, id: u16, ipv4: bool) -> anyhow::Result<Option<Vec<u32>>>;
    /// Returns the backend that a client of a service was last sent to, if affinity still applies to it, with the time of
    /// its last use.
    fn affinity(&self, client: IpAddr, id: u16) -> anyhow::Result<Option<LbAffinity>>;
    /// True if a client is in the source ranges of a service.
    fn in_source_range(&self, client: IpAddr, id: u16) -> anyhow::Result<bool>;
    /// Returns the entry of a connection, or with `SERVICE` of a connection to a service.
    fn connection(&self, tuple: &Tuple) -> anyhow::Result<Option<CtEntry>>;
    /// Returns the translated end of a packet.
    fn translation(&self, tuple: &Tuple) -> anyhow::Result<Option<SocketAddr>>;
    /// Returns the masquerade addresses by the index of the device; those of the node by 0.
    fn masquerade(&self) -> anyhow::Result<Vec<(u32, MasqueradeAddresses)>>;
    /// True if ip-masq-agent excludes a destination.
    fn is_excluded_by_agent(&self, ip: IpAddr) -> anyhow::Result<bool>;
}

/// The pinned maps of this node.
pub(super) struct Pinned;

impl Pinned {
    /// Returns the maps, unless there are none or this process may not read them.
    pub(super) fn open() -> Option<Pinned> {
        pinned::open("cilium_lxc").is_ok().then_some(Pinned)
    }
}

fn lookup<K: Pod, V: Pod>(name: &str, key: &K) -> anyhow::Result<Option<V>> {
    match pinned::open(name) {
        Ok(map) => Ok(Map::<K, V>::new(map)?.lookup(key)?),
        Err(error) if pinned::is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the key of an address in both families' form.
fn by_family<T>(ip: IpAddr, ipv4: impl FnOnce(u32) -> T, ipv6: impl FnOnce([u32; 4]) -> T) -> T {
    match ip {
        IpAddr::V4(ip) => ipv4(ipv4_word(ip)),
        IpAddr::V6(ip) => ipv6(ipv6_words(ip)),
    }
}

fn socket(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), u16::from_be(port))
}

/// Returns the key of a packet, with addresses as `A`.
fn tuple<A: Copy>(tuple: &Tuple, [daddr, saddr]: [A; 2], [dport, sport]: [u16; 2]) -> CtTuple<A> {
    let [dport, sport] = [dport, sport].map(u16::to_be);
    CtTuple { daddr, saddr, dport, sport, nexthdr: tuple.protocol, flags: tuple.flags }
}

const TCP: u8 = 6;
const SERVICE_RANGE_BITS: u32 = 32;

impl Entries for Pinned {
    fn endpoint(&self, ip: IpAddr) -> anyhow::Result<Option<EndpointInfo>> {
        lookup("cilium_lxc", &EndpointKey::from(ip))
    }

    fn ipcache(&self, ip: IpAddr) -> anyhow::Result<Option<RemoteEndpointInfo>> {
        lookup("cilium_ipcache_v2", &IpcacheKey::new(ip, if ip.is_ipv4() { 32 } else { 128 }))
    }

    fn service(&self, key: &Frontend) -> anyhow::Result<Option<LbService>> {
        fn key_of<A>(key: &Frontend, address: A) -> LbServiceKey<A> {
            let Frontend { protocol: proto, scope, slot: backend_slot, .. } = *key;
            LbServiceKey {
                address,
                dport: key.address.port().to_be(),
                backend_slot,
                proto,
                scope,
                pad: [0; 2],
            }
        }
        by_family(
            key.address.ip(),
            |word| lookup("cilium_lb4_services_v2", &key_of(key, word)),
            |words| lookup("cilium_lb6_services_v2", &key_of(key, words)),
        )
    }

    fn backend(&self, id: u32, ipv4: bool) -> anyhow::Result<Option<Backend>> {
        if ipv4 {
            let found: Option<LbBackend4> = lookup("cilium_lb4_backends_v3", &id)?;
            return Ok(found.map(|row| Backend {
                address: socket(ipv4_from_word(row.address), row.port),
                state: row.state,
            }));
        }
        let found: Option<LbBackend6> = lookup("cilium_lb6_backends_v3", &id)?;
        Ok(found
            .map(|row| Backend { address: socket(ipv6_from_words(row.address), row.port), state: row.state }))
    }

    fn reverse_nat(&self, id: u16, ipv4: bool) -> anyhow::Result<Option<SocketAddr>> {
        if ipv4 {
            let found: Option<LbReverseNat4> = lookup("cilium_lb4_reverse_nat", &id)?;
            return Ok(found.map(|row| socket(ipv4_from_word(row.address), row.port)));
        }
        let found: Option<LbReverseNat6> = lookup("cilium_lb6_reverse_nat", &id)?;
        Ok(found.map(|row| socket(ipv6_from_words(row.address), row.port)))
    }

    fn maglev(&self, id: u16, ipv4: bool) -> anyhow::Result<Option<Vec<u32>>> {
        let name = if ipv4 { "cilium_lb4_maglev" } else { "cilium_lb6_maglev" };
        lookup::<u16, u32>(name, &id)?.map(|inner| maglev::read(&RawMap::open_id(inner)?)).transpose()
    }

    fn affinity(&self, client: IpAddr, rev_nat_id: u16) -> anyhow::Result<Option<LbAffinity>> {
        fn key_of<A>(client: A, rev_nat_id: u16) -> LbAffinityKey<A> {
            LbAffinityKey { client, rev_nat_id, netns_cookie: 0, pad1: 0, pad2: 0 }
        }
        let found: Option<LbAffinity> = by_family(
            client,
            |word| lookup("cilium_lb4_affinity", &key_of([word, 0], rev_nat_id)),
            |words| lookup("cilium_lb6_affinity", &key_of(words, rev_nat_id)),
        )?;
        let Some(known) = found else { return Ok(None) };
        let serves = LbAffinityMatch { backend_id: known.backend_id, rev_nat_id, pad: 0 };
        let serves: Option<u8> = lookup("cilium_lb_affinity_match", &serves)?;
        Ok(serves.map(|_| known))
    }

    fn in_source_range(&self, client: IpAddr, rev_nat_id: u16) -> anyhow::Result<bool> {
        let bits = if client.is_ipv4() { 32 } else { 128 };
        let prefixlen = SERVICE_RANGE_BITS + bits;
        let found: Option<u8> = by_family(
            client,
            |address| {
                let key = LbSourceRange { prefixlen, rev_nat_id, pad: 0, address };
                lookup("cilium_lb4_source_range", &key)
            },
            |address| {
                let key = LbSourceRange { prefixlen, rev_nat_id, pad: 0, address };
                lookup("cilium_lb6_source_range", &key)
            },
        )?;
        Ok(found.is_some())
    }

    fn connection(&self, of: &Tuple) -> anyhow::Result<Option<CtEntry>> {
        let (mut ends, mut ports) =
            ([of.source.ip(), of.destination.ip()], [of.destination.port(), of.source.port()]);
        // Entries of connections have the addresses reversed, those of services the ports.
        if of.flags & datapath_abi::tuple_flag::SERVICE != 0 {
            ends.reverse();
            ports.reverse();
        }
        match ends {
            [IpAddr::V4(a), IpAddr::V4(b)] => {
                let name = if of.protocol == TCP { "cilium_ct4_global" } else { "cilium_ct_any4_global" };
                lookup(name, &tuple(of, [a, b].map(ipv4_word), ports))
            }
            [IpAddr::V6(a), IpAddr::V6(b)] => {
                let name = if of.protocol == TCP { "cilium_ct6_global" } else { "cilium_ct_any6_global" };
                lookup(name, &tuple(of, [a, b].map(ipv6_words), ports))
            }
            _ => Ok(None),
        }
    }

    fn translation(&self, of: &Tuple) -> anyhow::Result<Option<SocketAddr>> {
        let ports = [of.destination.port(), of.source.port()];
        match [of.destination.ip(), of.source.ip()] {
            [IpAddr::V4(to), IpAddr::V4(from)] => {
                let key = tuple(of, [to, from].map(ipv4_word), ports);
                let found: Option<NatEntry4> = lookup("cilium_snat_v4_external", &key)?;
                Ok(found.map(|row| socket(ipv4_from_word(row.address), row.port)))
            }
            [IpAddr::V6(to), IpAddr::V6(from)] => {
                let key = tuple(of, [to, from].map(ipv6_words), ports);
                let found: Option<NatEntry6> = lookup("cilium_snat_v6_external", &key)?;
                Ok(found.map(|row| socket(ipv6_from_words(row.address), row.port)))
            }
            _ => Ok(None),
        }
    }

    fn masquerade(&self) -> anyhow::Result<Vec<(u32, MasqueradeAddresses)>> {
        let mut entries = match pinned::rows("ep_masquerade") {
            Ok(entries) => entries,
            Err(error) if pinned::is_missing(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        entries.sort_unstable_by_key(|(index, _)| *index);
        Ok(entries)
    }

    fn is_excluded_by_agent(&self, ip: IpAddr) -> anyhow::Result<bool> {
        let found: Option<u8> = by_family(
            ip,
            |address| lookup("cilium_ipmasq_v4", &IpMasqKey { prefixlen: 32, address }),
            |address| lookup("cilium_ipmasq_v6", &IpMasqKey { prefixlen: 128, address }),
        )?;
        Ok(found.is_some())
    }
}

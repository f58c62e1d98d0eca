//! The pinned maps of the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use bpf::{Map, RawMap};
use datapath_abi::{
    LbAffinityMatch, LbBackend, LbReverseNat, LbService, LbServiceKey, LbSourceRange, Pod, ipv4_from_word,
    ipv4_word, ipv6_from_words, ipv6_words,
};
use ipnetwork::IpNetwork;
use maps::{FamilyConfig, Maps, Specs};

use crate::lbmap::maglev::digest;
use crate::lbmap::maglev_map::MaglevMap;
use crate::lbmap::rows::{BackendValue, Family, Key, LbMap, LbMaps, MapError, Value};
use crate::metrics::{MapOperations, Operation};
use crate::model::address::{LbAddress, Protocol, Scope};

/// The maps of the enabled families.
pub struct KernelMaps {
    v4: Option<OfFamily<u32>>,
    v6: Option<OfFamily<[u32; 4]>>,
    matches: Map<LbAffinityMatch, u8>,
    maglev4: Option<MaglevMap>,
    maglev6: Option<MaglevMap>,
    operations: MapOperations,
}

struct OfFamily<A: Copy> {
    services: Map<LbServiceKey<A>, LbService>,
    backends: Map<u32, LbBackend<A>>,
    reverse: Map<u16, LbReverseNat<A>>,
    ranges: Map<LbSourceRange<A>, u8>,
}

/// An address of one family in the format of a map.
trait Address: Copy + Default + 'static {
    const FAMILY: Family;
    /// The number of bits before the address that a prefix length includes.
    const STATIC_BITS: u32 = 32;
    fn to_ip(self) -> IpAddr;
    fn from_ip(ip: IpAddr) -> Option<Self>;
}

impl Address for u32 {
    const FAMILY: Family = Family::V4;

    fn to_ip(self) -> IpAddr {
        ipv4_from_word(self).into()
    }

    fn from_ip(ip: IpAddr) -> Option<u32> {
        match ip {
            IpAddr::V4(ip) => Some(ipv4_word(ip)),
            IpAddr::V6(_) => None,
        }
    }
}

impl Address for [u32; 4] {
    const FAMILY: Family = Family::V6;

    fn to_ip(self) -> IpAddr {
        ipv6_from_words(self).into()
    }

    fn from_ip(ip: IpAddr) -> Option<[u32; 4]> {
        match ip {
            IpAddr::V6(ip) => Some(ipv6_words(ip)),
            IpAddr::V4(_) => None,
        }
    }
}

impl KernelMaps {
    /// Opens or creates the pinned maps. Without Maglev tables ([`Specs::with_maglev`]) the pins of their maps are removed.
    pub fn open(maps: &Maps, families: &FamilyConfig) -> Result<KernelMaps, MapError> {
        // The same open maps that the programs are loaded with, even if a map was just replaced by one of another size.
        let opened = |map: LbMap| {
            Ok(maps.shared(map.name())?.ok_or_else(|| format!("there is no map {}", map.name()))?)
        };
        let of_tables = |enabled: bool, family: Family| {
            if enabled && maps.specs().maglev().is_some() {
                return MaglevMap::pinned(maps, family).map(Some);
            }
            bpf::unpin(&maps.path(LbMap::Maglev(family).name()))?;
            Ok(None)
        };
        KernelMaps::of(families, &opened, &of_tables)
    }

    /// Creates maps of this form without pins: the kernel frees them when this value is dropped.
    pub fn unpinned(specs: &Specs, families: &FamilyConfig) -> Result<KernelMaps, MapError> {
        let created = |map: LbMap| {
            let spec = specs.find(map.name()).ok_or_else(|| format!("there is no map {}", map.name()))?;
            Ok(RawMap::create(&spec)?)
        };
        let of_tables = |enabled: bool, family: Family| {
            (enabled && specs.maglev().is_some()).then(|| MaglevMap::unpinned(specs, family)).transpose()
        };
        KernelMaps::of(families, &created, &of_tables)
    }

    fn of(
        families: &FamilyConfig,
        raw: &OpenRaw<'_>,
        of_tables: &OpenTables<'_>,
    ) -> Result<KernelMaps, MapError> {
        Ok(KernelMaps {
            v4: families.enable_ipv4.then(|| OfFamily::of(raw)).transpose()?,
            v6: families.enable_ipv6.then(|| OfFamily::of(raw)).transpose()?,
            matches: Map::new(raw(LbMap::AffinityMatch)?)?,
            maglev4: of_tables(families.enable_ipv4, Family::V4)?,
            maglev6: of_tables(families.enable_ipv6, Family::V6)?,
            operations: MapOperations::default(),
        })
    }

    /// Sets the counters of map operations.
    pub fn with_operations(self, operations: MapOperations) -> KernelMaps {
        KernelMaps { operations, ..self }
    }

    fn maglev(&self, family: Family) -> Option<&MaglevMap> {
        match family {
            Family::V4 => self.maglev4.as_ref(),
            Family::V6 => self.maglev6.as_ref(),
        }
    }
}

/// A function that opens one of the maps.
type OpenRaw<'m> = dyn Fn(LbMap) -> Result<RawMap, MapError> + 'm;
type OpenTables<'m> = dyn Fn(bool, Family) -> Result<Option<MaglevMap>, MapError> + 'm;

/// The entries of one map, filtered from entries of all maps.
#[derive(Default)]
struct Sorted<A: Copy> {
    services: Vec<(LbServiceKey<A>, LbService)>,
    backends: Vec<(u32, LbBackend<A>)>,
    reverse: Vec<(u16, LbReverseNat<A>)>,
    ranges: Vec<(LbSourceRange<A>, u8)>,
}

impl<A: Address> OfFamily<A>
where
    LbServiceKey<A>: Pod,
    LbBackend<A>: Pod + Default,
    LbReverseNat<A>: Pod + Default,
    LbSourceRange<A>: Pod,
{
    fn of(raw: &OpenRaw<'_>) -> Result<OfFamily<A>, MapError> {
        Ok(OfFamily {
            services: Map::new(raw(LbMap::Services(A::FAMILY))?)?,
            backends: Map::new(raw(LbMap::Backends(A::FAMILY))?)?,
            reverse: Map::new(raw(LbMap::ReverseNat(A::FAMILY))?)?,
            ranges: Map::new(raw(LbMap::SourceRanges(A::FAMILY))?)?,
        })
    }

    fn put_sorted(&self, rows: &Sorted<A>, operations: &MapOperations) -> Result<(), MapError> {
        let counted = |map, count, result| operations.count(map, Operation::Update, count, result);
        let Sorted { services, backends, reverse, ranges } = rows;
        counted(LbMap::Backends(A::FAMILY), backends.len(), update_map(&self.backends, backends))?;
        counted(LbMap::ReverseNat(A::FAMILY), reverse.len(), update_map(&self.reverse, reverse))?;
        counted(LbMap::SourceRanges(A::FAMILY), ranges.len(), update_map(&self.ranges, ranges))?;
        counted(LbMap::Services(A::FAMILY), services.len(), update_map(&self.services, services))
    }

    fn delete_sorted(&self, rows: &Sorted<A>, operations: &MapOperations) -> Result<(), MapError> {
        let counted = |map, count, result| operations.count(map, Operation::Delete, count, result);
        let Sorted { services, backends, reverse, ranges } = rows;
        counted(LbMap::Services(A::FAMILY), services.len(), delete_from_map(&self.services, services))?;
        counted(LbMap::SourceRanges(A::FAMILY), ranges.len(), delete_from_map(&self.ranges, ranges))?;
        counted(LbMap::ReverseNat(A::FAMILY), reverse.len(), delete_from_map(&self.reverse, reverse))?;
        counted(LbMap::Backends(A::FAMILY), backends.len(), delete_from_map(&self.backends, backends))
    }

    fn lookup(&self, key: &Key) -> Result<Option<Value>, MapError> {
        let mut rows = Sorted::<A>::default();
        rows.add(key, None);
        Ok(match rows {
            Sorted { services, .. } if !services.is_empty() => {
                self.services.lookup(&services[0].0)?.map(Value::Service)
            }
            Sorted { backends, .. } if !backends.is_empty() => {
                self.backends.lookup(&backends[0].0)?.map(|row| backend(&row))
            }
            Sorted { reverse, .. } if !reverse.is_empty() => {
                self.reverse.lookup(&reverse[0].0)?.map(|row| reverse_nat(&row))
            }
            Sorted { ranges, .. } if !ranges.is_empty() => {
                self.ranges.lookup(&ranges[0].0)?.map(|_| Value::Present)
            }
            _ => None,
        })
    }

    fn rows(&self, rows: &mut Vec<(Key, Value)>) -> Result<(), MapError> {
        self.services.visit(|key, value| {
            let protocol = Protocol::from_number(key.proto);
            let scope = if key.scope == 0 { Scope::External } else { Scope::Internal };
            let address =
                LbAddress { ip: key.address.to_ip(), port: u16::from_be(key.dport), protocol, scope };
            rows.push((Key::Service(address, key.backend_slot), Value::Service(value)));
        })?;
        let family = A::FAMILY;
        self.backends.visit(|id, row| rows.push((Key::Backend(family, id), backend(&row))))?;
        self.reverse.visit(|id, row| {
            rows.push((Key::ReverseNat(family, u16::from_be(id)), reverse_nat(&row)));
        })?;
        rows.extend(self.ranges.keys()?.into_iter().filter_map(|key| {
            let bits = key.prefixlen.checked_sub(A::STATIC_BITS)?;
            let range = IpNetwork::new(key.address.to_ip(), u8::try_from(bits).ok()?).ok()?;
            Some((Key::SourceRange(u16::from_be(key.rev_nat_id), range), Value::Present))
        }));
        Ok(())
    }

    fn capacity(&self, map: LbMap) -> usize {
        let layout = match map {
            LbMap::Services(_) => self.services.raw().layout(),
            LbMap::Backends(_) => self.backends.raw().layout(),
            LbMap::ReverseNat(_) => self.reverse.raw().layout(),
            LbMap::SourceRanges(_) | LbMap::AffinityMatch | LbMap::Maglev(_) => self.ranges.raw().layout(),
        };
        layout.max_entries as usize
    }
}

fn backend<A: Address>(row: &LbBackend<A>) -> Value {
    let protocol = Protocol::from_number(row.proto);
    let address = LbAddress::new(row.address.to_ip(), u16::from_be(row.port), protocol);
    Value::Backend(BackendValue { address, state: row.state, zone: row.zone })
}

fn reverse_nat<A: Address>(row: &LbReverseNat<A>) -> Value {
    let (address, port) = (row.address, row.port);
    Value::ReverseNat(address.to_ip(), u16::from_be(port))
}

impl<A: Address> Sorted<A>
where
    LbBackend<A>: Default,
    LbReverseNat<A>: Default,
{
    /// Adds an entry of its own family; without a value only the key is added.
    fn add(&mut self, key: &Key, value: Option<&Value>) {
        match key {
            Key::Service(address, slot) => {
                let Some(ip) = A::from_ip(address.ip) else { return };
                let key = LbServiceKey {
                    address: ip,
                    dport: address.port.to_be(),
                    backend_slot: *slot,
                    proto: address.protocol.number(),
                    scope: address.scope as u8,
                    pad: [0; 2],
                };
                let value = match value {
                    Some(Value::Service(value)) => *value,
                    _ => LbService::default(),
                };
                self.services.push((key, value));
            }
            Key::Backend(family, id) if *family == A::FAMILY => {
                let value = match value {
                    Some(Value::Backend(BackendValue { address, state, zone })) => LbBackend {
                        address: A::from_ip(address.ip).unwrap_or_default(),
                        port: address.port.to_be(),
                        proto: address.protocol.number(),
                        state: *state,
                        zone: *zone,
                        ..LbBackend::default()
                    },
                    _ => LbBackend::default(),
                };
                self.backends.push((*id, value));
            }
            Key::ReverseNat(family, id) if *family == A::FAMILY => {
                let value = match value {
                    Some(Value::ReverseNat(ip, port)) => {
                        LbReverseNat { address: A::from_ip(*ip).unwrap_or_default(), port: port.to_be() }
                    }
                    _ => LbReverseNat::default(),
                };
                self.reverse.push((id.to_be(), value));
            }
            Key::SourceRange(id, range) => {
                let Some(address) = A::from_ip(range.network()) else { return };
                let prefixlen = A::STATIC_BITS + u32::from(range.prefix());
                self.ranges.push((LbSourceRange { prefixlen, rev_nat_id: id.to_be(), pad: 0, address }, 1));
            }
            Key::Backend(..) | Key::ReverseNat(..) | Key::AffinityMatch(..) | Key::Maglev(..) => {}
        }
    }
}

fn affinity_match(id: u16, backend_id: u32) -> LbAffinityMatch {
    LbAffinityMatch { backend_id, rev_nat_id: id.to_be(), pad: 0 }
}

fn update_map<K: Pod, V: Pod>(map: &Map<K, V>, rows: &[(K, V)]) -> Result<(), MapError> {
    match rows {
        [] => {}
        [(key, value)] => map.update(key, value)?,
        rows => map.update_batch(rows)?,
    }
    Ok(())
}

fn delete_from_map<K: Pod, V: Pod>(map: &Map<K, V>, rows: &[(K, V)]) -> Result<(), MapError> {
    match rows {
        [] => {}
        [(key, _)] => _ = map.delete(key)?,
        rows => map.delete_batch(&rows.iter().map(|(key, _)| *key).collect::<Vec<K>>())?,
    }
    Ok(())
}

/// The entries of all maps, sorted by map.
#[derive(Default)]
struct All {
    v4: Sorted<u32>,
    v6: Sorted<[u32; 4]>,
    matches: Vec<(LbAffinityMatch, u8)>,
}

impl All {
    fn add(&mut self, key: &Key, value: Option<&Value>) {
        match key {
            Key::AffinityMatch(id, backend) => self.matches.push((affinity_match(*id, *backend), 1)),
            key => {
                self.v4.add(key, value);
                self.v6.add(key, value);
            }
        }
    }
}

impl LbMaps for KernelMaps {
    fn put(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        let mut all = All::default();
        rows.iter().for_each(|(key, value)| all.add(key, Some(value)));
        let operations = &self.operations;
        self.v4.as_ref().map_or(Ok(()), |maps| maps.put_sorted(&all.v4, operations))?;
        self.v6.as_ref().map_or(Ok(()), |maps| maps.put_sorted(&all.v6, operations))?;
        let result = update_map(&self.matches, &all.matches);
        operations.count(LbMap::AffinityMatch, Operation::Update, all.matches.len(), result)
    }

    fn delete(&self, keys: &[Key]) -> Result<(), MapError> {
        let mut all = All::default();
        keys.iter().for_each(|key| all.add(key, None));
        let operations = &self.operations;
        self.v4.as_ref().map_or(Ok(()), |maps| maps.delete_sorted(&all.v4, operations))?;
        self.v6.as_ref().map_or(Ok(()), |maps| maps.delete_sorted(&all.v6, operations))?;
        let result = delete_from_map(&self.matches, &all.matches);
        operations.count(LbMap::AffinityMatch, Operation::Delete, all.matches.len(), result)?;
        for family in [Family::V4, Family::V6] {
            let of_family = |key: &Key| match key {
                Key::Maglev(of, id) if *of == family => Some(*id),
                _ => None,
            };
            let ids: Vec<u16> = keys.iter().filter_map(of_family).collect();
            let result = self.maglev(family).map_or(Ok(()), |map| map.delete(&ids));
            operations.count(LbMap::Maglev(family), Operation::Delete, ids.len(), result)?;
        }
        Ok(())
    }

    fn put_tables(&self, tables: &[(Key, Arc<[u32]>)]) -> Result<(), MapError> {
        for family in [Family::V4, Family::V6] {
            let of_family = tables.iter().filter_map(|(key, table)| match key {
                Key::Maglev(of, id) if *of == family => Some((*id, &**table)),
                _ => None,
            });
            let of_family: Vec<(u16, &[u32])> = of_family.collect();
            if !of_family.is_empty() {
                let map = LbMap::Maglev(family);
                let tables = self.maglev(family).ok_or_else(|| format!("there is no map {}", map.name()))?;
                let result = tables.put(&of_family);
                self.operations.count(map, Operation::Update, of_family.len(), result)?;
            }
        }
        Ok(())
    }

    fn table(&self, key: &Key) -> Result<Option<Arc<[u32]>>, MapError> {
        match key {
            Key::Maglev(family, id) => self.maglev(*family).map_or(Ok(None), |map| map.table(*id)),
            _ => Ok(None),
        }
    }

    fn get(&self, key: &Key) -> Result<Option<Value>, MapError> {
        match (key, key.map()) {
            (Key::AffinityMatch(id, backend), _) => {
                Ok(self.matches.lookup(&affinity_match(*id, *backend))?.map(|_| Value::Present))
            }
            (Key::Maglev(..), _) => Ok(self.table(key)?.map(|table| Value::Maglev(digest(&table)))),
            (_, LbMap::Services(Family::V4) | LbMap::Backends(Family::V4)) => lookup(self.v4.as_ref(), key),
            (_, LbMap::ReverseNat(Family::V4) | LbMap::SourceRanges(Family::V4)) => {
                lookup(self.v4.as_ref(), key)
            }
            _ => lookup(self.v6.as_ref(), key),
        }
    }

    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        let mut rows = Vec::new();
        self.v4.as_ref().map_or(Ok(()), |maps| maps.rows(&mut rows))?;
        self.v6.as_ref().map_or(Ok(()), |maps| maps.rows(&mut rows))?;
        rows.extend(
            self.matches.keys()?.into_iter().map(|key| {
                (Key::AffinityMatch(u16::from_be(key.rev_nat_id), key.backend_id), Value::Present)
            }),
        );
        for family in [Family::V4, Family::V6] {
            rows.extend(self.maglev(family).map_or(Ok(Vec::new()), |map| map.rows(family))?);
        }
        Ok(rows)
    }

    fn capacity(&self, map: LbMap) -> usize {
        match map {
            LbMap::Maglev(family) => self.maglev(family).map_or(0, MaglevMap::capacity),
            LbMap::AffinityMatch => self.matches.raw().layout().max_entries as usize,
            LbMap::Services(family)
            | LbMap::Backends(family)
            | LbMap::ReverseNat(family)
            | LbMap::SourceRanges(family) => match family {
                Family::V4 => self.v4.as_ref().map_or(0, |maps| maps.capacity(map)),
                Family::V6 => self.v6.as_ref().map_or(0, |maps| maps.capacity(map)),
            },
        }
    }
}

fn lookup<A: Address>(maps: Option<&OfFamily<A>>, key: &Key) -> Result<Option<Value>, MapError>
where
    LbServiceKey<A>: Pod,
    LbBackend<A>: Pod + Default,
    LbReverseNat<A>: Pod + Default,
    LbSourceRange<A>: Pod,
{
    maps.map_or(Ok(None), |maps| maps.lookup(key))
}

//! Entries of the load balancer maps, with one type for both families, and the trait of the maps.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::{LbService, lb_backend_state};
use ipnetwork::IpNetwork;

use crate::model::address::{LbAddress, Protocol};
use crate::model::backend::BackendState;

/// The key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A frontend (slot 0) or one of its backends.
    Service(LbAddress, u16),
    /// A backend.
    Backend(Family, u32),
    /// The frontend's address by its id.
    ReverseNat(Family, u16),
    /// A backend that clients of a frontend may have affinity to: ids of both.
    AffinityMatch(u16, u32),
    /// The Maglev table of a frontend, by its id.
    Maglev(Family, u16),
    /// A source range: the frontend's id and the range.
    SourceRange(u16, IpNetwork),
}

/// The value of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The value of [`Key::Service`].
    Service(LbService),
    /// The value of [`Key::Backend`].
    Backend(BackendValue),
    /// The value of [`Key::ReverseNat`].
    ReverseNat(IpAddr, u16),
    /// The value of [`Key::Maglev`]: the [`digest`](crate::lbmap::maglev::digest) of the table, which is not stored.
    Maglev(u64),
    /// The value of keys without one.
    Present,
}

/// A backend as stored in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendValue {
    /// Its address; the scope is always external.
    pub address: LbAddress,
    /// One of [`lb_backend_state`].
    pub state: u8,
    /// The id of its zone, 0 for none (`fixed-zone-mapping`).
    pub zone: u8,
}

/// The IP family of an entry, for keys that do not contain an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// One of the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LbMap {
    /// `cilium_lb4_services_v2`, `cilium_lb6_services_v2`
    Services(Family),
    /// `cilium_lb4_backends_v3`, `cilium_lb6_backends_v3`
    Backends(Family),
    /// `cilium_lb4_reverse_nat`, `cilium_lb6_reverse_nat`
    ReverseNat(Family),
    /// `cilium_lb_affinity_match`
    AffinityMatch,
    /// `cilium_lb4_source_range`, `cilium_lb6_source_range`
    SourceRanges(Family),
    /// `cilium_lb4_maglev`, `cilium_lb6_maglev`
    Maglev(Family),
}

impl LbMap {
    /// The number of maps.
    pub(crate) const COUNT: usize = 11;

    /// All maps, hash tables first.
    pub(crate) const ALL: [LbMap; LbMap::COUNT] = [
        LbMap::AffinityMatch,
        LbMap::Services(Family::V4),
        LbMap::Services(Family::V6),
        LbMap::Backends(Family::V4),
        LbMap::Backends(Family::V6),
        LbMap::ReverseNat(Family::V4),
        LbMap::ReverseNat(Family::V6),
        LbMap::SourceRanges(Family::V4),
        LbMap::SourceRanges(Family::V6),
        LbMap::Maglev(Family::V4),
        LbMap::Maglev(Family::V6),
    ];

    /// Returns its index, below [`COUNT`](Self::COUNT).
    pub(crate) fn index(self) -> usize {
        match self {
            LbMap::AffinityMatch => 0,
            LbMap::Services(family) => 1 + family as usize,
            LbMap::Backends(family) => 3 + family as usize,
            LbMap::ReverseNat(family) => 5 + family as usize,
            LbMap::SourceRanges(family) => 7 + family as usize,
            LbMap::Maglev(family) => 9 + family as usize,
        }
    }

    /// Returns the pin's name.
    pub fn name(self) -> &'static str {
        match self {
            LbMap::Services(Family::V4) => "cilium_lb4_services_v2",
            LbMap::Services(Family::V6) => "cilium_lb6_services_v2",
            LbMap::Backends(Family::V4) => "cilium_lb4_backends_v3",
            LbMap::Backends(Family::V6) => "cilium_lb6_backends_v3",
            LbMap::ReverseNat(Family::V4) => "cilium_lb4_reverse_nat",
            LbMap::ReverseNat(Family::V6) => "cilium_lb6_reverse_nat",
            LbMap::AffinityMatch => "cilium_lb_affinity_match",
            LbMap::SourceRanges(Family::V4) => "cilium_lb4_source_range",
            LbMap::SourceRanges(Family::V6) => "cilium_lb6_source_range",
            LbMap::Maglev(Family::V4) => "cilium_lb4_maglev",
            LbMap::Maglev(Family::V6) => "cilium_lb6_maglev",
        }
    }

    /// Returns the option that sets its size, besides `bpf-lb-map-max` for all.
    pub fn option(self) -> &'static str {
        match self {
            LbMap::Services(_) => "bpf-lb-service-map-max",
            LbMap::Backends(_) => "bpf-lb-service-backend-map-max",
            LbMap::ReverseNat(_) => "bpf-lb-rev-nat-map-max",
            LbMap::AffinityMatch => "bpf-lb-affinity-map-max",
            LbMap::SourceRanges(_) => "bpf-lb-source-range-map-max",
            LbMap::Maglev(_) => "bpf-lb-maglev-map-max",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Service(address, slot) => write!(f, "{address} slot {slot}"),
            Key::Backend(_, id) => write!(f, "backend {id}"),
            Key::ReverseNat(_, id) => write!(f, "frontend {id}"),
            Key::AffinityMatch(id, backend) => write!(f, "frontend {id}, backend {backend}"),
            Key::Maglev(_, id) => write!(f, "table of frontend {id}"),
            Key::SourceRange(id, range) => write!(f, "frontend {id}, clients {range}"),
        }
    }
}

/// Hashes few words: maps of entries are large and updated often.
impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let number = |kind: u64, more: u64, number: u32| kind << 60 | more << 32 | u64::from(number);
        match self {
            Key::Service(address, slot) => {
                address.hash(state);
                state.write_u16(*slot);
            }
            Key::Backend(family, id) => state.write_u64(number(1, *family as u64, *id)),
            Key::ReverseNat(family, id) => state.write_u64(number(2, *family as u64, (*id).into())),
            Key::AffinityMatch(id, backend) => state.write_u64(number(3, (*id).into(), *backend)),
            Key::Maglev(family, id) => state.write_u64(number(4, *family as u64, (*id).into())),
            Key::SourceRange(id, range) => {
                range.hash(state);
                state.write_u16(*id);
            }
        }
    }
}

impl Key {
    /// Returns the key of a frontend's own entry.
    pub fn master(address: LbAddress) -> Key {
        Key::Service(address, 0)
    }

    /// Returns the entry that marks an address as a service's, for all ports.
    pub fn wildcard(ip: IpAddr) -> Key {
        Key::Service(LbAddress::new(ip, 0, Protocol::Any), 0)
    }

    /// Returns the map that contains the entry.
    pub fn map(&self) -> LbMap {
        match self {
            Key::Service(address, _) => LbMap::Services(Family::of(address.ip)),
            Key::Backend(family, _) => LbMap::Backends(*family),
            Key::ReverseNat(family, _) => LbMap::ReverseNat(*family),
            Key::AffinityMatch(..) => LbMap::AffinityMatch,
            Key::Maglev(family, _) => LbMap::Maglev(*family),
            Key::SourceRange(_, range) => LbMap::SourceRanges(Family::of(range.ip())),
        }
    }
}

/// Returns the state in the kernel: whether the backend keeps its connections. A failed health check is a property of
/// one service and expressed by the order of that service's slots, not here.
pub fn kernel_state(state: BackendState) -> u8 {
    match state {
        BackendState::Active => lb_backend_state::ACTIVE,
        BackendState::Terminating | BackendState::TerminatingNotServing => lb_backend_state::TERMINATING,
        BackendState::Quarantined => lb_backend_state::QUARANTINED,
        BackendState::Maintenance => lb_backend_state::MAINTENANCE,
    }
}

/// Returns the state of a backend from its entry, the reverse of [`kernel_state`].
pub(crate) fn backend_state(kernel: u8) -> BackendState {
    match kernel {
        lb_backend_state::ACTIVE => BackendState::Active,
        lb_backend_state::TERMINATING => BackendState::Terminating,
        lb_backend_state::QUARANTINED => BackendState::Quarantined,
        _ => BackendState::Maintenance,
    }
}

/// The error of writing, deleting or reading entries.
pub type MapError = reconciler::OpError;

/// The load balancer maps, or a fake in tests. Only one writer may use them at a time.
pub trait LbMaps: Send + Sync + 'static {
    /// Writes entries, in any order; after an error some may have been written.
    fn put(&self, rows: &[(Key, Value)]) -> Result<(), MapError>;

    /// Writes Maglev tables by their keys, in any order; after an error some may have been written. [`put`](Self::put)
    /// writes all other entries.
    fn put_tables(&self, tables: &[(Key, Arc<[u32]>)]) -> Result<(), MapError>;

    /// Returns a Maglev table: ids of backends by position.
    fn table(&self, key: &Key) -> Result<Option<Arc<[u32]>>, MapError>;

    /// Deletes entries, in any order; missing ones are not an error. After an error some may have been deleted.
    fn delete(&self, keys: &[Key]) -> Result<(), MapError>;

    /// Returns one entry.
    fn get(&self, key: &Key) -> Result<Option<Value>, MapError>;

    /// Returns all entries.
    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError>;

    /// Returns all entries, for commands: a fake with injected failures does not fail here.
    fn all_rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        self.rows()
    }

    /// Writes entries for commands: a fake with injected failures does not fail here.
    fn put_all(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        self.put(rows)
    }

    /// Returns the capacity of a map; 0 if it does not exist because its family or its algorithm is disabled.
    fn capacity(&self, map: LbMap) -> usize;
}

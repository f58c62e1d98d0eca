//! Entries of the load balancer maps, of both families alike, and the trait of the maps.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::{LbService, lb_backend_state};
use ipnetwork::IpNetwork;

use crate::model::address::{LbAddress, Protocol};
use crate::model::backend::BackendState;

/// Key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A frontend (slot 0) or one of its backends.
    Service(LbAddress, u16),
    /// A backend.
    Backend(Family, u32),
    /// The frontend's address by its id.
    ReverseNat(Family, u16),
    /// A backend that clients of a frontend may stay with: ids of both.
    AffinityMatch(u16, u32),
    /// The Maglev table of a frontend, by its id.
    Maglev(Family, u16),
    /// A source range: the frontend's id and the range.
    SourceRange(u16, IpNetwork),
}

/// Value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Of [`Key::Service`].
    Service(LbService),
    /// Of [`Key::Backend`].
    Backend(BackendValue),
    /// Of [`Key::ReverseNat`].
    ReverseNat(IpAddr, u16),
    /// Of [`Key::Maglev`]: the [`digest`](crate::lbmap::maglev::digest) of the table, which is not kept.
    Maglev(u64),
    /// Of keys without a value.
    Present,
}

/// A backend as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendValue {
    /// Its address; the scope is always external.
    pub address: LbAddress,
    /// One of [`lb_backend_state`].
    pub state: u8,
    /// The id of its zone, 0 for none (`fixed-zone-mapping`).
    pub zone: u8,
}

/// IP family of an entry, where the key itself does not contain an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The family of an address.
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
    /// How many there are.
    pub(crate) const COUNT: usize = 11;

    /// All of them, hash tables first.
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

    /// Its index, below [`COUNT`](Self::COUNT).
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

    /// The pin's name.
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

    /// The option that sets its size, besides `bpf-lb-map-max` for all.
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

/// As few steps as there can be.
impl Hash for Key {
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
    /// The row of a frontend itself.
    pub fn master(address: LbAddress) -> Key {
        Key::Service(address, 0)
    }

    /// The entry that marks an address as a service's, for all ports.
    pub fn wildcard(ip: IpAddr) -> Key {
        Key::Service(LbAddress::new(ip, 0, Protocol::Any), 0)
    }

    /// The map that has the row.
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

/// What the kernel knows of a state: whether the backend keeps its connections. That it was found unhealthy is the word
/// of one service and stands in the order of that service's slots, not here.
pub fn kernel_state(state: BackendState) -> u8 {
    match state {
        BackendState::Active => lb_backend_state::ACTIVE,
        BackendState::Terminating | BackendState::TerminatingNotServing => lb_backend_state::TERMINATING,
        BackendState::Quarantined => lb_backend_state::QUARANTINED,
        BackendState::Maintenance => lb_backend_state::MAINTENANCE,
    }
}

/// The state of a backend as its row has it, the reverse of [`kernel_state`].
pub(crate) fn backend_state(kernel: u8) -> BackendState {
    match kernel {
        lb_backend_state::ACTIVE => BackendState::Active,
        lb_backend_state::TERMINATING => BackendState::Terminating,
        lb_backend_state::QUARANTINED => BackendState::Quarantined,
        _ => BackendState::Maintenance,
    }
}

/// Why rows were not written, deleted or read.
pub type MapError = reconciler::OpError;

/// The load balancer maps, or a fake in tests. They have one writer at a time.
pub trait LbMaps: Send + Sync + 'static {
    /// Writes rows, in any order; on an error some of them.
    fn put(&self, rows: &[(Key, Value)]) -> Result<(), MapError>;

    /// Writes Maglev tables by their keys, in any order; on an error some of them. [`put`](Self::put) writes all
    /// others.
    fn put_tables(&self, tables: &[(Key, Arc<[u32]>)]) -> Result<(), MapError>;

    /// Returns a Maglev table: ids of backends by position.
    fn table(&self, key: &Key) -> Result<Option<Arc<[u32]>>, MapError>;

    /// Deletes rows, in any order; missing ones are no error. On an error some of them.
    fn delete(&self, keys: &[Key]) -> Result<(), MapError>;

    /// One row.
    fn get(&self, key: &Key) -> Result<Option<Value>, MapError>;

    /// All rows.
    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError>;

    /// Returns all entries, for commands: a fake that fails on demand does not fail here.
    fn all_rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        self.rows()
    }

    /// Writes rows from outside, likewise.
    fn put_all(&self, rows: &[(Key, Value)]) -> Result<(), MapError> {
        self.put(rows)
    }

    /// How many rows a map can have; 0 if there is no such map, since its family or its algorithm is off.
    fn capacity(&self, map: LbMap) -> usize;
}

//! The addresses that a CiliumNode lists, as a pure function of the object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::{Family, Listed, ListedAddress, ListedBy};
use k8s_types::SmolStr;
use k8s_types::cilium::{AllocationIp, CiliumNode};

/// The state of an address that the operator means to release.
pub(crate) const MARKED: &str = "marked-for-release";

/// The maps of a CiliumNode that an address may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    /// `pool`, `used`, `release-ips`
    Ipv4,
    /// `ipv6-pool`, `ipv6-used`, `release-ipv6s`
    Ipv6,
}

impl Field {
    pub(crate) const ALL: [Field; 2] = [Field::Ipv4, Field::Ipv6];

    /// Returns the field of an address that is in neither.
    pub(crate) fn of(address: IpAddr) -> Field {
        match Family::of(address) {
            Family::V4 => Field::Ipv4,
            Family::V6 => Field::Ipv6,
        }
    }
}

/// A listed address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The map that it is in.
    pub(crate) field: Field,
    /// The address as the object spells it.
    pub(crate) key: SmolStr,
    /// Its owner and resource.
    pub(crate) object: AllocationIp,
}

/// The addresses of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodePool {
    entries: BTreeMap<IpAddr, Entry>,
    releasing: BTreeSet<IpAddr>,
    marked: BTreeSet<IpAddr>,
    /// Keys that are no addresses.
    pub(crate) problems: Vec<String>,
}

/// Parses an address of a map of the object.
pub(crate) fn address(key: &str) -> Option<IpAddr> {
    key.parse().ok().map(|address: IpAddr| address.to_canonical())
}

impl NodePool {
    /// Reads the object. Both families are accepted in both maps.
    pub(crate) fn read(object: &CiliumNode) -> NodePool {
        let mut pool = NodePool::default();
        let spec = &object.spec.ipam;
        for (field, name, map) in
            [(Field::Ipv4, "pool", &spec.pool), (Field::Ipv6, "ipv6-pool", &spec.ipv6_pool)]
        {
            for (key, object) in map {
                let Some(address) = address(key) else {
                    pool.problems.push(format!("spec.ipam.{name}: {key:?} is no IP address"));
                    continue;
                };
                let entry = Entry { field, key: key.clone(), object: object.clone() };
                if let Some(first) = pool.entries.get(&address) {
                    let first = &first.key;
                    pool.problems.push(format!(
                        "spec.ipam.{name}: {key:?} is the same address as {first:?}, which counts"
                    ));
                    continue;
                }
                pool.entries.insert(address, entry);
            }
        }
        let status = &object.status.ipam;
        for (key, state) in status.release_ips.iter().chain(status.release_ipv6s.iter()) {
            let Some(address) = address(key) else { continue };
            pool.releasing.insert(address);
            if state == MARKED {
                pool.marked.insert(address);
            }
        }
        pool
    }

    /// Returns the entry of an address.
    pub(crate) fn get(&self, address: IpAddr) -> Option<&Entry> {
        self.entries.get(&address)
    }

    /// Returns the number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is an address of a family.
    pub(crate) fn has(&self, family: Family) -> bool {
        self.entries.keys().any(|address| Family::of(*address) == family)
    }

    /// Returns the listed addresses whose release the operator waits for.
    pub(crate) fn marked(&self) -> impl Iterator<Item = IpAddr> {
        self.marked.iter().copied().filter(|address| self.entries.contains_key(address))
    }

    /// Returns the addresses for the allocator. Those of `approved` count as being released, too.
    pub(crate) fn listed(&self, by: ListedBy, approved: &BTreeSet<IpAddr>) -> Listed {
        let one = |(address, entry): (&IpAddr, &Entry)| {
            let is_releasing = self.releasing.contains(address) || approved.contains(address);
            (*address, ListedAddress { owner: entry.object.owner.as_str().into(), is_releasing })
        };
        Listed::new(self.entries.iter().map(one).collect(), by)
    }
}

/// Returns why a node does not allocate yet; none if it may.
///
/// `own_addresses` is the minimum of an object that names none.
pub(crate) fn wait(object: &CiliumNode, pool: &NodePool, own_addresses: usize) -> Option<String> {
    let (name, spec) = (&object.metadata.name, &object.spec.ipam);
    let number = |count: i64| usize::try_from(count).ok().filter(|count| *count > 0);
    let (required, reason) = match (number(spec.min_allocate), number(spec.pre_allocate)) {
        (Some(count), _) => (count, "spec.ipam.min-allocate"),
        (None, Some(count)) => (count, "spec.ipam.pre-allocate"),
        (None, None) => (own_addresses, "the node's own addresses"),
    };
    if pool.len() < required {
        let count = pool.len();
        return Some(format!(
            "CiliumNode {name} has {count} of at least {required} addresses in spec.ipam.pool ({reason})"
        ));
    }
    let lacks_static = !spec.static_ip_tags.is_empty() && object.status.ipam.assigned_static_ip.is_empty();
    lacks_static.then(|| {
        format!(
            "CiliumNode {name} has no status.ipam.assigned-static-ip, which spec.ipam.static-ip-tags ask for"
        )
    })
}

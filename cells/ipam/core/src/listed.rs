//! Addresses that the cluster assigns to the node one by one, with `ipam=crd`, `azure` and `alibabacloud`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::pools::Pools;
use crate::range::Family;

/// An address that the node may allocate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedAddress {
    /// The only owner that it is for; empty for any.
    pub owner: Arc<str>,
    /// Whether it is being released, so that it is not allocated.
    pub is_releasing: bool,
}

/// The writer of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedBy {
    /// Users, who may name the owner of an address: `ipam=crd`.
    Users,
    /// The operator, as it allocates addresses of a cloud.
    Operator,
}

impl fmt::Display for ListedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ListedBy::Users => "IPs are added to CiliumNode spec.ipam.pool",
            ListedBy::Operator => "Cilium Operator allocates more IPs",
        })
    }
}

/// The addresses of a pool without ranges, an immutable value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    addresses: Arc<BTreeMap<IpAddr, ListedAddress>>,
    by: ListedBy,
    /// The router's addresses of before: only the router may have them.
    kept: Vec<IpAddr>,
}

impl Listed {
    /// Returns a list.
    pub fn new(addresses: BTreeMap<IpAddr, ListedAddress>, by: ListedBy) -> Listed {
        Listed { addresses: Arc::new(addresses), by, kept: Vec::new() }
    }

    /// The same without these addresses for requests that name none.
    pub(crate) fn keeping(self, kept: Vec<IpAddr>) -> Listed {
        Listed { kept, ..self }
    }

    /// Returns the writer of the list.
    pub(crate) fn by(&self) -> ListedBy {
        self.by
    }

    /// Whether the address is listed, one that is being released included.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Returns the number of addresses of a family. Costs a walk over the list.
    pub(crate) fn count(&self, family: Family) -> u128 {
        self.addresses.keys().filter(|address| Family::of(**address) == family).count() as u128
    }

    /// Whether this owner may have an address if it requests this one.
    pub(crate) fn is_available(&self, address: IpAddr, owner: &str) -> bool {
        self.addresses.get(&address).is_some_and(|listed| {
            !listed.is_releasing && (listed.owner.is_empty() || *listed.owner == *owner)
        })
    }

    /// Returns the addresses that are for this owner alone.
    pub(crate) fn reserved_for<'l>(
        &'l self,
        owner: &'l str,
        family: Family,
    ) -> impl Iterator<Item = IpAddr> + 'l {
        let is_for = move |listed: &ListedAddress| {
            self.by == ListedBy::Users && !owner.is_empty() && *listed.owner == *owner && !listed.is_releasing
        };
        self.of(family).filter(move |(_, listed)| is_for(listed)).map(|(address, _)| address)
    }

    /// Returns the addresses that are for any owner.
    pub(crate) fn unreserved(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let of_any = self.of(family).filter(|(_, listed)| listed.owner.is_empty() && !listed.is_releasing);
        of_any.map(|(address, _)| address).filter(|address| !self.kept.contains(address))
    }

    fn of(&self, family: Family) -> impl Iterator<Item = (IpAddr, &ListedAddress)> {
        let all = self.addresses.iter().map(|(address, listed)| (*address, listed));
        all.filter(move |(address, _)| Family::of(*address) == family)
    }
}

/// An owner of an address of each family that is the node's own, beside the router; a member of a group.
#[derive(Clone, Copy, Debug)]
pub struct NodeOwner(pub &'static str);

/// The pools of a cell that reads them elsewhere than in the node's row, as a member of a group.
#[derive(Clone, Debug)]
pub struct PoolSource(watch::Receiver<Pools>);

impl PoolSource {
    /// Returns the member. The pools are read at each request.
    pub fn new(pools: watch::Receiver<Pools>) -> PoolSource {
        PoolSource(pools)
    }

    pub(crate) fn pools(&self) -> Pools {
        self.0.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Pools> {
        self.0.clone()
    }
}

//! The handle by which endpoints and the REST API allocate and release addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_models::{
    AddressPair, IpamAddressResponse, IpamResponse, IpamStatus, List, NodeAddressing, NodeAddressingElement,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use statedb::{RwTable, Table};
use tokio::sync::watch;

use crate::address::{Address, DEFAULT_POOL, Lease};
use crate::chooser::Chooser;
use crate::error::Error;
use crate::ledger::{EXPIRATION, Ledger, Randomness};
use crate::metrics::{Action, Events, Usage};
use crate::pools::Pools;
use crate::range::{Family, PodRange};

const FAMILIES: [Family; 2] = [Family::V6, Family::V4];

/// The input of the allocator from the node; read at each allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// The addresses that may be allocated.
    pub pools: Pools,
    /// The first IPv4 pod range; none when the family is off or its range is not known yet.
    pub ipv4_range: Option<Ipv4Network>,
    /// The same for IPv6.
    pub ipv6_range: Option<Ipv6Network>,
    /// Whether another IPAM plugin of CNI allocates the pods' addresses: this allocator refuses.
    pub is_delegated: bool,
    /// Why a family has no range of the default pool yet.
    pub waits: BTreeMap<Family, String>,
    /// The router's IPv4 address.
    pub router_ipv4: Option<Ipv4Addr>,
    /// The router's IPv6 address.
    pub router_ipv6: Option<Ipv6Addr>,
}

impl Node {
    /// A node with one range for each family that is on.
    pub fn with_ranges(ipv4: Option<Ipv4Network>, ipv6: Option<Ipv6Network>) -> Node {
        let cidrs = ipv4.map(Into::into).into_iter().chain(ipv6.map(Into::into));
        Node { pools: Pools::of_ranges(cidrs), ipv4_range: ipv4, ipv6_range: ipv6, ..Node::default() }
    }
}

/// Allocates addresses from the node's pod ranges. Cheap to clone.
#[derive(Clone)]
pub struct Ipam {
    ledger: Ledger,
    table: Table<Address>,
    node: Arc<dyn Fn() -> Node + Send + Sync>,
    /// Notifies the sweeper of a sooner deadline.
    deadline: watch::Sender<()>,
    events: Events,
    chooser: Option<Chooser>,
}

impl Ipam {
    /// Returns an allocator on a table `ipam`. In a hive the cell provides it.
    pub fn new(table: RwTable<Address>, node: impl Fn() -> Node + Send + Sync + 'static) -> Ipam {
        let (deadline, _) = watch::channel(());
        let events = Events::default();
        let (table, ledger, node) = (table.reader(), Ledger::new(table), Arc::new(node));
        Ipam { table, ledger, node, deadline, events, chooser: None }
    }

    /// The same with several pools.
    #[must_use]
    pub fn with_chooser(self, chooser: Option<Chooser>) -> Ipam {
        Ipam { chooser, ..self }
    }

    /// Returns the pool of the node's own addresses.
    pub(crate) fn default_pool(&self) -> Arc<str> {
        self.chooser.as_ref().map_or_else(|| DEFAULT_POOL.into(), |chooser| chooser.default_pool())
    }

    /// Whether no address of a range has an owner or is in quarantine. An allocation that read the pools before has ended.
    pub fn is_vacant(&self, cidr: IpNetwork) -> bool {
        self.ledger.is_vacant(cidr)
    }

    /// Allocates an address of the family, or of each enabled one; all or none. Returns an empty list if none is
    /// enabled. With
    /// `expiration` addresses expire after ten minutes unless an endpoint takes them over with their token.
    ///
    /// Outside of multi-pool mode there is one pool, and the requested one is ignored.
    pub fn allocate(
        &self,
        owner: &str,
        family: Option<Family>,
        expiration: bool,
    ) -> Result<Vec<Address>, Error> {
        self.allocate_from("", owner, family, expiration)
    }

    /// As [`allocate`](Ipam::allocate), of the pool of this name, with several pools; an empty one leaves the choice.
    pub(crate) fn allocate_from(
        &self,
        pool: &str,
        owner: &str,
        family: Option<Family>,
        expiration: bool,
    ) -> Result<Vec<Address>, Error> {
        let one;
        let families = match family {
            None => &FAMILIES[..],
            Some(family) => {
                one = [family];
                &one[..]
            }
        };
        let after = expiration.then_some(EXPIRATION);
        let pool_of = |family| match &self.chooser {
            Some(_) if !pool.is_empty() => Ok(pool.into()),
            Some(chooser) => chooser.choose(owner, family),
            None => Ok(DEFAULT_POOL.into()),
        };
        if (self.node)().is_delegated {
            return Err(Error::Delegated);
        }
        let given = self.ledger.allocate(
            || self.pools(),
            &pool_of,
            families,
            owner,
            after.map(|after| Instant::now() + after),
            &mut Random,
        );
        let given = given.inspect_err(|error| {
            if let (Some(chooser), Some((pool, family))) = (&self.chooser, error.lacking()) {
                chooser.wait(pool, family, owner);
            }
        })?;
        for row in &given {
            if let Some(chooser) = &self.chooser {
                chooser.served(&row.pool, Family::of(row.address), owner);
            }
            self.events.count(Action::Allocate, Family::of(row.address));
        }
        if expiration {
            self.deadline.send_replace(());
        }
        Ok(given)
    }

    /// Allocates an address of the family for an owner of the node's own: `before` if it is free and of the default pool, else
    /// another one.
    pub fn allocate_own(&self, owner: &str, family: Family, before: Option<IpAddr>) -> Result<IpAddr, Error> {
        let (pools, default) = (self.pools(), self.default_pool());
        let is_available = |address: &IpAddr| {
            Family::of(*address) == family && pools.pool_of(*address).is_some_and(|pool| *pool == default)
        };
        if let Some(before) = before.filter(is_available)
            && self.allocate_ip(before, owner, &default).is_ok()
        {
            return Ok(before);
        }
        let given = self.allocate(owner, Some(family), false)?;
        given.first().map(|given| given.address).ok_or(Error::Disabled(family))
    }

    /// Allocates a given address, if it is free. `pool` must not be empty; all addresses are of `default`.
    pub fn allocate_ip(&self, address: IpAddr, owner: &str, pool: &str) -> Result<(), Error> {
        if pool.is_empty() {
            return Err(Error::NoPool { address, owner: owner.to_owned() });
        }
        if (self.node)().is_delegated {
            return Err(Error::Delegated);
        }
        self.ledger.take(|| self.pools(), address, owner, Lease::Held)?;
        self.events.count(Action::Allocate, Family::of(address));
        Ok(())
    }

    /// Whether the address is one of the router's.
    pub fn is_router(&self, address: IpAddr) -> bool {
        let node = (self.node)();
        match address {
            IpAddr::V4(address) => node.router_ipv4 == Some(address),
            IpAddr::V6(address) => node.router_ipv6 == Some(address),
        }
    }

    /// Releases an address, if it has an owner; refuses one that an endpoint or the router uses.
    pub fn release(&self, address: IpAddr, pool: &str) -> Result<(), Error> {
        if pool.is_empty() {
            return Err(Error::NoPoolForRelease(address));
        }
        if !self.pools().enabled(Family::of(address)) {
            return Err(Error::Disabled(Family::of(address)));
        }
        // The router's lease is `Held`, so that the ledger alone would release it.
        if self.is_router(address) {
            return Err(Error::Router(address));
        }
        if self.ledger.release(address, None, Instant::now())? {
            self.events.count(Action::Release, Family::of(address));
            self.deadline.send_replace(());
        }
        Ok(())
    }

    /// Assigns an address to an endpoint, so that it does not expire and only the endpoint releases it. A token must be
    /// that of the allocation. Addresses outside of the ranges belong to another allocator and are ignored.
    pub fn hand_over(
        &self,
        address: IpAddr,
        token: Option<&str>,
        owner: &str,
        endpoint: u16,
    ) -> Result<(), Error> {
        self.hand_over_all([(address, token)], owner, endpoint)
    }

    /// As [`hand_over`](Self::hand_over) for several addresses with their tokens, all or none.
    pub fn hand_over_all<'a>(
        &self,
        addresses: impl IntoIterator<Item = (IpAddr, Option<&'a str>)>,
        owner: &str,
        endpoint: u16,
    ) -> Result<(), Error> {
        self.ledger.hand_over(|| self.pools(), addresses, owner, endpoint)
    }

    /// Reserves the address of an endpoint of the previous run, also outside of all ranges: they may be known later.
    pub(crate) fn restore(&self, address: IpAddr, owner: &str, endpoint: u16) -> Result<(), Error> {
        self.ledger.restore(&self.pools(), address, owner, endpoint)
    }

    /// Releases an address of an endpoint. Returns whether the endpoint had it.
    pub fn release_endpoint(&self, address: IpAddr, endpoint: u16) -> bool {
        let released = self.ledger.release(address, Some(endpoint), Instant::now()).unwrap_or(false);
        if released {
            self.events.count(Action::Release, Family::of(address));
            self.deadline.send_replace(());
        }
        released
    }

    /// Whether the owner has an address of the family. Costs a walk over the table.
    pub(crate) fn has(&self, owner: &str, family: Family) -> bool {
        let snapshot = self.table.snapshot();
        let mut rows = self.table.all(&snapshot);
        rows.any(|row| row.allocated() && *row.owner == *owner && Family::of(row.address) == family)
    }

    /// Returns how many addresses of a family have an owner. Costs a walk over the table.
    pub fn count(&self, family: Family) -> usize {
        let snapshot = self.table.snapshot();
        self.table.all(&snapshot).filter(|row| row.allocated() && Family::of(row.address) == family).count()
    }

    /// Returns the pods' and other owners' addresses within a range. Costs a walk over the table.
    pub(crate) fn owners_in(&self, range: PodRange) -> Vec<Address> {
        let snapshot = self.table.snapshot();
        let within = self.table.all(&snapshot).filter(|row| row.allocated() && range.contains(row.address));
        within.map(|row| (**row).clone()).collect()
    }

    /// Registers the allocator's metrics.
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        self.events.register(metrics);
        metrics.register_collector(Usage(self.clone()));
    }

    /// Returns the addresses of an endpoint. Scans the table.
    pub fn endpoint_addresses(&self, endpoint: u16) -> Vec<IpAddr> {
        let snapshot = self.table.snapshot();
        let of_endpoint = self.table.all(&snapshot).filter(|row| row.lease == Lease::Endpoint(endpoint));
        of_endpoint.map(|row| row.address).collect()
    }

    /// Returns why a family has no range of the default pool yet.
    pub(crate) fn wait(&self, family: Family) -> Option<String> {
        (self.node)().waits.remove(&family)
    }

    /// Returns the pools at present.
    pub fn pools(&self) -> Pools {
        (self.node)().pools
    }

    /// Returns the `ipam` part of `GET /healthz`; with `full` every address with its owner.
    pub fn status(&self, full: bool) -> IpamStatus {
        status(&self.table, &self.pools(), &self.default_pool(), full)
    }

    /// Returns the table as text for debugging: a line for each address with its owner and lease.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let snapshot = self.table.snapshot();
        let lines = self.table.all(&snapshot).map(|row| {
            let Address { address, owner, lease, .. } = &**row;
            match lease {
                Lease::Held => format!("{address}: {owner}\n"),
                Lease::Endpoint(id) => format!("{address}: {owner}, endpoint {id}\n"),
                Lease::Expiring { at, .. } => {
                    let left = at.saturating_duration_since(now).as_secs();
                    format!("{address}: {owner}, expires in {left} s\n")
                }
                Lease::Resting { since } => {
                    let rested = now.saturating_duration_since(*since).as_secs();
                    format!("{address}: given back by {owner} {rested} s ago\n")
                }
            }
        });
        lines.collect()
    }

    /// Returns the answer to `POST /ipam`.
    pub(crate) fn respond(
        &self,
        pool: &str,
        owner: &str,
        family: Option<Family>,
        expiration: bool,
    ) -> Result<IpamResponse, Error> {
        let given = self.allocate_from(pool, owner, family, expiration)?;
        let mut response =
            IpamResponse { host_addressing: self.host_addressing(), ..IpamResponse::default() };
        for Address { address, lease, pool, .. } in given {
            let expiration_uuid = match lease {
                Lease::Expiring { uuid, .. } => uuid.to_string(),
                _ => String::new(),
            };
            let part = IpamAddressResponse {
                cidrs: List(None),
                ip: address.to_string(),
                expiration_uuid,
                skip_masquerade: self.chooser.as_ref().is_some_and(|chooser| chooser.skips_masquerade(&pool)),
                ..IpamAddressResponse::default()
            };
            let AddressPair { ipv4, ipv4_pool_name, ipv6, ipv6_pool_name, .. } = &mut response.address;
            match address {
                IpAddr::V4(_) => {
                    (*ipv4, *ipv4_pool_name) = (part.ip.clone(), pool.to_string());
                    response.ipv4 = Some(part);
                }
                IpAddr::V6(_) => {
                    (*ipv6, *ipv6_pool_name) = (part.ip.clone(), pool.to_string());
                    response.ipv6 = Some(part);
                }
            }
        }
        Ok(response)
    }

    fn host_addressing(&self) -> NodeAddressing {
        let node = (self.node)();
        let element = |router: Option<IpAddr>, range: Option<String>| {
            range.map(|alloc_range| NodeAddressingElement {
                alloc_range,
                enabled: true,
                ip: router.map(|router| router.to_string()).unwrap_or_default(),
                ..NodeAddressingElement::default()
            })
        };
        NodeAddressing {
            ipv4: element(node.router_ipv4.map(IpAddr::V4), node.ipv4_range.map(|range| range.to_string())),
            ipv6: element(node.router_ipv6.map(IpAddr::V6), node.ipv6_range.map(|range| range.to_string())),
        }
    }

    /// Releases expired addresses at their deadlines, until `stopped` is ready.
    pub(crate) async fn sweep(&self, stopped: impl Future<Output = ()>) {
        let mut changed = self.deadline.subscribe();
        tokio::pin!(stopped);
        loop {
            let (expired, next) = self.ledger.sweep(Instant::now());
            for row in expired {
                self.events.count(Action::Release, Family::of(row.address));
                tracing::warn!(ip = %row.address, owner = %row.owner, "Released IP after expiration");
            }
            let wait =
                next.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                () = &mut stopped => return,
                () = tokio::time::sleep(wait) => {}
                // Several deadlines may have changed meanwhile; one sweep serves them all.
                result = changed.changed() => if result.is_err() { return },
            }
        }
    }
}

fn status(table: &Table<Address>, pools: &Pools, default: &str, full: bool) -> IpamStatus {
    let snapshot = table.snapshot();
    let allocated: Vec<_> = table.all(&snapshot).filter(|row| row.allocated()).collect();
    let shown = |row: &Address| match *row.pool == *default {
        true => row.address.to_string(),
        false => format!("{}/{}", row.pool, row.address),
    };
    let of = |family| {
        let enabled = pools.enabled(family);
        let list = allocated.iter().filter(|row| Family::of(row.address) == family);
        List(enabled.then(|| list.map(|row| shown(row)).collect::<Vec<_>>()))
    };
    let mut text = String::new();
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let used = || allocated.iter().filter(|row| Family::of(row.address) == family).count();
        if let Some(first) = pools.of(family).next() {
            let capacity: u128 = pools.of(family).map(|range| range.capacity()).sum();
            text += &format!("{name}: {}/{capacity} allocated from {}, ", used(), first.cidr());
        } else if let (true, Some(listed)) = (pools.enabled(family), pools.listed()) {
            text += &format!("{name}: {}/{} allocated, ", used(), listed.count(family));
        }
    }
    let allocations = match full {
        true => allocated.iter().map(|row| (shown(row), row.owner.to_string())).collect(),
        false => Default::default(),
    };
    IpamStatus { allocations, ipv4: of(Family::V4), ipv6: of(Family::V6), status: text }
}

struct Random;

impl Randomness for Random {
    fn offset(&mut self) -> u128 {
        rand::random()
    }

    fn uuid(&mut self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}

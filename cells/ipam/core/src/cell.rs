//! The wiring: table, router addresses, expiration, REST.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use api::{DebugSource, Operation, Request, Response, Route, StatusSource};
use hive::prelude::*;
use local_node::{LocalNode, LocalNodeStore};
use statedb::RwTable;

use crate::address::{Address, DEFAULT_POOL};
use crate::error::Error;
use crate::handle::{Ipam, Node};
use crate::range::Family;
use crate::rest;

/// The owner of the router's addresses.
const ROUTER: &str = "router";

/// An address that an endpoint of the previous run has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredAddress {
    /// The address.
    pub address: IpAddr,
    /// The endpoint.
    pub endpoint: u16,
    /// The endpoint's name.
    pub owner: String,
}

/// Addresses that were allocated by the previous run, from the cells that have stored them: they are reserved before the
/// first allocation, that of the router's addresses included. Read once at start.
#[derive(Clone)]
pub struct Restored(Arc<dyn Fn() -> io::Result<Vec<RestoredAddress>> + Send + Sync>);

impl Restored {
    /// Calls `read` at start, on a thread for blocking work.
    ///
    /// # Errors
    /// An error of `read` fails the start: without the addresses in use the allocator would allocate them again.
    pub fn new(read: impl Fn() -> io::Result<Vec<RestoredAddress>> + Send + Sync + 'static) -> Restored {
        Restored(Arc::new(read))
    }
}

/// Provides `Arc<Ipam>` and `Arc<Table<Address>>`, serves the operations under `/ipam`.
pub fn cell() -> Cell {
    module(
        "ipam",
        "Addresses of endpoints",
        [statedb::table::<Address>(), provide(ipam), provide(routes), provide(status), provide(debug)],
    )
}

#[derive(Params)]
struct IpamParams {
    table: Arc<RwTable<Address>>,
    node: Arc<LocalNodeStore>,
    restored: Group<Restored>,
    metrics: Arc<metrics::Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn ipam(p: IpamParams) -> Arc<Ipam> {
    let node = p.node.clone();
    let ipam = Arc::new(Ipam::new((*p.table).clone(), move || {
        node.node().map(|node| facts(&node)).unwrap_or_default()
    }));
    ipam.register(&p.metrics);
    let (allocator, node, restored) = (ipam.clone(), p.node, p.restored);
    p.lifecycle.hook("ipam").on_start(move |_| async move {
        for known in restored.iter() {
            let read = known.0.clone();
            for RestoredAddress { address, endpoint, owner } in hive::blocking(move || read()).await? {
                // An address outside of the current ranges must not fail the start; the restore of its endpoint decides.
                if let Err(error) = allocator.hand_over(address, None, &format!("{owner} [restored]"), endpoint) {
                    tracing::warn!(ip = %address, endpointID = endpoint, %error, "Restored address is not available");
                }
            }
        }
        routers(&allocator, &node)?;
        Ok(())
    }).add();
    let sweeper = ipam.clone();
    p.jobs
        .one_shot("expire", move |cx: JobCx| async move {
            sweeper.sweep(cx.cancelled()).await;
            Ok(())
        })
        .add();
    ipam
}

fn facts(node: &LocalNode) -> Node {
    Node {
        ipv4_range: node.ipv4_alloc_cidr,
        ipv6_range: node.ipv6_alloc_cidr,
        router_ipv4: node.router_ipv4,
        router_ipv6: node.router_ipv6,
    }
}

/// Keeps the router's addresses of the previous run if they are free, else allocates new ones.
fn routers(ipam: &Ipam, store: &LocalNodeStore) -> Result<(), Error> {
    let node = store.node().map(|node| facts(&node)).unwrap_or_default();
    let before = [node.router_ipv4.map(IpAddr::V4), node.router_ipv6.map(IpAddr::V6)];
    for (family, before) in [Family::V4, Family::V6].into_iter().zip(before) {
        if !ipam.ranges().enabled(family) {
            continue;
        }
        let kept = before.filter(|&address| match ipam.allocate_ip(address, ROUTER, DEFAULT_POOL) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(ip = %address, %error, "Router address of the previous run is not available");
                false
            }
        });
        let address = match kept {
            Some(address) => Some(address),
            None => ipam.allocate(ROUTER, Some(family), false)?.first().map(|given| given.address),
        };
        store.update(|node| match address {
            Some(IpAddr::V4(address)) => node.router_ipv4 = Some(address),
            Some(IpAddr::V6(address)) => node.router_ipv6 = Some(address),
            None => {}
        });
    }
    Ok(())
}

fn status(ipam: Arc<Ipam>) -> Member<StatusSource> {
    Member(StatusSource::new("ipam", move |status| status.ipam = Some(ipam.status(true))))
}

fn debug(ipam: Arc<Ipam>) -> Member<DebugSource> {
    Member(DebugSource::new("ipam", move || ipam.describe(Instant::now())))
}

fn routes(ipam: Arc<Ipam>) -> Members<Route> {
    let route = |operation, answer: fn(&Ipam, &Request) -> Response| {
        let ipam = ipam.clone();
        Route::new(operation, move |request| {
            let answer = answer(&ipam, &request);
            async move { answer }
        })
    };
    Members(vec![
        route(Operation::PostIpam, rest::post_ipam),
        route(Operation::PostIpamIP, rest::post_ipam_ip),
        route(Operation::DeleteIpamIP, rest::delete_ipam_ip),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node of six addresses, and a hive that starts on it.
    async fn start(before: Option<&str>, restored: &[&str]) -> (TestHive, Arc<LocalNodeStore>) {
        let before = before.map(|text| text.parse().unwrap());
        let restored: Vec<IpAddr> = restored.iter().map(|text| text.parse().unwrap()).collect();
        let node = local_node::testing::given(LocalNode {
            name: "node".into(),
            ipv4_alloc_cidr: Some("10.0.0.0/29".parse().unwrap()),
            router_ipv4: before,
            ..LocalNode::default()
        });
        let remembered = provide(move || {
            let restored = restored.clone();
            Member(Restored::new(move || {
                let one = |(n, &address): (usize, &IpAddr)| RestoredAddress {
                    address,
                    endpoint: n as u16 + 1,
                    owner: format!("default/p{n}"),
                };
                Ok(restored.iter().enumerate().map(one).collect())
            }))
        });
        let mut hive =
            TestHive::needing::<Ipam>([statedb::cell(), metrics::cell(), node, cell(), remembered]);
        hive.start().await;
        let store = hive.get::<LocalNodeStore>();
        (hive, store)
    }

    #[tokio::test]
    async fn restored_addresses_that_cannot_be_read_fail_the_start() {
        let node = local_node::testing::given(LocalNode {
            name: "node".into(),
            ipv4_alloc_cidr: Some("10.0.0.0/29".parse().unwrap()),
            ..LocalNode::default()
        });
        let unreadable =
            provide(|| Member(Restored::new(|| Err(io::Error::other("read /state: too many open files")))));
        let mut hive =
            TestHive::needing::<Ipam>([statedb::cell(), metrics::cell(), node, cell(), unreadable]);
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains("read /state: too many open files"), "{error}");
    }

    #[tokio::test]
    async fn the_router_gets_what_restored_endpoints_leave() {
        let restored = ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        let (mut hive, store) = start(None, &restored).await;
        assert_eq!(store.node().unwrap().router_ipv4, Some([10, 0, 0, 3].into()));
        let status = hive.get::<Ipam>().status(true);
        assert_eq!(status.allocations["10.0.0.3"], "router");
        assert_eq!(status.allocations["10.0.0.4"], "default/p2 [restored]");
        hive.stop().await;
    }

    #[tokio::test]
    async fn the_routers_address_stays_unless_it_cannot() {
        let (mut hive, store) = start(Some("10.0.0.5"), &[]).await;
        assert_eq!(store.node().unwrap().router_ipv4, Some([10, 0, 0, 5].into()));
        hive.stop().await;
        for (before, restored) in [("192.0.2.1", vec![]), ("10.0.0.5", vec!["10.0.0.5"])] {
            let (mut hive, store) = start(Some(before), &restored).await;
            let router = store.node().unwrap().router_ipv4.unwrap();
            assert_ne!(router.to_string(), before);
            assert_eq!(hive.get::<Ipam>().status(true).allocations[&router.to_string()], "router");
            hive.stop().await;
        }
    }
}

//! The wiring: table, router addresses, expiration, REST.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use api::{DebugSource, Operation, Request, Response, Route, StatusSource};
use api_models::Status;
use hive::Settings;
use hive::prelude::*;
use ipnetwork::IpNetwork;
use local_node::{IpamMode, LocalNode, LocalNodeConfig, LocalNodeStore, LocalRouters, NodePool};
use statedb::RwTable;

use crate::address::{Address, DEFAULT_POOL};
use crate::chooser::Chooser;
use crate::config::IpamConfig;
use crate::handle::{Ipam, Node};
use crate::listed::PoolSource;
use crate::pools::{Pool, Pools};
use crate::range::{Family, PodRange};
use crate::{ingress, rest, router, withdrawn};

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
        [
            config::<IpamConfig>(),
            statedb::table::<Address>(),
            provide(ipam),
            provide(routes),
            provide(status),
            provide(debug),
        ],
    )
}

#[derive(Params)]
struct IpamParams {
    table: Arc<RwTable<Address>>,
    node: Arc<LocalNodeStore>,
    config: Option<Config<LocalNodeConfig>>,
    routers: Option<Arc<LocalRouters>>,
    settings: Arc<Settings>,
    restored: Group<Restored>,
    choosers: Group<Chooser>,
    sources: Group<PoolSource>,
    metrics: Arc<metrics::Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn ipam(p: IpamParams) -> Arc<Ipam> {
    let node = p.node.clone();
    let is_delegated = p.config.is_some_and(|config| config.ipam == IpamMode::DelegatedPlugin);
    let chooser = p.choosers.iter().next().cloned();
    let is_multi = chooser.is_some();
    let source = p.sources.iter().next().cloned();
    let changes = source.as_ref().map(PoolSource::subscribe);
    let ipam = Ipam::new((*p.table).clone(), move || {
        let node = node.node().map(|node| facts(&node, is_multi, source.as_ref())).unwrap_or_default();
        Node { is_delegated, ..node }
    });
    let ipam = Arc::new(ipam.with_chooser(chooser));
    ipam.register(&p.metrics);
    let follower = p.node.clone();
    let routers = p.routers.unwrap_or_default();
    let configured = routers.clone();
    let has_ingress = p.settings.get(ingress::OPTION).is_some_and(|setting| setting.value == "true");
    let (allocator, node, restored) = (ipam.clone(), p.node, p.restored);
    p.lifecycle.hook("ipam").on_start(move |_| async move {
        for known in restored.iter() {
            let read = known.0.clone();
            for RestoredAddress { address, endpoint, owner } in hive::blocking(move || read()).await? {
                // An address that is not available must not fail the start; the restore of its endpoint decides.
                if let Err(error) = allocator.restore(address, &format!("{owner} [restored]"), endpoint) {
                    tracing::warn!(ip = %address, endpointID = endpoint, %error, "Restored address is not available");
                }
            }
        }
        router::ensure(&allocator, &node, &configured)?;
        ingress::ensure(&allocator, &node, has_ingress)?;
        Ok(())
    }).add();
    let (allocator, node) = (ipam.clone(), follower.clone());
    p.jobs
        .one_shot("router", move |cx: JobCx| {
            router::follow(allocator, node, routers, has_ingress, changes, cx)
        })
        .add();
    let (allocator, addresses) = (ipam.clone(), p.table.reader());
    p.jobs
        .one_shot("withdrawn-ranges", move |cx: JobCx| withdrawn::follow(allocator, addresses, follower, cx))
        .add();
    let sweeper = ipam.clone();
    p.jobs
        .one_shot("expire", move |cx: JobCx| async move {
            sweeper.sweep(cx.cancelled()).await;
            Ok(())
        })
        .add();
    ipam
}

fn facts(node: &LocalNode, is_multi: bool, source: Option<&PoolSource>) -> Node {
    Node {
        pools: match source {
            Some(source) => with_waits(source.pools(), node).keeping(&routers(node)),
            None if is_multi => pools(node),
            None => default_pool(node),
        },
        is_delegated: false,
        waits: [(Family::V4, &node.ipv4_cidr_wait), (Family::V6, &node.ipv6_cidr_wait)]
            .into_iter()
            .filter_map(|(family, wait)| Some((family, wait.clone()?)))
            .collect(),
        ipv4_range: node.ipv4_alloc_cidr,
        ipv6_range: node.ipv6_alloc_cidr,
        router_ipv4: node.router_ipv4,
        router_ipv6: node.router_ipv6,
    }
}

/// The pools of multi-pool mode.
fn pools(node: &LocalNode) -> Pools {
    let in_force: Vec<IpNetwork> = node.routed_cidrs().collect();
    let in_force = &in_force[..in_force.len() - node.withdrawn_alloc_cidrs.len()];
    let pool = |pool: &NodePool| {
        let range = |cidr: &IpNetwork| PodRange::with_ends(*cidr, pool.allow_first_ip, pool.allow_last_ip);
        let of =
            |cidrs: &[IpNetwork]| pool.cidrs.iter().filter(|cidr| cidrs.contains(cidr)).map(range).collect();
        let withdrawn = of(&node.withdrawn_alloc_cidrs);
        (pool.name.as_str().into(), Pool { ranges: of(in_force), withdrawn, listed: None })
    };
    let is_on = |family: &Family| match family {
        Family::V4 => node.ipv4_cidr_wait.is_some() || node.ipv4_alloc_cidr.is_some(),
        Family::V6 => node.ipv6_cidr_wait.is_some() || node.ipv6_alloc_cidr.is_some(),
    };
    let families = [Family::V4, Family::V6].into_iter().filter(is_on).collect();
    Pools::new(node.pools.iter().map(pool)).on_request(families)
}

/// The node's ranges as the one pool.
fn default_pool(node: &LocalNode) -> Pools {
    let v4 = node.ipv4_alloc_cidrs().map(IpNetwork::V4);
    let ranges = v4.chain(node.ipv6_alloc_cidrs().map(IpNetwork::V6)).map(PodRange::new).collect();
    let withdrawn = node.withdrawn_alloc_cidrs.iter().copied().map(PodRange::new).collect();
    with_waits(Pools::new([(DEFAULT_POOL.into(), Pool { ranges, withdrawn, listed: None })]), node)
}

/// Adds the families whose range the node does not know yet.
fn with_waits(mut pools: Pools, node: &LocalNode) -> Pools {
    for (family, wait) in [(Family::V4, &node.ipv4_cidr_wait), (Family::V6, &node.ipv6_cidr_wait)] {
        if let Some(reason) = wait {
            pools = pools.waiting(family, reason);
        }
    }
    pools
}

fn routers(node: &LocalNode) -> Vec<IpAddr> {
    let ipv4 = node.router_ipv4.map(IpAddr::V4);
    ipv4.into_iter().chain(node.router_ipv6.map(IpAddr::V6)).collect()
}

/// Without pod ranges the whole agent is not ready: probes of the kubelet fail until the ranges are there.
fn status(ipam: Arc<Ipam>, config: Option<Config<LocalNodeConfig>>) -> Member<StatusSource> {
    let mode = config.map(|config| config.ipam.name()).unwrap_or_default();
    Member(StatusSource::new("ipam", move |status| {
        status.ipam = Some(ipam.status(true));
        if let Some(missing) = router::missing_ranges(&ipam) {
            let msg = format!("Pods get no addresses yet, with ipam={mode}: {missing}");
            status.cilium = Some(Status { state: "Warning".to_owned(), msg });
        }
    }))
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

    /// The option of the cell of Envoy configurations.
    #[derive(hive::Config, Clone, Debug)]
    struct EnvoyConfigs {
        /// Envoy configurations
        #[flag(default = false)]
        #[expect(dead_code, reason = "read by its name")]
        enable_envoy_config: bool,
    }

    #[tokio::test]
    async fn ingress_addresses_are_those_of_the_previous_run_or_new_ones() {
        let run = async |before: Option<[u8; 4]>, taken: Option<[u8; 4]>, is_on: bool| {
            let node = local_node::testing::given(LocalNode {
                name: "node".into(),
                ipv4_alloc_cidr: Some("10.0.0.0/29".parse().unwrap()),
                // Else the router might get that of the ingress: it comes first, and starts anywhere in the range.
                router_ipv4: Some([10, 0, 0, 1].into()),
                ingress_ipv4: before.map(Into::into),
                ..LocalNode::default()
            });
            let restored = provide(move || {
                let known =
                    taken.map(|ip| RestoredAddress { address: ip.into(), endpoint: 1, owner: "a/1".into() });
                Member(Restored::new(move || Ok(known.clone().into_iter().collect())))
            });
            let cells = [statedb::cell(), metrics::cell(), config::<EnvoyConfigs>(), node, cell(), restored];
            let mut hive = TestHive::needing::<Ipam>(cells).set("enable-envoy-config", is_on);
            hive.start().await;
            let address = hive.get::<LocalNodeStore>().node().unwrap().ingress_ipv4;
            let owners = hive.get::<Ipam>().status(true).allocations;
            hive.stop().await;
            let owner = address.and_then(|ip| owners.get(&ip.to_string()).cloned());
            (address.map(|ip| ip.octets()), owner)
        };
        let owned = Some("ingress".to_owned());
        assert_eq!(run(Some([10, 0, 0, 5]), None, true).await, (Some([10, 0, 0, 5]), owned.clone()));
        for (before, taken) in
            [(None, None), (Some([10, 0, 0, 5]), Some([10, 0, 0, 5])), (Some([10, 9, 0, 5]), None)]
        {
            let (address, owner) = run(before, taken, true).await;
            assert!(
                address.is_some() && address != before && owner == owned,
                "{before:?}: {address:?} {owner:?}"
            );
        }
        assert_eq!(run(Some([10, 0, 0, 5]), None, false).await, (None, None), "off: the address is free");
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
    async fn ranges_that_come_later_give_the_router_its_address_and_withdrawn_ones_stay_while_they_are_used()
    {
        let node = local_node::testing::given(LocalNode {
            name: "node".into(),
            ipv4_cidr_wait: Some("CiliumNode node has no spec.ipam.podCIDRs".into()),
            ..LocalNode::default()
        });
        let restored = provide(|| {
            let known = RestoredAddress { address: [10, 0, 0, 1].into(), endpoint: 1, owner: "a/1".into() };
            Member(Restored::new(move || Ok(vec![known.clone()])))
        });
        let mut hive = TestHive::needing::<Ipam>([statedb::cell(), metrics::cell(), node, cell(), restored]);
        hive.start().await;
        let (store, ipam) = (hive.get::<LocalNodeStore>(), hive.get::<Ipam>());
        let waits = "Waits for pod ranges; IPv4: CiliumNode node has no spec.ipam.podCIDRs";
        let health = |job: &str| hive.hive().health().at(&format!("ipam.{job}"));
        hive.until("the wait is reported", || health("job-router").is_some_and(|row| row.message == waits))
            .await;
        let refused = ipam.allocate("a/2", None, false).unwrap_err().to_string();
        assert!(refused.contains("CiliumNode node has no spec.ipam.podCIDRs"), "{refused}");
        assert_eq!(store.node().unwrap().router_ipv4, None);

        store.update(|node| node.assign_ipv4_cidrs(&["10.0.0.0/29".parse().unwrap()]));
        hive.until("the router has an address", || store.node().unwrap().router_ipv4.is_some()).await;
        let router = store.node().unwrap().router_ipv4.unwrap();
        assert_ne!(router, std::net::Ipv4Addr::new(10, 0, 0, 1), "the restored endpoint's");

        store.update(|node| node.assign_ipv4_cidrs(&["10.0.1.0/29".parse().unwrap()]));
        let owners = "10.0.0.0/29: 2 addresses, of a/1 [restored], router";
        hive.until("the range is reported", || {
            health("job-withdrawn-ranges").is_some_and(|row| row.error.contains(owners))
        })
        .await;
        assert_eq!(store.node().unwrap().router_ipv4, Some(router), "pods have it as their gateway");
        let given = ipam.allocate("a/2", None, false).unwrap()[0].address;
        assert!(given.to_string().starts_with("10.0.1."), "{given}");

        store.update(|node| node.assign_ipv4_cidrs(&["10.0.2.0/29".parse().unwrap()]));
        assert!(ipam.release_endpoint([10, 0, 0, 1].into(), 1));
        ipam.release(given, "default").unwrap();
        hive.until("the second range is dropped", || {
            store.node().unwrap().withdrawn_alloc_cidrs == ["10.0.0.0/29".parse().unwrap()]
        })
        .await;
        drop((store, ipam));
        hive.finish().await;
    }

    #[tokio::test]
    async fn a_delegated_plugin_leaves_nothing_to_allocate() {
        let node = local_node::testing::row(LocalNode {
            name: "node".into(),
            ipv4_alloc_cidr: Some("10.0.0.0/29".parse().unwrap()),
            router_ipv4: Some([169, 254, 23, 0].into()),
            ..LocalNode::default()
        });
        let families = config::<maps::FamilyConfig>();
        let cells = [statedb::cell(), metrics::cell(), families, node, cell()];
        let mut hive = TestHive::needing::<Ipam>(cells)
            .set("ipam", "delegated-plugin")
            .set("enable-ipv6", false)
            .set("local-router-ipv4", "169.254.23.0")
            .supply(Arc::new(LocalRouters { ipv4: Some([169, 254, 23, 0].into()), ipv6: None }));
        hive.start().await;
        let ipam = hive.get::<Ipam>();
        let refused = ipam.allocate("a/1", None, true).unwrap_err().to_string();
        assert!(
            refused.starts_with("ipam=delegated-plugin: addresses are allocated by another IPAM plugin"),
            "{refused}"
        );
        assert!(ipam.allocate_ip([10, 0, 0, 1].into(), "a/1", "default").is_err());
        assert!(ipam.status(true).allocations.is_empty());
        drop(ipam);
        hive.stop().await;
    }

    #[tokio::test]
    async fn the_routers_address_of_an_option_is_not_allocated() {
        for (option, owners) in [([169, 254, 23, 0], 0), ([10, 0, 0, 3], 1)] {
            let node = LocalNode {
                name: "node".into(),
                ipv4_alloc_cidr: Some("10.0.0.0/29".parse().unwrap()),
                router_ipv4: Some(option.into()),
                ..LocalNode::default()
            };
            let routers = supply(Arc::new(LocalRouters { ipv4: Some(option.into()), ipv6: None }));
            let node = local_node::testing::given(node);
            let mut hive =
                TestHive::needing::<Ipam>([statedb::cell(), metrics::cell(), node, cell(), routers]);
            hive.start().await;
            assert_eq!(hive.get::<LocalNodeStore>().node().unwrap().router_ipv4, Some(option.into()));
            let is_router = |owner: &&String| *owner == "router";
            assert_eq!(
                hive.get::<Ipam>().status(true).allocations.values().filter(is_router).count(),
                owners
            );
            hive.stop().await;
        }
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

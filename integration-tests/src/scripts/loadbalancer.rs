//! The load balancer on a node called `testnode`: objects from the tracker, node addresses from scripts, real maps as
//! root and otherwise maps in memory that fail now and then.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::loadbalancer::testing::{FakeMaps, Fault};
use ::loadbalancer::{KernelMaps, LbMapsProvider, MapOperations, ServicesConfig};
use ::metrics::Metrics;
use devices::NodeAddress;
use hive::config::{Foreign, Kind};
use hive::prelude::*;
use hive_script::{Condition, Retry};
use k8s_tables::core::{EndpointSlice, Namespace, Pod, Service};
use k8s_tables::{Resource, Selection};
use loadbalancer_healthserver::ListenOn;
use loadbalancer_redirectpolicy::RedirectConfig;
use local_node::{LocalNode, NodeName};
use maps::{FamilyConfig, MapsConfig, Specs};
use statedb::RwTable;

use super::healthserver;

pub(super) const DEFAULTS: &[&str] = &[
    "--lb-retry-backoff-min=10ms",
    "--lb-retry-backoff-max=10ms",
    // Commands that follow each other are taken together, also on a busy machine; Cilium waits for 10 ms.
    "--lb-reflector-wait-time=20ms",
    "--bpf-lb-maglev-table-size=1021",
    "--kube-proxy-replacement=true",
];

/// Options of load balancer cells that are not in this hive: they are accepted without effect.
pub(super) fn foreign() -> impl Iterator<Item = Foreign> {
    let options = [
        ("enable-local-redirect-policy", Kind::Bool),
        ("lb-sock-terminate-all-protos", Kind::Bool),
        ("lrp-address-matcher-cidrs", Kind::Strings),
        ("nodeport-addresses", Kind::Strings),
    ];
    options.into_iter().map(|(name, kind)| Foreign::new(name, kind))
}

pub(super) const RETRY: Retry = Retry { first: Duration::from_millis(20), most: Duration::from_millis(500) };

/// Faults injected into the maps.
#[derive(hive::Config)]
pub(super) struct FaultConfig {
    /// Probability that an operation on maps in memory fails
    #[flag(default = 0.1)]
    pub(super) lb_test_fault_probability: f64,
}

/// An option that scripts may set although no sockets are ended here.
#[derive(hive::Config)]
struct SocketConfig {
    /// End TCP sockets, too
    #[flag(default = false)]
    #[expect(dead_code, reason = "never read")]
    lb_sock_terminate_all_protos: bool,
}

/// Without local redirect policies, but their options may be set.
pub(super) fn cells(maps: Cell) -> Vec<Cell> {
    let mut cells = balancer(maps);
    cells.push(module("redirect-options", "Options of redirect policies", [config::<RedirectConfig>()]));
    cells
}

/// Services beside redirect policies.
pub(super) fn balancer(maps: Cell) -> Vec<Cell> {
    cells_at(maps, healthserver::address())
}

/// With servers for health checks at this address.
pub(super) fn cells_at(maps: Cell, address: IpAddr) -> Vec<Cell> {
    let of_this_node =
        |node: Arc<NodeName>| Selection::all(Pod::KIND).with_fields(&format!("spec.nodeName={}", &**node));
    let tables = [
        k8s_tables::table::<Namespace>(),
        k8s_tables::table::<Service>(),
        k8s_tables::table::<EndpointSlice>(),
        k8s_tables::selected::<Pod, _>(of_this_node),
    ];
    let addresses = [statedb::table::<NodeAddress>(), invoke(|_: Arc<RwTable<NodeAddress>>| ())];
    let options =
        [config::<FamilyConfig>(), config::<MapsConfig>(), config::<FaultConfig>(), config::<SocketConfig>()];
    vec![
        k8s_fake_apiserver::cell(),
        supply(Arc::new(NodeName::new("testnode"))),
        local_node::testing::given(LocalNode { name: "testnode".to_owned(), ..LocalNode::default() }),
        module("k8s-tables", "Tables of cluster objects", tables),
        module("node-address", "The table node-addresses", addresses),
        module("health", "The table", status::table()),
        module("options", "Options of other cells", options),
        ::metrics::cell(),
        ::loadbalancer::control_plane(),
        loadbalancer_healthserver::cell(),
        supply(Arc::new(ListenOn(address))),
        ::loadbalancer::testing::commands(),
        maps,
    ]
}

/// Those of the kernel if they can be had.
pub(super) fn maps() -> Cell {
    if rustix::process::geteuid().is_root() { kernel_maps() } else { fake_maps() }
}

/// Maps without other owners.
pub(super) fn kernel_maps() -> Cell {
    let provider = |config: Config<MapsConfig>,
                    families: Config<FamilyConfig>,
                    services: Config<ServicesConfig>,
                    metrics: Arc<Metrics>| {
        let operations = MapOperations::default();
        operations.register(&metrics);
        // There are as many at once as scripts.
        let config = MapsConfig { preallocate_bpf_maps: false, ..(*config).clone() };
        let families = (*families).clone();
        let specs = Specs::new(config, families.clone()).with_maglev(services.table_size());
        Arc::new(LbMapsProvider::new(move || {
            let maps = KernelMaps::unpinned(&specs, &families)?;
            Ok(Arc::new(maps.with_operations(operations.clone())))
        }))
    };
    module("loadbalancer-maps", "Maps of the kernel", [provide(provider), privileged(true)])
}

/// Maps in memory.
pub(super) fn fake_maps() -> Cell {
    let provider = |faults: Config<FaultConfig>, config: Config<MapsConfig>| {
        let maps = Arc::new(FakeMaps::with_capacity(config.bpf_lb_map_max as usize));
        maps.fail(Fault::Random(faults.lb_test_fault_probability));
        Arc::new(LbMapsProvider::new(move || Ok(maps.clone())))
    };
    module("loadbalancer-maps", "Maps in memory that fail", [provide(provider), privileged(false)])
}

fn privileged(is: bool) -> Cell {
    provide(move || Member(Condition::new("privileged", "the maps are the kernel's", move |_| Ok(is))))
}

//! The cell with components of shaku, in both directions: a shaku module builds the kernel's map, and a shaku component
//! uses values that cells provide.

use std::sync::{Arc, Mutex};

use datapath_abi::{IpcacheKey, RemoteEndpointInfo};
use devices::NodeAddress;
use hive::prelude::*;
use hive_shaku::{Shaku, ShakuDeps, component};
use ipcache::testing::FakeMap;
use ipcache::{Entry, IpcacheMap, IpcacheWriter, Mapping, Source};
use ipnetwork::IpNetwork;
use local_node::{LocalNode, LocalNodeStore};
use reconciler::{OpError, OpResult};
use shaku::{Component, HasComponent, Interface};
use statedb::Table;

/// Operations on the kernel.
trait Journal: Interface {
    fn note(&self, line: String);
    fn lines(&self) -> Vec<String>;
}

#[derive(Component)]
#[shaku(interface = Journal)]
struct InMemory {
    #[shaku(default)]
    lines: Mutex<Vec<String>>,
}

impl Journal for InMemory {
    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

/// The cell's trait is independent of shaku; this one adds shaku's `Interface` to it.
trait KernelMap: IpcacheMap + Interface {}

impl<T: IpcacheMap + Interface> KernelMap for T {}

/// A fake of the kernel's map.
#[derive(Component)]
#[shaku(interface = KernelMap)]
struct JournaledMap {
    #[shaku(inject)]
    journal: Arc<dyn Journal>,
    map: Arc<FakeMap>,
}

impl IpcacheMap for JournaledMap {
    fn write(&self, rows: &[(IpcacheKey, RemoteEndpointInfo)]) -> OpResult {
        let mut identities: Vec<u32> = rows.iter().map(|(_, value)| value.sec_identity).collect();
        identities.sort_unstable();
        self.journal.note(format!("write {identities:?}"));
        self.map.write(rows)
    }

    fn remove(&self, key: &IpcacheKey) -> OpResult {
        self.journal.note("remove".to_owned());
        self.map.remove(key)
    }

    fn rows(&self) -> Result<Vec<(IpcacheKey, RemoteEndpointInfo)>, OpError> {
        self.map.rows()
    }
}

shaku::module! {
    Kernel {
        components = [InMemory, JournaledMap],
        providers = []
    }
}

fn kernel(map: &Arc<FakeMap>) -> Kernel {
    Kernel::builder()
        .with_component_parameters::<JournaledMap>(JournaledMapParameters { map: map.clone() })
        .build()
}

/// The module's component in the form that the cell needs.
fn kernel_map(kernel: &Kernel) -> Arc<dyn IpcacheMap> {
    let map: Arc<dyn KernelMap> = kernel.resolve();
    map
}

/// Names pods to the agent.
trait Announcer: Interface {
    fn announce(&self, pod: IpNetwork, identity: u32) -> u64;
    fn known(&self) -> usize;
}

#[derive(Component, ShakuDeps)]
#[shaku(interface = Announcer)]
struct PodAnnouncer {
    #[shaku(inject)]
    ipcache: Arc<IpcacheWriter>,
    #[shaku(inject)]
    table: Arc<Table<Entry>>,
    #[shaku(inject)]
    clock: Arc<dyn Clock>,
    owner: String,
}

impl Announcer for PodAnnouncer {
    fn announce(&self, pod: IpNetwork, identity: u32) -> u64 {
        let resource = format!("{}/{}", self.owner, self.clock.tick());
        self.ipcache.upsert(pod, Source::Local, &resource, Mapping::identity(identity))
    }

    fn known(&self) -> usize {
        self.table.len(&self.table.snapshot())
    }
}

trait Clock: Interface {
    fn tick(&self) -> u64;
}

#[derive(Component, ShakuDeps)]
#[shaku(interface = Clock)]
struct Counter {
    #[shaku(default)]
    ticks: std::sync::atomic::AtomicU64,
}

impl Clock for Counter {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

#[derive(hive::Config)]
struct AnnouncerConfig {
    /// Owner in the name of which pods are announced
    #[flag(default = "nobody")]
    announcer_owner: String,
}

/// The index of the cell in [`cells`].
const IPCACHE: usize = 4;

/// Cells of the agent, and cells for values that shaku has built.
fn cells() -> Vec<Cell> {
    let node = LocalNode {
        ipv4: Some([10, 99, 0, 1].into()),
        ipv4_alloc_cidr: Some("10.244.0.0/24".parse().unwrap()),
        router_ipv4: Some([10, 244, 0, 9].into()),
        ..LocalNode::default()
    };
    let announcer = |announcer: Shaku<PodAnnouncer>, config: Config<AnnouncerConfig>| {
        announcer.build(PodAnnouncerParameters { owner: config.announcer_owner.clone() })
    };
    vec![
        statedb::cell(),
        local_node::testing::given(node),
        invoke(|_: Arc<LocalNodeStore>| ()),
        module("addresses", "The node's addresses", [statedb::table::<NodeAddress>()]),
        ipcache::cell(),
        module(
            "announcer",
            "Components of shaku",
            [component::<Counter>(), config::<AnnouncerConfig>(), provide(announcer)],
        ),
    ]
}

#[tokio::test]
async fn a_map_of_shaku_serves_the_cell_and_a_component_of_shaku_uses_it() {
    let map = Arc::new(FakeMap::default());
    let pod: IpNetwork = "10.244.0.7/32".parse().unwrap();
    {
        let kernel = kernel(&map);
        let journal: Arc<dyn Journal> = kernel.resolve();
        let mut hive = TestHive::needing::<dyn Announcer>(cells())
            .replace(kernel_map(&kernel))
            .set("announcer-owner", "endpoint");
        hive.start().await;
        let announcer = hive.get::<dyn Announcer>();
        let revision = announcer.announce(pod, 5);
        hive.get::<IpcacheWriter>().applied(revision, &[pod]).await.unwrap();
        assert_eq!(map.identity("10.244.0.7/32"), Some(5));
        hive.until("the host's own addresses are written", || map.identity("10.244.0.9/32") == Some(1)).await;
        assert_eq!(announcer.known(), map.prefixes().len());
        let table = hive.get::<Table<Entry>>();
        let said = table.get(&table.snapshot(), Entry::by_prefix(pod)).unwrap().claims()[0].resource.clone();
        assert_eq!(&*said, "endpoint/0");
        assert!(journal.lines().iter().any(|line| line.contains('5')), "{:?}", journal.lines());
        drop((announcer, table));
        hive.finish().await;
    }
    // The map outlives the hive; the next one finds its entries and removes those without a claim.
    let kernel = kernel(&map);
    let mut hive = TestHive::needing::<dyn Announcer>(cells()).replace(kernel_map(&kernel));
    hive.start().await;
    hive.logged(hive::LogLevel::INFO, "Restored ipcache entries of the previous run count=3");
    hive.until("the pod's row goes", || map.identity("10.244.0.7/32").is_none()).await;
    let journal: Arc<dyn Journal> = kernel.resolve();
    assert!(journal.lines().contains(&"remove".to_owned()), "{:?}", journal.lines());
    hive.assert_no_warning();
    hive.finish().await;
}

#[test]
fn what_a_component_lacks_is_told_with_the_agents_cells() {
    let without_ipcache =
        cells().into_iter().enumerate().filter(|(at, _)| *at != IPCACHE).map(|(_, cell)| cell);
    let cells: Vec<Cell> = without_ipcache.chain([invoke(|_: Arc<dyn Announcer>| ())]).collect();
    let error = hive::validate(cells).unwrap_err().to_string();
    assert!(error.contains("Arc<ipcache::writer::IpcacheWriter>"), "{error}");
    assert!(error.contains("in module `announcer`"), "{error}");
}

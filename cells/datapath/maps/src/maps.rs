//! The node's maps: those the datapath uses as typed handles, the others created so that tools can open them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bpf::{BpfFs, Features, Layout, Map, MapSpec, MapType, ObjectMap, Origin, PerCpuMap, RawMap};
use datapath_abi::{
    DeviceValue, EndpointConfig, EndpointInfo, EndpointKey, IpcacheKey, MasqueradeAddresses, MetricsKey,
    MetricsValue, PolicyStatsKey, PolicyStatsValue, RemoteEndpointInfo,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::{FamilyConfig, MapsConfig};
use crate::drift_checks::DriftChecks;
use crate::error::{Error, Result};
use crate::events::Journals;
use crate::schema;
use crate::specs::{MASQUERADE_MAP, Specs};

/// Number of threads that load programs at the same time, where memory is not limited.
pub(crate) const LOAD_THREADS: usize = 2;

/// The maps of a node under one bpf file system.
///
/// Created from the options without system calls; [`Maps::open`] opens the maps of the datapath (the start hook of
/// the cell does it, before the hooks of all cells that take `Arc<Maps>`), [`Maps::open_rest`] the remaining ones.
#[derive(Debug)]
pub struct Maps {
    specs: Specs,
    load_threads: usize,
    opened: OnceLock<Opened>,
    /// Maps that are opened one by one. A second thread waits for the first, as opening can replace a pin.
    pub(crate) others: Mutex<BTreeMap<String, Arc<Mutex<Option<RawMap>>>>>,
    forwarding: watch::Sender<bool>,
    pub(crate) comparisons: Arc<DriftChecks>,
    pub(crate) journals: Journals,
}

#[derive(Debug)]
struct Opened {
    features: Features,
    fs: BpfFs,
    lxc: Map<EndpointKey, EndpointInfo>,
    ipcache: Map<IpcacheKey, RemoteEndpointInfo>,
    metrics: PerCpuMap<MetricsKey, MetricsValue>,
    devices: Map<u32, DeviceValue>,
    runtime_config: Map<u32, u64>,
    events: RawMap,
    call_policy: ObjectMap,
    ep_config: Map<u32, EndpointConfig>,
    ep_ids: Map<u32, u32>,
    ep_by_ifindex: Map<u32, u32>,
    ep_by_ifindex_hi: Map<u32, u32>,
    ep_policies: ObjectMap,
    schema: RawMap,
}

/// Mounts the bpf file system of option `bpf-root` if there is none, which needs `CAP_SYS_ADMIN`: for programs that
/// drop it before they open the maps.
pub fn mount(root: &str) -> Result<()> {
    let mounted = bpf::is_bpffs(Path::new(root));
    if !mounted {
        BpfFs::open_or_mount(root)?;
    }
    Ok(())
}

impl Maps {
    /// Creates the maps of these options, sized for the memory and CPUs of this machine.
    pub fn new(config: MapsConfig, families: FamilyConfig) -> Maps {
        Maps::of(Specs::new(config, families))
    }

    /// Creates the maps of these specs.
    pub fn of(specs: Specs) -> Maps {
        let forwarding = watch::Sender::new(false);
        let (opened, others, comparisons, journals) = Default::default();
        Maps { specs, load_threads: LOAD_THREADS, opened, others, forwarding, comparisons, journals }
    }

    /// Sets the number of threads on which programs that use these maps are loaded.
    pub(crate) fn with_load_threads(self, load_threads: usize) -> Maps {
        Maps { load_threads, ..self }
    }

    /// Returns the number of threads on which programs that use these maps are to be loaded: the kernel verifies on the
    /// loading thread, and in memory charged to the agent, so a small limit of memory allows only one.
    pub fn load_threads(&self) -> usize {
        self.load_threads
    }

    /// Returns the specs of the maps.
    pub fn specs(&self) -> &Specs {
        &self.specs
    }

    /// Returns the spec of a map by its name, as [`Specs::find`].
    pub fn spec(&self, name: &str) -> Option<MapSpec> {
        self.specs.find(name)
    }

    /// Returns the spec of an endpoint's policy map.
    pub fn policy_spec(&self, endpoint: u16) -> MapSpec {
        self.specs.policy(endpoint)
    }

    /// Opens or creates the maps that the datapath uses, after probing the kernel for the required features; mounts the
    /// bpf file system if there is none. A second call does nothing.
    pub fn open(&self) -> Result<()> {
        if self.opened.get().is_some() {
            return Ok(());
        }
        self.specs.config().validate()?;
        let features = bpf::probe()?;
        let fs = BpfFs::open_or_mount(&self.specs.config().bpf_root)?;
        schema::check(&fs)?;
        self.check(&fs)?;
        self.remake_own(&fs)?;
        let open = |name: &str| self.open_named(&fs, name);
        let opened = Opened {
            lxc: Map::new(open("cilium_lxc")?)?,
            ipcache: Map::new(open("cilium_ipcache_v2")?)?,
            metrics: PerCpuMap::new(open("cilium_metrics")?)?,
            devices: Map::new(open("cilium_devices")?)?,
            runtime_config: Map::new(open("cilium_runtime_config")?)?,
            events: open("cilium_events")?,
            call_policy: ObjectMap::new(open("cilium_call_policy")?)?,
            ep_config: Map::new(open("ep_config")?)?,
            ep_ids: Map::new(open("ep_ids")?)?,
            ep_by_ifindex: Map::new(open("ep_by_ifindex")?)?,
            ep_by_ifindex_hi: Map::new(open("ep_by_ifindex_hi")?)?,
            ep_policies: ObjectMap::new(open("ep_policies")?)?,
            schema: open("ep_schema")?,
            features,
            fs,
        };
        schema::record(&opened.schema)?;
        // Two callers at once open the same pins; the first one's handles stay.
        let _ = self.opened.set(opened);
        Ok(())
    }

    /// Reports that packets are forwarded: maps that only tools use need not wait any more.
    pub fn set_forwarding(&self) {
        self.forwarding.send_replace(true);
    }

    /// Whether packets are forwarded.
    pub(crate) fn is_forwarding(&self) -> bool {
        *self.forwarding.borrow()
    }

    /// Resolves when packets are forwarded.
    pub async fn forwarding(&self) {
        // An error means that the maps were dropped: no caller waits then.
        drop(self.forwarding.subscribe().wait_for(|forwarding| *forwarding).await);
    }

    /// Creates the maps that tools open but the datapath does not use yet, `threads` at a time. The large LRU maps take
    /// 84 ms on one thread, so this runs while the API serves already. Returns the number of maps.
    pub fn open_rest(&self, threads: usize) -> Result<usize> {
        let specs = self.specs.of_node();
        let fs = self.fs();
        let next = AtomicUsize::new(0);
        let worker = || -> Result<()> {
            while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.open_other(fs, spec)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
            let mut result = worker();
            for other in others {
                result = result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            result
        })?;
        Ok(specs.len())
    }

    /// Returns the map of that name without its types, opened or created at the first call; `None` if this node has no
    /// such map. Large ones take up to 30 ms to create.
    pub fn shared(&self, name: &str) -> Result<Option<RawMap>> {
        if let Some(map) = self.raw(name) {
            return Ok(Some(map.try_clone()?));
        }
        let spec = self.specs.of_node().into_iter().find(|spec| spec.name == name);
        spec.map(|spec| self.open_other(self.fs(), &spec)).transpose()
    }

    fn open_other(&self, fs: &BpfFs, spec: &MapSpec) -> Result<RawMap> {
        let slot = {
            let mut others = self.others.lock();
            others.entry(spec.name.clone().into_owned()).or_default().clone()
        };
        let mut slot = slot.lock();
        match &*slot {
            Some(map) => Ok(map.try_clone()?),
            None => Ok(slot.insert(self.observed(self.open_spec(fs, spec)?)).try_clone()?),
        }
    }

    /// Compares every pin with the desired map, before the first is changed.
    fn check(&self, fs: &BpfFs) -> Result<()> {
        let mut differences = Vec::new();
        for spec in self.specs.of_node() {
            if !is_opened_as_is(&spec.name) {
                differences.extend(fs.check(&spec)?);
            }
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::Differ { differences }),
        }
    }

    /// Replaces Apiary's own maps by empty ones if their layouts differ from those of this build: no other program
    /// reads them, and the endpoints are restored from the shared maps. The list of ids is replaced first: without ids,
    /// the next start refills the others if this one is killed in between.
    fn remake_own(&self, fs: &BpfFs) -> Result<()> {
        const IDS_FIRST: [&str; 5] =
            ["ep_ids", "ep_config", "ep_by_ifindex", "ep_by_ifindex_hi", "ep_policies"];
        let specs = IDS_FIRST.map(|name| self.specs.own(name));
        let mut other = None;
        for spec in &specs {
            other = other.or(fs.check(spec)?);
        }
        let Some(reason) = other else { return Ok(()) };
        tracing::info!(%reason, "Own maps have another layout than those of the previous agent: they are created again");
        for spec in &specs {
            fs.remake(spec)?;
        }
        Ok(())
    }

    fn open_named(&self, fs: &BpfFs, name: &str) -> Result<RawMap> {
        let spec = self.spec(name).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        Ok(self.observed(self.open_spec(fs, &spec)?))
    }

    /// Returns the map, with its writes in its journal if it has one.
    fn observed(&self, map: RawMap) -> RawMap {
        match self.journals.of(map.name()) {
            Some(journal) => map.observed_by(journal.clone()),
            None => map,
        }
    }

    fn open_spec(&self, fs: &BpfFs, spec: &MapSpec) -> Result<RawMap> {
        let path = fs.map(&spec.name);
        if is_opened_as_is(&spec.name)
            && let Ok(map) = RawMap::open(&path)
            && (map.layout().key_size, map.layout().value_size)
                == (spec.layout.key_size, spec.layout.value_size)
        {
            return Ok(map);
        }
        let (map, origin) = fs.open_or_create(spec)?;
        if let (Origin::Reused, MapType::HashOfMaps, Some(inner)) =
            (origin, spec.layout.map_type, &spec.inner)
        {
            return match inner_layout(&map)? {
                Some(found) if found == *inner => Ok(map),
                found => {
                    if let Some(found) = found {
                        let size = found.value_size;
                        tracing::info!(mapName = %spec.name, size, "Map has inner maps of another size and is created again");
                    }
                    Ok(fs.remake(spec)?)
                }
            };
        }
        match origin {
            Origin::Migrated { entries } => {
                tracing::info!(mapName = %spec.name, entries, "Map has a new size or flags, its entries were copied");
            }
            Origin::Moving { entries } => {
                tracing::info!(mapName = %spec.name, entries, "Map has a new size or flags, its entries go with the programs");
            }
            Origin::Kept { entries } => {
                let (size, wanted) = (map.layout().max_entries, spec.layout.max_entries);
                tracing::warn!(
                    mapName = %spec.name, entries, size, wanted,
                    "Map keeps its size: it holds more entries than fit into the size wanted, and connections live by them"
                );
            }
            Origin::Replaced => {
                tracing::info!(mapName = %spec.name, "Map has a new size or flags and is empty")
            }
            Origin::Created | Origin::Reused => {}
        }
        Ok(map)
    }

    /// Returns the share of the machine's memory that sizes maps (`bpf-map-dynamic-size-ratio`).
    pub fn size_ratio(&self) -> f64 {
        self.specs.config().bpf_map_dynamic_size_ratio
    }

    /// Returns the layouts of the maps that are pinned in the maps' folder, with the kernel's ids; maps that cannot be
    /// opened are omitted.
    pub fn pinned(&self) -> Result<BTreeMap<String, (u32, Layout)>> {
        let mut maps = BTreeMap::new();
        for name in self.fs().map_names()? {
            if let Ok(info) = RawMap::open(&self.fs().map(&name)).and_then(|map| map.info()) {
                maps.insert(name, (info.id, info.layout));
            }
        }
        Ok(maps)
    }

    /// Whether [`Maps::open`] has opened the maps that the datapath uses.
    pub fn is_open(&self) -> bool {
        self.opened.get().is_some()
    }

    fn opened(&self) -> &Opened {
        self.opened
            .get()
            .expect("maps are opened by the start hook of the cell maps; a user's hooks run later")
    }

    /// Returns the optional features of this kernel.
    ///
    /// # Panics
    /// Like all accessors, before [`Maps::open`].
    pub fn features(&self) -> Features {
        self.opened().features
    }

    /// Returns the bpf file system.
    ///
    /// # Panics
    /// Like all accessors, before [`Maps::open`].
    pub fn fs(&self) -> &BpfFs {
        &self.opened().fs
    }

    /// Returns the pin of a map.
    pub fn path(&self, name: &str) -> PathBuf {
        self.fs().map(name)
    }

    /// Returns the map of that name without its types, if it is one that [`Maps::open`] opens.
    pub fn raw(&self, name: &str) -> Option<&RawMap> {
        let opened = self.opened();
        Some(match name {
            "cilium_lxc" => opened.lxc.raw(),
            "cilium_ipcache_v2" => opened.ipcache.raw(),
            "cilium_metrics" => opened.metrics.raw(),
            "cilium_devices" => opened.devices.raw(),
            "cilium_runtime_config" => opened.runtime_config.raw(),
            "cilium_events" => &opened.events,
            "cilium_call_policy" => opened.call_policy.raw(),
            "ep_config" => opened.ep_config.raw(),
            "ep_ids" => opened.ep_ids.raw(),
            "ep_schema" => &opened.schema,
            "ep_by_ifindex" => opened.ep_by_ifindex.raw(),
            "ep_by_ifindex_hi" => opened.ep_by_ifindex_hi.raw(),
            "ep_policies" => opened.ep_policies.raw(),
            _ => return None,
        })
    }

    /// Returns `cilium_lxc`: local addresses.
    pub fn lxc(&self) -> &Map<EndpointKey, EndpointInfo> {
        &self.opened().lxc
    }

    /// Returns `cilium_ipcache_v2`: identities of addresses.
    pub fn ipcache(&self) -> &Map<IpcacheKey, RemoteEndpointInfo> {
        &self.opened().ipcache
    }

    /// Returns `cilium_metrics`: packets and bytes by reason.
    pub fn metrics(&self) -> &PerCpuMap<MetricsKey, MetricsValue> {
        &self.opened().metrics
    }

    /// Returns `cilium_policystats`: packets and bytes by policy entry. Opened at the first call: creating it takes
    /// longer than all maps that forwarding needs, as each of its 65536 entries has memory for each CPU.
    pub fn policy_stats(&self) -> Result<PerCpuMap<PolicyStatsKey, PolicyStatsValue>> {
        let name = "cilium_policystats";
        let map = self.shared(name)?.ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        Ok(PerCpuMap::new(map)?)
    }

    /// Returns `ep_masquerade`: addresses of packets that leave the cluster, by the device's index; `None` if the programs
    /// translate no sources.
    pub fn masquerade(&self) -> Result<Option<Map<u32, MasqueradeAddresses>>> {
        Ok(self.shared(MASQUERADE_MAP)?.map(Map::new).transpose()?)
    }

    /// Returns `cilium_devices`: the node's devices by index.
    pub fn devices(&self) -> &Map<u32, DeviceValue> {
        &self.opened().devices
    }

    /// Returns `cilium_runtime_config`: the clock's offset and the agent liveness timestamp.
    pub fn runtime_config(&self) -> &Map<u32, u64> {
        &self.opened().runtime_config
    }

    /// Returns `cilium_events`: the perf rings of monitors.
    pub fn events(&self) -> &RawMap {
        &self.opened().events
    }

    /// Returns `cilium_call_policy`: policy programs by endpoint, for programs of other loaders.
    pub fn call_policy(&self) -> &ObjectMap {
        &self.opened().call_policy
    }

    /// Returns `ep_config`: settings by endpoint id.
    pub fn ep_config(&self) -> &Map<u32, EndpointConfig> {
        &self.opened().ep_config
    }

    /// Returns `ep_ids`: ids of endpoints that may have a settings entry, with their policy slot. Programs do not know
    /// it; it saves a scan of all 65536 settings entries at a start (10 ms).
    pub fn ep_ids(&self) -> &Map<u32, u32> {
        &self.opened().ep_ids
    }

    /// Returns `ep_by_ifindex`: endpoint ids by interface index below 65536.
    pub fn ep_by_ifindex(&self) -> &Map<u32, u32> {
        &self.opened().ep_by_ifindex
    }

    /// Returns `ep_by_ifindex_hi`: endpoint ids by larger interface indexes.
    pub fn ep_by_ifindex_hi(&self) -> &Map<u32, u32> {
        &self.opened().ep_by_ifindex_hi
    }

    /// Returns `ep_policies`: policy maps by slot.
    pub fn ep_policies(&self) -> &ObjectMap {
        &self.opened().ep_policies
    }
}

/// Returns the layout of the maps in a map of maps; `None` if it is empty. The kernel reports it of maps that are there
/// only, and refuses those of another layout.
fn inner_layout(map: &RawMap) -> Result<Option<Layout>> {
    let (_, ids) = map.entries()?;
    let Some(id) = ids.first_chunk() else { return Ok(None) };
    Ok(Some(RawMap::open_id(u32::from_ne_bytes(*id))?.layout()))
}

/// Whether the pin of a map is used independent of its size, as in Cilium: keeping its entries is more important than
/// the configured size.
pub fn is_opened_as_is(name: &str) -> bool {
    matches!(name, "cilium_node_map_v2" | "cilium_l2_responder_v4" | "cilium_l2_responder_v6")
}

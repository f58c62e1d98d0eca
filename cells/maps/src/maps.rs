//! The node's maps: those the datapath uses as typed handles, the others created so that tools can open them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bpf::{
    BpfFs, Features, Layout, Map, MapFlags, MapSpec, MapType, ObjectMap, Origin, PerCpuMap, RawMap,
    possible_cpus,
};
use datapath_abi::{
    DeviceValue, EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, IpcacheKey, MetricsKey,
    MetricsValue, PolicyStatsKey, PolicyStatsValue, RemoteEndpointInfo,
};
use tokio::sync::watch;

use crate::catalog::{self, CATALOG, Existence, FlagRule, MapDef};
use crate::config::{FamilyConfig, MapsConfig};
use crate::error::{Error, Result};
use crate::footprint::footprint;
use crate::schema;
use crate::size::{Sizes, memory_total};

/// How the pins of policy maps begin; what follows is the endpoint's id in five digits.
pub const POLICY_PREFIX: &str = "cilium_policy_v2_";

/// Names of our own maps, which hold what the shared programs know of endpoints.
pub const OWN_MAPS: [&str; 6] =
    ["ep_config", "ep_ids", "ep_by_ifindex", "ep_by_ifindex_hi", "ep_policies", "ep_schema"];

/// The maps of a node under one bpf file system.
///
/// Made from the options without touching the kernel; [`Maps::open`] opens what the datapath uses (the start hook of
/// the cell does it, before the hooks of all cells that take `Arc<Maps>`), [`Maps::open_rest`] the remaining ones.
#[derive(Debug)]
pub struct Maps {
    config: MapsConfig,
    families: FamilyConfig,
    sizes: Sizes,
    fit: Option<Fit>,
    opened: OnceLock<Opened>,
    /// Maps opened one by one. Who comes second waits: opening can replace a pin.
    pub(crate) others: Mutex<BTreeMap<String, Arc<Mutex<Option<RawMap>>>>>,
    forwarding: watch::Sender<bool>,
}

/// How maps were made to fit into the memory that the agent may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes that they may take.
    pub budget: u64,
    /// Bytes that they would take as the options want them.
    pub wanted: u64,
    /// Bytes that they take.
    pub taken: u64,
    /// What the sizes that no option sets were divided by.
    pub divisor: u32,
}

impl Fit {
    /// Whether they fit.
    pub fn fits(&self) -> bool {
        self.taken <= self.budget
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Fit { budget, wanted, taken, divisor } = *self;
        write!(f, "{:.1} MiB of kernel memory, {:.1} may be used", mib(taken), mib(budget))?;
        if wanted > taken {
            let wanted = mib(wanted);
            write!(f, ", {wanted:.1} are wanted: rows are not allocated ahead, sizes are 1/{divisor}")?;
        }
        Ok(())
    }
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

impl Maps {
    /// The maps as these options want them, on a machine with the memory and CPUs of this one.
    pub fn new(config: MapsConfig, families: FamilyConfig) -> Maps {
        let memory = memory_total(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let sizes = Sizes::new(&config, memory, possible_cpus());
        let forwarding = watch::Sender::new(false);
        let (opened, others) = (OnceLock::new(), Mutex::default());
        Maps { config, families, sizes, fit: None, opened, others, forwarding }
    }

    /// The same within so many bytes of kernel memory. If all maps do not fit, rows are not allocated ahead where the
    /// kernel leaves the choice; if that is not enough, sizes that no option sets are halved, all alike, until they fit.
    pub fn within(config: MapsConfig, families: FamilyConfig, budget: u64) -> Maps {
        let mut maps = Maps::new(config, families);
        let wanted = maps.footprint();
        if wanted > budget {
            maps.config.preallocate_bpf_maps = false;
            while maps.footprint() > budget {
                let Some(half) = maps.sizes.half() else { break };
                maps.sizes = half;
            }
        }
        let (taken, divisor) = (maps.footprint(), maps.sizes.divisor());
        maps.fit = Some(Fit { budget, wanted, taken, divisor });
        maps
    }

    /// How the maps were made to fit, if they had to.
    pub fn fit(&self) -> Option<&Fit> {
        self.fit.as_ref()
    }

    /// Kernel memory of all maps of the node before they have rows, in bytes.
    pub fn footprint(&self) -> u64 {
        let cpus = possible_cpus() as u64;
        let own = OWN_MAPS.into_iter().map(|name| self.own_spec(name));
        self.node_specs().into_iter().chain(own).map(|spec| footprint(&spec.layout, cpus)).sum()
    }

    /// Opens or creates the maps that the datapath uses, after asking the kernel for the features it needs; mounts the
    /// bpf file system if there is none. A second call does nothing.
    pub fn open(&self) -> Result<()> {
        if self.opened.get().is_some() {
            return Ok(());
        }
        self.config.validate()?;
        let features = bpf::probe()?;
        let fs = BpfFs::open_or_mount(&self.config.bpf_root)?;
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

    /// Says that packets are forwarded: what only tools want need not wait any more.
    pub fn set_forwarding(&self) {
        self.forwarding.send_replace(true);
    }

    /// Resolves when packets are forwarded.
    pub async fn forwarding(&self) {
        // An error means that the maps are gone: nobody waits then.
        drop(self.forwarding.subscribe().wait_for(|forwarding| *forwarding).await);
    }

    /// Creates the maps that tools open but the datapath does not use yet, `threads` at a time. The large LRU maps take
    /// 84 ms on one thread, so this runs while the API serves already. Gives the number of maps.
    pub fn open_rest(&self, threads: usize) -> Result<usize> {
        let specs = self.node_specs();
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

    /// The map of that name without its types, opened or created when first asked for; `None` if this node has no such
    /// map. Large ones take up to 30 ms to create.
    pub fn shared(&self, name: &str) -> Result<Option<RawMap>> {
        if let Some(map) = self.raw(name) {
            return Ok(Some(map.try_clone()?));
        }
        let spec = self.node_specs().into_iter().find(|spec| spec.name == name);
        spec.map(|spec| self.open_other(self.fs(), &spec)).transpose()
    }

    fn open_other(&self, fs: &BpfFs, spec: &MapSpec) -> Result<RawMap> {
        let slot = {
            let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            others.entry(spec.name.clone().into_owned()).or_default().clone()
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(map) => Ok(map.try_clone()?),
            None => Ok(slot.insert(self.open_spec(fs, spec)?).try_clone()?),
        }
    }

    /// Compares every pin with the map that this agent wants, before the first is changed.
    fn check(&self, fs: &BpfFs) -> Result<()> {
        let mut differences = Vec::new();
        for spec in self.node_specs() {
            if !opened_as_it_is(&spec.name) {
                differences.extend(fs.check(&spec)?);
            }
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::Differ { differences }),
        }
    }

    /// Our own maps have no form that others know, and a build may give them another: then all are made anew, empty, and
    /// the endpoints come from the shared ones. The list of ids goes first: without it the next start fills the others
    /// again, should this one be killed.
    fn remake_own(&self, fs: &BpfFs) -> Result<()> {
        const IDS_FIRST: [&str; 5] =
            ["ep_ids", "ep_config", "ep_by_ifindex", "ep_by_ifindex_hi", "ep_policies"];
        let specs = IDS_FIRST.map(|name| self.own_spec(name));
        let mut other = None;
        for spec in &specs {
            other = other.or(fs.check(spec)?);
        }
        let Some(reason) = other else { return Ok(()) };
        tracing::info!(%reason, "Our own maps have another form than those of the agent before: they are made anew");
        for spec in &specs {
            fs.remake(spec)?;
        }
        Ok(())
    }

    fn open_named(&self, fs: &BpfFs, name: &str) -> Result<RawMap> {
        let spec = self.spec(name).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        self.open_spec(fs, &spec)
    }

    fn open_spec(&self, fs: &BpfFs, spec: &MapSpec) -> Result<RawMap> {
        let path = fs.map(&spec.name);
        if opened_as_it_is(&spec.name)
            && let Ok(map) = RawMap::open(&path)
            && (map.layout().key_size, map.layout().value_size)
                == (spec.layout.key_size, spec.layout.value_size)
        {
            return Ok(map);
        }
        let (map, origin) = fs.open_or_create(spec)?;
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

    /// The spec of a map by its name, with this node's size and flags: a name of the catalog, of a policy map of an
    /// endpoint, or of our own.
    pub fn spec(&self, name: &str) -> Option<MapSpec> {
        if OWN_MAPS.contains(&name) {
            return Some(self.own_spec(name));
        }
        if let Some(id) = name.strip_prefix(POLICY_PREFIX) {
            return id.parse().ok().map(|id| self.policy_spec(id));
        }
        catalog::find(name).map(|def| self.spec_of(def))
    }

    /// The policy map of an endpoint.
    pub fn policy_spec(&self, endpoint: u16) -> MapSpec {
        self.policy_layout().named(policy_name(endpoint))
    }

    fn policy_layout(&self) -> MapSpec {
        let entries = self.sizes.entries(crate::size::Size::Policy, false);
        MapSpec::new("cilium_policy_v2", MapType::LpmTrie, 12, 12, entries, MapFlags(0x81))
    }

    fn spec_of(&self, def: &MapDef) -> MapSpec {
        let flags = match def.flags {
            FlagRule::Always(flags) => flags,
            FlagRule::Prealloc(flags) if self.config.preallocate_bpf_maps => flags,
            FlagRule::Prealloc(flags) => flags | MapFlags::NO_PREALLOC.0,
            FlagRule::Lru if self.config.bpf_distributed_lru => MapFlags::NO_COMMON_LRU.0,
            FlagRule::Lru => 0,
        };
        let entries = self.sizes.entries(def.size, def.flags == FlagRule::Lru);
        MapSpec::new(def.name, def.map_type, def.key_size, def.value_size, entries, MapFlags(flags))
    }

    fn own_spec(&self, name: &str) -> MapSpec {
        let entries = EP_CONFIG_ENTRIES;
        let row = size_of::<EndpointConfig>() as u32;
        let read_only = MapFlags::READ_ONLY_PROG;
        match name {
            "ep_config" => MapSpec::new("ep_config", MapType::Array, 4, row, entries, read_only),
            "ep_by_ifindex" => MapSpec::new("ep_by_ifindex", MapType::Array, 4, 4, entries, read_only),
            "ep_schema" => schema::SPEC,
            "ep_ids" => MapSpec::new("ep_ids", MapType::Hash, 4, 4, entries, MapFlags::NO_PREALLOC),
            "ep_by_ifindex_hi" => {
                MapSpec::new("ep_by_ifindex_hi", MapType::Hash, 4, 4, entries, MapFlags(0x81))
            }
            // The kernel refuses BPF_F_RDONLY_PROG on maps of maps of this kind.
            _ => MapSpec::new("ep_policies", MapType::ArrayOfMaps, 4, 4, entries, MapFlags::NONE)
                .with_inner(self.policy_layout().layout),
        }
    }

    /// All maps that exist on this node by name, but for those of endpoints and of loaded programs.
    pub fn node_specs(&self) -> Vec<MapSpec> {
        let wanted = |def: &&MapDef| match def.existence {
            Existence::Always => true,
            Existence::Family4 => self.families.enable_ipv4,
            Existence::Family6 => self.families.enable_ipv6,
            Existence::Fragments4 => self.families.enable_ipv4 && self.config.enable_ipv4_fragment_tracking,
            Existence::Fragments6 => self.families.enable_ipv6 && self.config.enable_ipv6_fragment_tracking,
            Existence::Feature(_) | Existence::PerEndpoint | Existence::PerObject => false,
        };
        CATALOG.iter().filter(wanted).map(|def| self.spec_of(def)).collect()
    }

    /// The share of the machine's memory that sizes maps (`bpf-map-dynamic-size-ratio`).
    pub fn size_ratio(&self) -> f64 {
        self.config.bpf_map_dynamic_size_ratio
    }

    /// Layouts of what is pinned in the maps' folder, with the kernel's numbers; what cannot be opened is left out.
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

    /// What this kernel has beyond what the datapath must have.
    ///
    /// # Panics
    /// Like all accessors, before [`Maps::open`].
    pub fn features(&self) -> Features {
        self.opened().features
    }

    /// The bpf file system.
    ///
    /// # Panics
    /// Like all accessors, before [`Maps::open`].
    pub fn fs(&self) -> &BpfFs {
        &self.opened().fs
    }

    /// The pin of a map.
    pub fn path(&self, name: &str) -> PathBuf {
        self.fs().map(name)
    }

    /// The map of that name without its types, if it is one that [`Maps::open`] opens.
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

    /// `cilium_lxc`: local addresses.
    pub fn lxc(&self) -> &Map<EndpointKey, EndpointInfo> {
        &self.opened().lxc
    }

    /// `cilium_ipcache_v2`: identities of addresses.
    pub fn ipcache(&self) -> &Map<IpcacheKey, RemoteEndpointInfo> {
        &self.opened().ipcache
    }

    /// `cilium_metrics`: packets and bytes by reason.
    pub fn metrics(&self) -> &PerCpuMap<MetricsKey, MetricsValue> {
        &self.opened().metrics
    }

    /// `cilium_policystats`: packets and bytes by policy row. Opened when asked for: creating it takes longer than all
    /// maps that forwarding needs, as each of its 65536 rows has memory for each CPU.
    pub fn policy_stats(&self) -> Result<PerCpuMap<PolicyStatsKey, PolicyStatsValue>> {
        let name = "cilium_policystats";
        let map = self.shared(name)?.ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        Ok(PerCpuMap::new(map)?)
    }

    /// `cilium_devices`: the node's devices by number.
    pub fn devices(&self) -> &Map<u32, DeviceValue> {
        &self.opened().devices
    }

    /// `cilium_runtime_config`: the clock's offset and the sign of life.
    pub fn runtime_config(&self) -> &Map<u32, u64> {
        &self.opened().runtime_config
    }

    /// `cilium_events`: the perf rings of monitors.
    pub fn events(&self) -> &RawMap {
        &self.opened().events
    }

    /// `cilium_call_policy`: policy programs by endpoint, for programs of another origin.
    pub fn call_policy(&self) -> &ObjectMap {
        &self.opened().call_policy
    }

    /// `ep_config`: settings by endpoint id.
    pub fn ep_config(&self) -> &Map<u32, EndpointConfig> {
        &self.opened().ep_config
    }

    /// `ep_ids`: ids of endpoints that may have a settings row, with their policy slot. Programs do not know it; it spares
    /// a start to walk through all 65536 settings rows (10 ms).
    pub fn ep_ids(&self) -> &Map<u32, u32> {
        &self.opened().ep_ids
    }

    /// `ep_by_ifindex`: endpoint ids by interface number below 65536.
    pub fn ep_by_ifindex(&self) -> &Map<u32, u32> {
        &self.opened().ep_by_ifindex
    }

    /// `ep_by_ifindex_hi`: endpoint ids by larger interface numbers.
    pub fn ep_by_ifindex_hi(&self) -> &Map<u32, u32> {
        &self.opened().ep_by_ifindex_hi
    }

    /// `ep_policies`: policy maps by slot.
    pub fn ep_policies(&self) -> &ObjectMap {
        &self.opened().ep_policies
    }
}

/// Whether the pin of a map is used whatever its size, as Cilium does: what it holds is worth more than the size wished
/// for.
fn opened_as_it_is(name: &str) -> bool {
    matches!(name, "cilium_node_map_v2" | "cilium_l2_responder_v4" | "cilium_l2_responder_v6")
}

/// The name of an endpoint's policy map.
pub fn policy_name(endpoint: u16) -> String {
    format!("{POLICY_PREFIX}{endpoint:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_follow_the_options() {
        let maps = |preallocate_bpf_maps, bpf_distributed_lru| {
            let config = MapsConfig { preallocate_bpf_maps, bpf_distributed_lru, ..MapsConfig::default() };
            Maps::new(config, FamilyConfig::default())
        };
        let flags = |maps: &Maps, name| maps.spec(name).unwrap().layout.flags.0;
        let (on, off) = (maps(true, false), maps(false, true));
        assert_eq!((flags(&on, "cilium_lxc"), flags(&off, "cilium_lxc")), (0x80, 0x81));
        assert_eq!((flags(&on, "cilium_lb4_backends_v3"), flags(&off, "cilium_lb4_backends_v3")), (0, 1));
        assert_eq!((flags(&on, "cilium_ct4_global"), flags(&off, "cilium_ct4_global")), (0, 2));
        assert_eq!(flags(&on, "cilium_devices"), 1);
    }

    #[test]
    fn families_decide_which_maps_exist() {
        let names = |enable_ipv4, enable_ipv6| -> Vec<String> {
            let maps = Maps::new(MapsConfig::default(), FamilyConfig { enable_ipv4, enable_ipv6 });
            maps.node_specs().into_iter().map(|s| s.name.into_owned()).collect()
        };
        let v4 = names(true, false);
        assert!(v4.iter().any(|n| n == "cilium_ct4_global"));
        assert!(!v4.iter().any(|n| n == "cilium_ct6_global" || n == "cilium_ipv6_frag_datagrams"));
        let both = names(true, true);
        assert!(both.len() > v4.len());
    }

    #[test]
    fn maps_fit_into_the_memory_that_is_left_to_them() {
        let within = |config: MapsConfig, mib: u64| Maps::within(config, FamilyConfig::default(), mib << 20);
        let entries = |maps: &Maps, name| maps.spec(name).unwrap().layout.max_entries;
        let roomy = within(MapsConfig::default(), 1 << 12);
        let fit = roomy.fit().unwrap();
        assert_eq!((fit.wanted, fit.divisor), (fit.taken, 1));
        assert_eq!(
            roomy.node_specs(),
            Maps::new(MapsConfig::default(), FamilyConfig::default()).node_specs()
        );

        let tight = within(MapsConfig::default(), 24);
        assert!(tight.fit().unwrap().fits(), "{:?}", tight.fit());
        assert!(tight.footprint() > 12 << 20, "halved too often: {:?}", tight.fit());
        assert!(entries(&tight, "cilium_ct4_global") * 2 <= entries(&roomy, "cilium_ct4_global"));
        assert!(tight.spec("cilium_lxc").unwrap().layout.flags.contains(MapFlags::NO_PREALLOC));

        // What an option asks for stays, and is told.
        let asked = MapsConfig { bpf_ct_global_tcp_max: 1 << 20, ..MapsConfig::default() };
        let asked = within(asked, 24);
        assert_eq!(entries(&asked, "cilium_ct4_global"), 1 << 20);
        assert!(!asked.fit().unwrap().fits());
    }

    #[test]
    fn names_of_ours_cannot_be_taken_for_policies() {
        assert!(OWN_MAPS.iter().all(|name| !name.starts_with("cilium_policy")));
        assert_eq!(policy_name(135), "cilium_policy_v2_00135");
        let maps = Maps::new(MapsConfig::default(), FamilyConfig::default());
        assert_eq!(maps.spec("cilium_policy_v2_00135").unwrap(), maps.policy_spec(135));
        assert_eq!(maps.spec("cilium_policy_v2_x"), None);
    }
}

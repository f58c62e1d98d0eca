//! One load of the shared programs.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf::{BpfFs, Collection, ObjectFile, ObjectMap, Program, RawMap, unpin};
use datapath_abi::{NodeConfig, Pod, before_services};
use maps::Maps;

use datapath_api::{DatapathError, Step};

use crate::programs::{egress, kept};

/// The prefix of the pins of program arrays; the array's kernel id follows.
const CALLS_PIN: &str = "cilium_calls_shared_";
/// The pin of the array of the tunnel's programs under Cilium's name: the same array.
const OVERLAY_PIN: &str = "cilium_calls_overlay_2";
/// The prefix of the program array pins of all agents.
const ARRAYS: &str = "cilium_calls_";

/// `EOPNOTSUPP` and the kernel-internal `ENOTSUPP`: errors of kernels that cannot look up program arrays.
const NOT_SUPPORTED: [i32; 2] = [95, 524];

/// Programs of one load. They tail-call each other through a private array, which stays pinned as long as one of them
/// may run: the kernel empties a program array once it has neither pins nor descriptors.
#[derive(Debug)]
pub struct ProgramSet {
    collection: Collection,
    config: NodeConfig,
    /// All that the programs depend on.
    record: Vec<u8>,
    /// They come from another run, which has pinned them for this one.
    is_kept: bool,
    calls_pin: PathBuf,
    /// The second pin, on a node with a tunnel. [`ProgramSet::repin`] makes it once the programs are attached: it may be
    /// the only one of the array of another agent's programs.
    overlay_pin: Option<PathBuf>,
}

impl ProgramSet {
    /// Opens the node's maps that the programs use: the first start creates them, which takes longer than loading.
    /// [`ProgramSet::load`] finds them open, or waits for those that are being created.
    pub fn open_maps(maps: &Maps) -> Result<(), DatapathError> {
        shared_maps(datapath_object::MAPS.to_vec(), maps).map(drop)
    }

    /// Loads the programs with these node-wide settings and pins their array. Attaches nothing. Takes the kept programs
    /// of another run if they were loaded from the same object with the same settings and maps.
    pub fn load(maps: &Maps, config: NodeConfig) -> Result<ProgramSet, DatapathError> {
        let shared = shared_maps(datapath_object::MAPS.to_vec(), maps)?;
        let names = needed(&config);
        let record = kept::record(&config, &shared);
        let kept = kept::open(maps.fs(), &names, &record);
        let is_kept = kept.is_some();
        let collection = kept.map_or_else(|| load(maps, &config, &names, shared), Ok)?;
        let array = collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        let calls =
            array.try_clone().and_then(ObjectMap::new).step(|| "open the program array".to_owned())?;
        for program in datapath_object::PROGRAMS {
            if let (Some(slot), Some(loaded)) = (program.slot, collection.programs.get(program.name)) {
                calls.set(slot, loaded).step(|| format!("put program {} into slot {slot}", program.name))?;
            }
        }
        let calls_pin = maps.path(&format!("{CALLS_PIN}{}", array.id()));
        unpin(&calls_pin).and_then(|_| array.pin(&calls_pin)).step(|| "pin the program array".to_owned())?;
        let overlay_pin = (config.tunnel != 0).then(|| maps.path(OVERLAY_PIN));
        Ok(ProgramSet { collection, config, record, is_kept, calls_pin, overlay_pin })
    }

    /// Whether the programs are those of another run, verified then.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Keeps the programs for the next run, and no others: a load with the same settings and maps takes them. Call it once
    /// they are attached.
    pub fn keep(&self, fs: &BpfFs) -> Result<(), DatapathError> {
        let array = self.collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        if !self.is_kept {
            kept::keep(fs, &self.collection, array.id(), &self.record)?;
        }
        kept::remove_others(fs, array.id())
    }

    /// Returns a program by its name.
    pub fn program(&self, name: &str) -> Result<&Program, DatapathError> {
        self.collection.program(name).step(|| "choose a program".to_owned())
    }

    /// Returns the kernel's id of a program, by the program's name.
    pub(crate) fn id(&self, name: &str) -> Result<u32, DatapathError> {
        let info = self.program(name)?.info();
        Ok(info.step(|| format!("ask for the id of program {name}"))?.id)
    }

    /// Returns the constants of this load.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Repins the programs' array if its pin is missing or refers to another map: without a pin the kernel empties it
    /// when the agent stops. Returns the pins that were.
    pub(crate) fn repin(&self, fs: &BpfFs) -> Result<Vec<&Path>, DatapathError> {
        let array = self.collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        let mut repinned = Vec::new();
        for pin in self.pins() {
            let done = match RawMap::open(pin) {
                Ok(pinned) if pinned.id() == array.id() => continue,
                Err(e) if e.is_not_found() => array.pin(pin),
                _ => fs.replace_pin(pin, |pending| array.pin(pending)),
            };
            done.step(|| "pin the program array".to_owned())?;
            repinned.push(pin);
        }
        Ok(repinned)
    }

    /// Returns the pins of the programs' array.
    fn pins(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&*self.calls_pin).chain(self.overlay_pin.as_deref())
    }

    /// Rewrites slots of the array that are empty or hold another program. Returns the programs' names. Does nothing on
    /// kernels that cannot look up program arrays.
    pub(crate) fn repair_calls(&self) -> Result<Vec<&'static str>, DatapathError> {
        let array = self.collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        let calls =
            array.try_clone().and_then(ObjectMap::new).step(|| "open the program array".to_owned())?;
        let mut repaired = Vec::new();
        for program in datapath_object::PROGRAMS {
            let (Some(slot), Some(loaded)) = (program.slot, self.collection.programs.get(program.name))
            else {
                continue;
            };
            let found = match calls.id(slot) {
                Err(e) if e.errno().is_some_and(|errno| NOT_SUPPORTED.contains(&errno)) => {
                    return Ok(Vec::new());
                }
                found => found.step(|| format!("look into slot {slot} of the program array"))?,
            };
            if found != Some(self.id(program.name)?) {
                calls.set(slot, loaded).step(|| format!("put program {} into slot {slot}", program.name))?;
                repaired.push(program.name);
            }
        }
        Ok(repaired)
    }

    /// Removes the pins of other arrays, of previous loads and of a Cilium agent, once none of their programs is
    /// attached. Returns the number of removed pins.
    pub fn remove_others(&self, fs: &BpfFs) -> Result<usize, DatapathError> {
        let names = fs.map_names().step(|| "list the pinned maps".to_owned())?;
        let mut removed = 0;
        for name in names.iter().filter(|name| name.starts_with(ARRAYS)) {
            let path = fs.map(name);
            if !self.pins().any(|pin| pin == path) {
                removed += usize::from(unpin(&path).step(|| format!("remove the pin {name}"))?);
            }
        }
        Ok(removed)
    }
}

/// Returns the names of the programs that a node with these settings needs.
fn needed(config: &NodeConfig) -> BTreeSet<&'static str> {
    let mut unused: Vec<&str> = Vec::new();
    if !egress::is_needed(config) {
        unused.push(datapath_object::TO_NETDEV);
    }
    if config.nodeport == 0 {
        unused.extend(datapath_object::NODEPORT);
    }
    if config.dsr == 0 {
        unused.extend(datapath_object::DSR);
    }
    if config.before_services & before_services::IPIP == 0 {
        unused.extend(datapath_object::IPIP);
    }
    if config.nat46x64 == 0 {
        unused.extend(datapath_object::NAT46X64);
    }
    if config.host_firewall == 0 {
        unused.extend(datapath_object::HOST_FIREWALL);
    }
    if config.policy_deny_response == 0 {
        unused.extend(datapath_object::POLICY_DENIED);
    }
    if !egress::is_translating_ipv4(config) {
        unused.extend(datapath_object::MASQUERADE_IPV4);
    }
    if !egress::is_translating_ipv6(config) {
        unused.extend(datapath_object::MASQUERADE_IPV6);
    }
    if config.endpoint_routes == 0 {
        unused.push(datapath_object::TO_CONTAINER);
    }
    if config.tunnel == 0 {
        unused.extend(datapath_object::OVERLAY);
    }
    let names = datapath_object::PROGRAMS.iter().map(|program| program.name);
    names.filter(|name| !unused.contains(name)).collect()
}

fn load(
    maps: &Maps,
    config: &NodeConfig,
    names: &BTreeSet<&str>,
    shared: Vec<SharedMap>,
) -> Result<Collection, DatapathError> {
    let step = || "load the datapath programs".to_owned();
    let mut object = ObjectFile::parse("datapath", datapath_object::datapath()).step(step)?;
    object
        .set_global(datapath_object::NODE_CONFIG, config.as_bytes())
        .step(|| "set the node's constants".to_owned())?;
    object.retain_programs(|name| names.contains(name));
    let shared = with_stand_ins(&object, shared)?;
    let shared: Vec<(&str, &RawMap)> = shared.iter().map(|(name, map)| (&**name, map)).collect();
    object.load(&shared, maps.load_threads()).step(step)
}

/// A map that programs share with the node by its name; none if the node does not have it, because its family or
/// feature is off.
pub(super) type SharedMap = (String, Option<RawMap>);

/// Opens maps of the node, on [`Maps::load_threads`] threads: creating those of connections takes longest. The result has
/// no particular order.
pub(super) fn shared_maps(mut names: Vec<&str>, maps: &Maps) -> Result<Vec<SharedMap>, DatapathError> {
    // The longest work first, so that no thread ends long after the others.
    names.sort_by_key(|name| Reverse(maps.spec(name).map(|spec| spec.layout.max_entries)));
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut opened = Vec::new();
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            opened.push(((*name).to_owned(), maps.shared(name)?));
        }
        Ok(opened)
    };
    let results: Vec<Result<Vec<SharedMap>, DatapathError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..maps.load_threads()).map(|_| scope.spawn(worker)).collect();
        let mut results = vec![worker()];
        results.extend(others.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))));
        results
    });
    let mut all = Vec::with_capacity(names.len());
    for opened in results {
        all.extend(opened?);
    }
    Ok(all)
}

/// Replaces each map that the node does not have by one of a single entry; the verifier removes the code that would use
/// it.
pub(super) fn with_stand_ins(
    object: &ObjectFile,
    shared: Vec<SharedMap>,
) -> Result<Vec<(String, RawMap)>, DatapathError> {
    let declared = object.maps();
    let mut all = Vec::with_capacity(shared.len());
    for (name, map) in shared {
        let spec = declared.iter().find(|spec| spec.name == *name);
        match (map, spec) {
            (Some(map), _) => all.push((name, map)),
            (None, Some(spec)) => {
                let mut spec = spec.clone();
                spec.layout.max_entries = 1;
                let map = RawMap::create(&spec).step(|| format!("stand in for map {name}"))?;
                all.push((name, map));
            }
            (None, None) => {}
        }
    }
    Ok(all)
}

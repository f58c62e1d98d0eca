//! One load of the shared programs.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf::{BpfFs, Collection, MapSpec, ObjectFile, ObjectMap, Program, RawMap, unpin};
use datapath_abi::{NodeConfig, Pod, before_services};
use maps::Maps;

use datapath_api::{DatapathError, Step};

use crate::programs::egress;

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
    calls_pin: PathBuf,
    /// The second pin, on a node with a tunnel. [`ProgramSet::repin`] makes it once the programs are attached: it may be
    /// the only one of the array of another agent's programs.
    overlay_pin: Option<PathBuf>,
}

impl ProgramSet {
    /// Opens the node's maps that the programs use: the first start creates them, which takes longer than loading. [`ProgramSet::load`] finds them open, or waits for those that are being created.
    pub fn open_maps(maps: &Maps) -> Result<(), DatapathError> {
        shared_maps(&parsed()?, maps, is_shared).map(drop)
    }

    /// Loads the programs with these node-wide settings and pins their array. Attaches nothing.
    pub fn load(maps: &Maps, config: NodeConfig) -> Result<ProgramSet, DatapathError> {
        let mut object = parsed()?;
        object
            .set_global(datapath_object::NODE_CONFIG, config.as_bytes())
            .step(|| "set the node's constants".to_owned())?;
        let mut unused = Vec::new();
        if !egress::is_needed(&config) {
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
        if !egress::is_translating_ipv4(&config) {
            unused.extend(datapath_object::MASQUERADE_IPV4);
        }
        if !egress::is_translating_ipv6(&config) {
            unused.extend(datapath_object::MASQUERADE_IPV6);
        }
        if config.endpoint_routes == 0 {
            unused.push(datapath_object::TO_CONTAINER);
        }
        let overlay: &[&str] = if config.tunnel == 0 { &datapath_object::OVERLAY } else { &[] };
        object.retain_programs(|name| !unused.contains(&name) && !overlay.contains(&name));
        let shared = shared_maps(&object, maps, is_shared)?;
        let shared: Vec<(&str, &RawMap)> = shared.iter().map(|(name, map)| (&**name, map)).collect();
        let collection =
            object.load(&shared, maps.load_threads()).step(|| "load the datapath programs".to_owned())?;

        let array = collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        let calls =
            array.try_clone().and_then(ObjectMap::new).step(|| "open the program array".to_owned())?;
        for program in datapath_object::PROGRAMS {
            if let (Some(slot), Some(loaded)) = (program.slot, collection.programs.get(program.name)) {
                calls.set(slot, loaded).step(|| format!("put program {} into slot {slot}", program.name))?;
            }
        }
        let id = array.info().step(|| "ask about the program array".to_owned())?.id;
        let calls_pin = maps.path(&format!("{CALLS_PIN}{id}"));
        unpin(&calls_pin).and_then(|_| array.pin(&calls_pin)).step(|| "pin the program array".to_owned())?;
        let overlay_pin = (config.tunnel != 0).then(|| maps.path(OVERLAY_PIN));
        Ok(ProgramSet { collection, config, calls_pin, overlay_pin })
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

fn parsed() -> Result<ObjectFile, DatapathError> {
    ObjectFile::parse("datapath", datapath_object::datapath())
        .step(|| "parse the datapath programs".to_owned())
}

fn is_shared(name: &str) -> bool {
    datapath_object::MAPS.contains(&name)
}

/// Opens the node's maps that the programs use, on [`Maps::load_threads`] threads: creating those of connections takes longest. A
/// map that this node does not have, because its family or feature is off, is replaced by one of a single entry; the
/// verifier removes the code that would use it.
pub(super) fn shared_maps(
    object: &ObjectFile,
    maps: &Maps,
    is_shared: fn(&str) -> bool,
) -> Result<Vec<(String, RawMap)>, DatapathError> {
    let declared = object.maps();
    let declared = declared.iter().filter(|spec| is_shared(&spec.name));
    let mut work: Vec<&MapSpec> = declared.collect();
    // The longest work first, so that no thread ends long after the others.
    work.sort_by_key(|spec| Reverse(maps.spec(&spec.name).map(|spec| spec.layout.max_entries)));
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut opened = Vec::new();
        while let Some(spec) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = spec.name.clone().into_owned();
            let map = match maps.shared(&name)? {
                Some(map) => map,
                None => stand_in(spec).step(|| format!("stand in for map {name}"))?,
            };
            opened.push((name, map));
        }
        Ok(opened)
    };
    let results: Vec<Result<Vec<(String, RawMap)>, DatapathError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..maps.load_threads()).map(|_| scope.spawn(worker)).collect();
        let mut results = vec![worker()];
        results.extend(others.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))));
        results
    });
    let mut all = Vec::with_capacity(work.len());
    for opened in results {
        all.extend(opened?);
    }
    Ok(all)
}

fn stand_in(spec: &MapSpec) -> bpf::Result<RawMap> {
    let mut spec = spec.clone();
    spec.layout.max_entries = 1;
    RawMap::create(&spec)
}

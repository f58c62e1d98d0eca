//! Loaded objects, shared by tests of one configuration: the verifier takes half a second for one, to empty its maps takes
//! some milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use bpf::{MapType, RawMap, UpdateMode};
use datapath_abi::NodeConfig;

use super::PolicyMap;

/// Objects without users, the one that was used last at the end.
static POOL: Mutex<Vec<(Key, Loaded)>> = Mutex::new(Vec::new());
/// The limit of the objects without users: tests of a module follow each other and have few configurations.
const CAPACITY: usize = 8;

/// The object, the configuration's bytes.
type Key = (&'static str, Vec<u8>);

/// An object in the kernel.
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    /// Dropping it would empty the array.
    pub(super) calls: ProgramArray<MapData>,
    /// Policy maps by endpoint id, which is also their slot.
    pub(super) policies: BTreeMap<u16, PolicyMap>,
    /// The indexes of large arrays that may have been written.
    pub(super) indexes: BTreeSet<u32>,
    /// All maps of the programs, from the first time that they are emptied on.
    maps: Vec<RawMap>,
}

/// A user's object. The pool has it afterwards, unless it has been changed beyond the entries of its maps.
pub(super) struct Object {
    /// `None` only while it is dropped.
    loaded: Option<Loaded>,
    /// The place in the pool.
    key: Option<Key>,
}

impl Object {
    /// Returns an object of the pool as if it were loaded now, or else the new one of `load`.
    pub(super) fn shared(
        name: &'static str,
        config: &NodeConfig,
        load: impl FnOnce() -> Result<Self>,
    ) -> Result<Self> {
        use datapath_abi::Pod as _;
        let key = (name, config.as_bytes().to_vec());
        let pooled = {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            pool.iter().rposition(|(of, _)| *of == key).map(|at| pool.remove(at).1)
        };
        match pooled {
            Some(mut loaded) => {
                loaded.empty_maps().context("maps of a used object")?;
                Ok(Self { loaded: Some(loaded), key: Some(key) })
            }
            None => {
                let mut object = load()?;
                object.key = Some(key);
                Ok(object)
            }
        }
    }

    /// An object that is not shared.
    pub(super) fn new(ebpf: Ebpf, calls: ProgramArray<MapData>) -> Self {
        let (policies, indexes) = (BTreeMap::new(), BTreeSet::new());
        Self { loaded: Some(Loaded { ebpf, calls, policies, indexes, maps: Vec::new() }), key: None }
    }

    /// Keeps the object out of the pool.
    pub(super) fn own(&mut self) {
        self.key = None;
    }
}

impl Deref for Object {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.loaded.as_ref().expect("not dropped")
    }
}

impl DerefMut for Object {
    fn deref_mut(&mut self) -> &mut Loaded {
        self.loaded.as_mut().expect("not dropped")
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let (Some(loaded), Some(key)) = (self.loaded.take(), self.key.take()) else { return };
        if std::thread::panicking() {
            return;
        }
        let evicted = {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            pool.push((key, loaded));
            (pool.len() > CAPACITY).then(|| pool.remove(0))
        };
        drop(evicted);
    }
}

impl Loaded {
    /// Makes all maps as they were after the load.
    fn empty_maps(&mut self) -> Result<()> {
        if self.maps.is_empty() {
            let mut ids = BTreeSet::new();
            for (_, program) in self.ebpf.programs() {
                ids.extend(program.info()?.map_ids()?.context("the kernel reports no maps")?);
            }
            self.maps = ids.into_iter().map(RawMap::open_id).collect::<Result<_, _>>()?;
        }
        for map in &self.maps {
            empty(map, &self.indexes).with_context(|| map.name().to_owned())?;
        }
        self.policies.clear();
        self.indexes.clear();
        Ok(())
    }
}

/// Empties a map; in large arrays only these indexes are in use.
fn empty(map: &RawMap, indexes: &BTreeSet<u32>) -> Result<()> {
    const LARGE: u32 = 4096;
    let layout = map.layout();
    let in_use = || indexes.iter().copied().filter(|index| *index < layout.max_entries);
    match layout.map_type {
        // The settings of the load.
        MapType::Array if map.name().contains("rodata") => {}
        // Programs of the load, and rings: tests that change them have an object of their own.
        MapType::ProgArray | MapType::PerfEventArray => {}
        MapType::Array | MapType::PerCpuArray => {
            let zero = vec![0; map.value_len()];
            let all: Vec<u32> = if layout.max_entries < LARGE {
                (0..layout.max_entries).collect()
            } else {
                in_use().collect()
            };
            for index in all {
                map.update(&index.to_ne_bytes(), &zero, UpdateMode::Any)?;
            }
        }
        MapType::ArrayOfMaps => {
            for index in in_use() {
                map.delete(&index.to_ne_bytes())?;
            }
        }
        MapType::Other(number) => bail!("a map of type {number}"),
        _ => {
            let mut key = vec![0; layout.key_size as usize];
            while map.next_key(None, &mut key)? {
                map.delete(&key)?;
            }
        }
    }
    Ok(())
}

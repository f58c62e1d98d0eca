//! Recreation of pins that another process has removed, from the open maps.

use std::collections::BTreeSet;

use bpf::{MOVING, RawMap};

use crate::error::Result;
use crate::maps::Maps;
use crate::specs::OWN_MAPS;

/// Names of the maps that [`Maps::open`] opens, beside Apiary's own.
const OPENED: [&str; 7] = [
    "cilium_lxc",
    "cilium_ipcache_v2",
    "cilium_metrics",
    "cilium_devices",
    "cilium_runtime_config",
    "cilium_events",
    "cilium_call_policy",
];

/// The repairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repinned {
    /// The bpf file system was not mounted any more.
    pub mounted: bool,
    /// Names of the maps that had no pin or that of another map.
    pub pins: Vec<String>,
    /// Names of all pins in the maps' folder afterwards.
    pub found: BTreeSet<String>,
}

impl Maps {
    /// Remounts the bpf file system if another process has unmounted it, and pins the open maps that have no pin or a
    /// pin of another map. The maps themselves survive by the agent's descriptors. Without drift this costs reading
    /// one folder and opening each pin.
    pub fn repin(&self) -> Result<Repinned> {
        let mut done = Repinned { mounted: self.fs().mount_again()?, ..Repinned::default() };
        done.found = self.fs().map_names()?.into_iter().collect();
        for name in OPENED.into_iter().chain(OWN_MAPS) {
            if let Some(map) = self.raw(name) {
                self.pin_again(&mut done, name, map)?;
            }
        }
        let others: Vec<_> = {
            let others = self.others.lock();
            others.iter().map(|(name, slot)| (name.clone(), slot.clone())).collect()
        };
        for (name, slot) in others {
            // Another thread that holds the lock is opening the map, and pins it.
            let Some(slot) = slot.try_lock() else { continue };
            if let Some(map) = &*slot {
                self.pin_again(&mut done, &name, map)?;
            }
        }
        Ok(done)
    }

    fn pin_again(&self, done: &mut Repinned, name: &str, map: &RawMap) -> Result<()> {
        // Migrating to another layout: the pin is the old map's until the previous programs are gone.
        if done.found.contains(&format!("{name}{MOVING}")) {
            return Ok(());
        }
        let path = self.path(name);
        if !done.found.contains(name) {
            map.pin(&path)?;
        } else if RawMap::open(&path).is_ok_and(|pinned| pinned.id() == map.id()) {
            return Ok(());
        } else {
            self.fs().replace_pin(&path, |pending| map.pin(pending))?;
        }
        done.pins.push(name.to_owned());
        done.found.insert(name.to_owned());
        Ok(())
    }
}

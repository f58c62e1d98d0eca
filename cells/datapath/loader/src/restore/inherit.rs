//! What a start takes over in the kernel: endpoints with their policy maps, before any program is replaced.

use std::collections::BTreeMap;

use bpf::{Layout, Map, RawMap};
use datapath_abi::{EndpointConfig, ep_flag, identity};
use maps::{POLICY_PREFIX, policy_name};

use crate::endpoints::kernel::KernelDatapath;
use crate::endpoints::policy;
use crate::restore::adopt;
use crate::restore::plan::{Found, plan};
use datapath_api::EndpointDatapath;
use datapath_api::{DatapathError, Step};

/// Empty slots in a row after which there are no more maps: several times what is reserved at once.
const SLOT_GAP: u32 = 4 * crate::READY as u32;

/// Policy maps of endpoints by their pins.
type Pins = BTreeMap<String, RawMap>;

impl KernelDatapath {
    /// Takes over endpoints of the previous run, or of another agent: repairs pins and rows after the settings rows. Needs no
    /// programs.
    pub fn restore(&self) -> Result<usize, DatapathError> {
        self.restore_ids()?;
        let (mut rows, mut slots, pins) = (self.written_rows()?, self.slots()?, self.policy_pins()?);
        let adopted = rows.is_empty();
        if adopted {
            rows = self.adopt(&mut slots, &pins)?;
        }
        if let Some(host) = rows.iter().find(|row| row.identity == identity::HOST) {
            self.host_endpoint.send_replace(host.id as u16);
        }
        self.inherit(&rows, &mut slots, &pins)?;
        let pins = pins.into_iter().map(|(name, pin)| (name, pin.id())).collect();
        let mut found = Found { slots, pins, rows };
        self.resize(&mut found)?;
        let plan = plan(&found);
        self.pool.restore(&plan.occupied, &plan.used)?;
        let mut slot_of: BTreeMap<u16, u32> = plan.repin.iter().copied().collect();
        for id in plan.without_map {
            let (slot, map) = self.pool.take()?;
            if found.rows.iter().any(|row| row.id == u32::from(id) && row.identity == identity::HOST) {
                policy::allow_all(&map, id)?;
            }
            slot_of.insert(id, slot);
        }
        for row in &found.rows {
            let id = row.id as u16;
            let mut row = *row;
            if let Some(slot) = slot_of.get(&id) {
                if let Some(map) = self.pool.map(*slot)? {
                    self.pin_policy(id, &map)?;
                }
                row.policy_slot = *slot;
                if !adopted {
                    self.note_id(id, *slot)?;
                }
                self.write_row(id, &row).step(|| format!("endpoint {id}: write settings"))?;
            }
            self.note_rows([(id, row)]);
            if row.flags & ep_flag::LIVE != 0 {
                self.write_interface(row.ifindex, id)?;
                self.write_addresses(&EndpointDatapath::from_config(&row))?;
            }
        }
        if adopted {
            // Last: until then the next start begins anew.
            let ids: Vec<(u32, u32)> = found.rows.iter().map(|row| (row.id, row.policy_slot)).collect();
            self.maps().ep_ids().update_batch(&ids).step(|| "note endpoints taken over".to_owned())?;
        }
        Ok(found.rows.len())
    }

    /// Makes settings rows of what another agent says in `cilium_lxc`, and puts the policy maps that it has pinned into
    /// slots. Nothing to do on a node that has no endpoints.
    fn adopt(
        &self,
        slots: &mut BTreeMap<u32, u32>,
        pins: &Pins,
    ) -> Result<Vec<EndpointConfig>, DatapathError> {
        if pins.is_empty() {
            return Ok(Vec::new());
        }
        let step = || "take over endpoints of another agent".to_owned();
        let lxc = self.maps().lxc().entries().step(step)?;
        let mut rows = adopt::rows(&lxc);
        let spec = self.maps().policy_spec(0).layout;
        let shape = |layout: &Layout| (layout.map_type, layout.key_size, layout.value_size, layout.flags);
        let mut policies = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let id = row.id as u16;
            match pins.get(&policy_name(id)).filter(|pin| shape(&pin.layout()) == shape(&spec)) {
                Some(pin) => policies.push((index, pin)),
                None => tracing::warn!(
                    endpointID = id,
                    "No policy map of this form to take over: the endpoint is denied everything until its policy is computed"
                ),
            }
        }
        let ids: Vec<u32> = policies.iter().map(|(_, map)| map.id()).collect();
        let given = adopt::slots(&ids, slots);
        let pairs = given.iter().copied().zip(policies.iter().map(|(_, map)| *map));
        self.pool.put(&pairs.collect::<Vec<_>>())?;
        for ((index, map), slot) in policies.into_iter().zip(given) {
            rows[index].policy_slot = slot;
            slots.insert(slot, map.id());
        }
        let written: Vec<(u32, EndpointConfig)> = rows.iter().map(|row| (row.id, *row)).collect();
        self.maps().ep_config().update_batch(&written).step(step)?;
        if !rows.is_empty() {
            tracing::info!(count = rows.len(), "Took over endpoints of another agent");
        }
        Ok(rows)
    }

    /// Takes over the maps in the endpoints' slots. One that cannot be opened any more counts as none.
    fn inherit(
        &self,
        rows: &[EndpointConfig],
        slots: &mut BTreeMap<u32, u32>,
        pins: &Pins,
    ) -> Result<(), DatapathError> {
        for row in rows {
            let Some(map) = slots.get(&row.policy_slot).copied() else { continue };
            let pinned = pins.get(&policy_name(row.id as u16));
            if !self.pool.inherit(row.policy_slot, map, pinned)? {
                tracing::warn!(
                    endpointID = row.id,
                    "No pin of the endpoint's policy map is left: it is denied everything until its policy is computed"
                );
                slots.remove(&row.policy_slot);
            }
        }
        Ok(())
    }

    /// Gives endpoints policy maps of the size that is wanted now (`bpf-policy-map-max`), with the rows that they have. One
    /// whose rows do not fit keeps its map.
    fn resize(&self, found: &mut Found) -> Result<(), DatapathError> {
        let spec = self.maps().policy_spec(0).named("cilium_policy_v2");
        let wanted = spec.layout;
        let mut resized = Vec::new();
        for row in &found.rows {
            let (id, slot) = (row.id, row.policy_slot);
            if slot == 0 || !found.slots.contains_key(&slot) {
                continue;
            }
            let Some(old) = self.pool.map(slot)?.filter(|map| map.raw().layout() != wanted) else { continue };
            let step =
                || format!("endpoint {id}: bring its policy into a map of {} rows", wanted.max_entries);
            let rows = old.entries().step(step)?;
            if rows.len() > wanted.max_entries as usize {
                tracing::warn!(
                    endpointID = id,
                    entries = rows.len(),
                    wanted = wanted.max_entries,
                    "Policy map keeps its size: it holds more rows than fit into the size wanted"
                );
                continue;
            }
            let map = RawMap::create(&spec).and_then(Map::new).step(step)?;
            map.update_batch(&rows).step(step)?;
            resized.push((slot, map));
        }
        if resized.is_empty() {
            return Ok(());
        }
        self.pool.put(&resized.iter().map(|(slot, map)| (*slot, map.raw())).collect::<Vec<_>>())?;
        for (slot, map) in &resized {
            found.slots.insert(*slot, map.raw().id());
        }
        tracing::info!(count = resized.len(), size = wanted.max_entries, "Policy maps have a new size");
        Ok(())
    }

    /// Settings rows that the kernel has, by the list of ids: it is written before a row and forgotten after it.
    fn written_rows(&self) -> Result<Vec<EndpointConfig>, DatapathError> {
        let ids = self.maps().ep_ids().keys().step(|| "list the endpoints".to_owned())?;
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            let row = self.maps().ep_config().lookup(&id).step(|| format!("endpoint {id}: read settings"))?;
            rows.extend(row.filter(|row| row.id != 0 && row.id == id));
        }
        rows.sort_by_key(|row| row.id);
        Ok(rows)
    }

    /// Makes the list of ids anew if it is missing although there are endpoints: walks through all rows (10 ms).
    fn restore_ids(&self) -> Result<(), DatapathError> {
        let step = || "list the endpoints".to_owned();
        if !self.maps().ep_ids().keys().step(step)?.is_empty() || self.policy_pins()?.is_empty() {
            return Ok(());
        }
        let rows = self.maps().ep_config().filter(|id, row| row.id != 0 && row.id == *id).step(step)?;
        let ids: Vec<(u32, u32)> = rows.iter().map(|(id, row)| (*id, row.policy_slot)).collect();
        self.maps().ep_ids().update_batch(&ids).step(step)
    }

    /// Kernel numbers of the maps in slots. Slots are given out from 1 on, so a long gap is the end.
    fn slots(&self) -> Result<BTreeMap<u32, u32>, DatapathError> {
        let mut slots = BTreeMap::new();
        let mut gap = 0;
        for slot in 1..datapath_abi::EP_CONFIG_ENTRIES {
            let id = self.maps().ep_policies().id(slot).step(|| format!("look into policy slot {slot}"))?;
            gap = if id.is_some() { 0 } else { gap + 1 };
            if gap > SLOT_GAP {
                break;
            }
            slots.extend(id.map(|id| (slot, id)));
        }
        Ok(slots)
    }

    fn policy_pins(&self) -> Result<Pins, DatapathError> {
        let names = self.maps().fs().map_names().step(|| "list the pinned maps".to_owned())?;
        let policies = names.into_iter().filter(|name| name.starts_with(POLICY_PREFIX));
        let pinned = |name: String| RawMap::open(&self.maps().path(&name)).ok().map(|map| (name, map));
        Ok(policies.filter_map(pinned).collect())
    }
}

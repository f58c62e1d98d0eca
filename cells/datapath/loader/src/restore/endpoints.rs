//! Restores endpoints with their policy maps at a start, before any program is replaced.

use std::collections::BTreeMap;

use bpf::{Layout, Map, RawMap};
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, ep_flag, identity};
use datapath_api::{Datapath, DatapathError, EndpointDatapath, Step};
use maps::{Maps, POLICY_PREFIX, policy_name};

use crate::endpoints::kernel::KernelDatapath;
use crate::endpoints::policy_maps::allow_all;
use crate::endpoints::pool::PolicyPool;
use crate::restore::plan::{Found, plan};
use crate::restore::take_over;

/// Length of a run of empty slots that ends the scan: several times the number that is reserved at once.
const SLOT_GAP: u32 = 4 * crate::READY as u32;

/// Policy maps of endpoints by their pins.
type Pins = BTreeMap<String, RawMap>;

/// Restores the endpoints of the previous run, or takes over those of another agent: repairs pins and map entries after
/// the settings entries. Needs no programs. Returns the number of endpoints.
///
/// # Errors
/// If a map or pin cannot be read or written. The call may be repeated.
pub fn restore(datapath: &KernelDatapath) -> Result<usize, DatapathError> {
    let (maps, table, policy_maps) = (datapath.maps(), datapath.table(), datapath.policy_maps());
    let pool = policy_maps.pool();
    restore_ids(maps)?;
    let (mut configs, mut slots, pins) = (written_configs(maps)?, occupied_slots(maps)?, policy_pins(maps)?);
    let taken_over = configs.is_empty();
    if taken_over {
        configs = take_over(maps, pool, &mut slots, &pins)?;
    }
    if let Some(host) = configs.iter().find(|config| config.identity == identity::HOST) {
        datapath.expect_host(host.id as u16);
    }
    restore_maps(pool, &configs, &mut slots, &pins)?;
    let pins = pins.into_iter().map(|(name, pin)| (name, pin.id())).collect();
    let mut found = Found { slots, pins, configs };
    resize(maps, pool, &mut found)?;
    let plan = plan(&found);
    pool.restore(&plan.occupied, &plan.used)?;
    let mut slot_of: BTreeMap<u16, u32> = plan.repin.iter().copied().collect();
    for id in plan.without_map {
        let (slot, map) = pool.take()?;
        if found.configs.iter().any(|config| config.id == u32::from(id) && config.identity == identity::HOST)
        {
            allow_all(&map, id)?;
        }
        slot_of.insert(id, slot);
    }
    for config in &found.configs {
        let id = config.id as u16;
        let endpoint = table.lock(id);
        let mut config = *config;
        if let Some(slot) = slot_of.get(&id) {
            if let Some(map) = pool.map(*slot)? {
                policy_maps.pin(id, &map)?;
            }
            config.policy_slot = *slot;
            if !taken_over {
                endpoint.write_id(*slot)?;
            }
            endpoint.write_config(&config).step(|| format!("endpoint {id}: write settings"))?;
        }
        endpoint.record_config(&config);
        if config.flags & ep_flag::LIVE != 0 {
            endpoint.write_interface(config.ifindex)?;
            endpoint.write_addresses(&EndpointDatapath::from_config(&config))?;
        }
    }
    if taken_over {
        // Last: a start after a crash that finds no ids repeats the take-over from the beginning.
        let ids: Vec<(u32, u32)> = found.configs.iter().map(|c| (c.id, c.policy_slot)).collect();
        maps.ep_ids().update_batch(&ids).step(|| "note endpoints taken over".to_owned())?;
    }
    Ok(found.configs.len())
}

/// Takes over the endpoints of another agent: derives settings entries from `cilium_lxc`, and inserts the pinned policy
/// maps into slots. Does nothing on a node without endpoints.
fn take_over(
    maps: &Maps,
    pool: &PolicyPool,
    slots: &mut BTreeMap<u32, u32>,
    pins: &Pins,
) -> Result<Vec<EndpointConfig>, DatapathError> {
    if pins.is_empty() {
        return Ok(Vec::new());
    }
    let step = || "take over endpoints of another agent".to_owned();
    let lxc = maps.lxc().entries().step(step)?;
    let mut configs = take_over::configs(&lxc);
    let spec = maps.policy_spec(0).layout;
    let shape = |layout: &Layout| (layout.map_type, layout.key_size, layout.value_size, layout.flags);
    let mut policies = Vec::new();
    for (index, config) in configs.iter().enumerate() {
        let id = config.id as u16;
        match pins.get(&policy_name(id)).filter(|pin| shape(&pin.layout()) == shape(&spec)) {
            Some(pin) => policies.push((index, pin)),
            None => tracing::warn!(
                endpointID = id,
                "No policy map of this layout to take over: the endpoint is denied everything until its policy is computed"
            ),
        }
    }
    let ids: Vec<u32> = policies.iter().map(|(_, map)| map.id()).collect();
    let assigned = take_over::slots(&ids, slots);
    let pairs = assigned.iter().copied().zip(policies.iter().map(|(_, map)| *map));
    pool.put(&pairs.collect::<Vec<_>>())?;
    for ((index, map), slot) in policies.into_iter().zip(assigned) {
        configs[index].policy_slot = slot;
        slots.insert(slot, map.id());
    }
    let written: Vec<(u32, EndpointConfig)> = configs.iter().map(|config| (config.id, *config)).collect();
    maps.ep_config().update_batch(&written).step(step)?;
    if !configs.is_empty() {
        tracing::info!(count = configs.len(), "Took over endpoints of another agent");
    }
    Ok(configs)
}

/// Opens the maps in the endpoints' slots. A map that cannot be opened counts as missing.
fn restore_maps(
    pool: &PolicyPool,
    configs: &[EndpointConfig],
    slots: &mut BTreeMap<u32, u32>,
    pins: &Pins,
) -> Result<(), DatapathError> {
    for config in configs {
        let Some(map) = slots.get(&config.policy_slot).copied() else { continue };
        let pinned = pins.get(&policy_name(config.id as u16));
        if !pool.restore_map(config.policy_slot, map, pinned)? {
            tracing::warn!(
                endpointID = config.id,
                "No pin of the endpoint's policy map is left: it is denied everything until its policy is computed"
            );
            slots.remove(&config.policy_slot);
        }
    }
    Ok(())
}

/// Replaces policy maps of another capacity than `bpf-policy-map-max`, keeping their entries. A map with more entries
/// than the new capacity stays.
fn resize(maps: &Maps, pool: &PolicyPool, found: &mut Found) -> Result<(), DatapathError> {
    let spec = maps.policy_spec(0).named("cilium_policy_v2");
    let desired = spec.layout;
    let mut resized = Vec::new();
    for config in &found.configs {
        let (id, slot) = (config.id, config.policy_slot);
        if slot == 0 || !found.slots.contains_key(&slot) {
            continue;
        }
        let Some(old) = pool.map(slot)?.filter(|map| map.raw().layout() != desired) else { continue };
        let step = || format!("endpoint {id}: bring its policy into a map of {} rows", desired.max_entries);
        let entries = old.entries().step(step)?;
        if entries.len() > desired.max_entries as usize {
            tracing::warn!(
                endpointID = id,
                entries = entries.len(),
                wanted = desired.max_entries,
                "Policy map keeps its size: it holds more rows than fit into the size wanted"
            );
            continue;
        }
        let map = RawMap::create(&spec).and_then(Map::new).step(step)?;
        map.update_batch(&entries).step(step)?;
        resized.push((slot, map));
    }
    if resized.is_empty() {
        return Ok(());
    }
    pool.put(&resized.iter().map(|(slot, map)| (*slot, map.raw())).collect::<Vec<_>>())?;
    for (slot, map) in &resized {
        found.slots.insert(*slot, map.raw().id());
    }
    tracing::info!(count = resized.len(), size = desired.max_entries, "Policy maps have a new size");
    Ok(())
}

/// Returns the settings entries in the kernel, by the list of ids: an id is written before the entry and removed after
/// it.
fn written_configs(maps: &Maps) -> Result<Vec<EndpointConfig>, DatapathError> {
    let ids = maps.ep_ids().keys().step(|| "list the endpoints".to_owned())?;
    let mut configs = Vec::with_capacity(ids.len());
    for id in ids {
        let config = maps.ep_config().lookup(&id).step(|| format!("endpoint {id}: read settings"))?;
        configs.extend(config.filter(|config| config.id != 0 && config.id == id));
    }
    configs.sort_by_key(|config| config.id);
    Ok(configs)
}

/// Rebuilds the list of ids if it is missing although there are endpoints: scans all settings entries (10 ms).
fn restore_ids(maps: &Maps) -> Result<(), DatapathError> {
    let step = || "list the endpoints".to_owned();
    if !maps.ep_ids().keys().step(step)?.is_empty() || policy_pins(maps)?.is_empty() {
        return Ok(());
    }
    let configs = maps.ep_config().filter(|id, config| config.id != 0 && config.id == *id).step(step)?;
    let ids: Vec<(u32, u32)> = configs.iter().map(|(id, config)| (*id, config.policy_slot)).collect();
    maps.ep_ids().update_batch(&ids).step(step)
}

/// Returns the kernel's ids of the maps in slots. Slots are assigned from 1 on, so a long gap is the end.
fn occupied_slots(maps: &Maps) -> Result<BTreeMap<u32, u32>, DatapathError> {
    let mut slots = BTreeMap::new();
    let mut gap = 0;
    for slot in 1..EP_CONFIG_ENTRIES {
        let id = maps.ep_policies().id(slot).step(|| format!("look into policy slot {slot}"))?;
        gap = if id.is_some() { 0 } else { gap + 1 };
        if gap > SLOT_GAP {
            break;
        }
        slots.extend(id.map(|id| (slot, id)));
    }
    Ok(slots)
}

fn policy_pins(maps: &Maps) -> Result<Pins, DatapathError> {
    let names = maps.fs().map_names().step(|| "list the pinned maps".to_owned())?;
    let policies = names.into_iter().filter(|name| name.starts_with(POLICY_PREFIX));
    let pinned = |name: String| RawMap::open(&maps.path(&name)).ok().map(|map| (name, map));
    Ok(policies.filter_map(pinned).collect())
}

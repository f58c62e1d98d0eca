//! Compares the kernel with the desired state and repairs what another process has removed or changed.
//!
//! A comparison always covers everything, independent of its trigger: it costs a few system calls per endpoint and
//! writes nothing if there is no drift. `schedule.rs` has its times, `alarms.rs` the events that trigger one earlier.

use datapath_api::DatapathError;
use devices::Netlink;
use maps::policy_name;

use crate::endpoints::kernel::KernelDatapath;
use crate::guard::nftables::Chain;
use crate::interfaces::controller::Controller;
use crate::watchdog::repairs::{Kind, Repair, repair};

/// Compares everything once and returns the repairs. `guarded` if the rule against unknown pods is desired. Missing
/// parts that only [`Controller::apply`] can recreate are recorded in the controller. Blocks.
pub(crate) fn compare(controller: &mut Controller, guarded: bool) -> Result<Vec<Repair>, DatapathError> {
    let datapath = controller.datapath().clone();
    let mut repairs = repair_pins(&datapath)?;
    let mut add = |kind, found: Vec<String>| {
        repairs.extend(found.into_iter().map(|part| repair(kind, part)));
    };
    let mut nl = Netlink::open()?;
    add(Kind::Row, datapath.repair_rows(&nl.links()?)?);
    add(Kind::Row, controller.repair_entries()?);
    add(Kind::Program, datapath.reattach(&mut nl)?);
    let lost = controller.check_places()?;
    add(Kind::Program, lost.programs);
    add(Kind::Pin, lost.pins);
    add(Kind::Network, controller.check_addresses(&mut nl)?);
    add(Kind::Network, controller.check_tunnel(&mut nl)?.into_iter().collect());
    add(Kind::Network, controller.check_ipip(&mut nl).into_iter().collect());
    for chain in [Chain::HostPackets, Chain::UnknownPods] {
        let desired = match chain {
            // One of the two marks the host's packets; both do for a moment when the other takes over.
            Chain::HostPackets if controller.is_host_marked_by_iptables() => {
                if chain.is_installed().map_err(DatapathError::Rule)? {
                    chain.remove().map_err(DatapathError::Rule)?;
                }
                false
            }
            Chain::HostPackets => true,
            Chain::UnknownPods => guarded,
        };
        if desired && !chain.is_installed().map_err(DatapathError::Rule)? {
            chain.install().map_err(DatapathError::Rule)?;
            repairs.push(repair(Kind::Rule, chain.description()));
        }
    }
    Ok(repairs)
}

/// Mounts the bpf file system, and repins maps, policy maps and the array of programs if a pin is missing or refers to
/// another map. Returns the repairs.
///
/// # Errors
/// If a map or pin cannot be read or written.
pub fn repair_pins(datapath: &KernelDatapath) -> Result<Vec<Repair>, DatapathError> {
    let (maps, table, policy_maps) = (datapath.maps(), datapath.table(), datapath.policy_maps());
    let done = maps.repin()?;
    let mut repairs = Vec::new();
    if done.mounted {
        let root = maps.fs().root().display();
        repairs.push(repair(Kind::FileSystem, format!("bpf file system on {root}")));
    }
    repairs.extend(done.pins.into_iter().map(|name| repair(Kind::Pin, name)));
    for config in table.all() {
        if policy_maps.is_pinned(&config)? {
            continue;
        }
        let id = config.id as u16;
        let endpoint = table.lock(id);
        // The endpoint may have been deleted, or be in creation.
        let config = endpoint.config();
        if config.id != u32::from(id) || policy_maps.is_pinned(&config)? {
            continue;
        }
        if let Some(map) = policy_maps.pool().map(config.policy_slot)? {
            policy_maps.pin(id, &map)?;
            repairs.push(repair(Kind::Pin, policy_name(id)));
        }
    }
    repairs.extend(policy_maps.pool().repin()?.into_iter().map(|pin| repair(Kind::Pin, pin)));
    if let Some(programs) = datapath.programs() {
        for pin in programs.repin(maps.fs())? {
            let name = pin.file_name().unwrap_or_default();
            repairs.push(repair(Kind::Pin, name.to_string_lossy()));
        }
        let called = programs.repair_calls()?;
        repairs.extend(called.into_iter().map(|name| repair(Kind::Program, format!("tail call to {name}"))));
    }
    Ok(repairs)
}

//! Plans how a start restores the state of the previous run: a pure function of settings entries, slots and pins.

use std::collections::{BTreeMap, BTreeSet};

use datapath_abi::EndpointConfig;
use maps::policy_name;

/// The entries in the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Settings entries in use.
    pub(crate) configs: Vec<EndpointConfig>,
    /// Kernel ids of the maps in slots.
    pub(crate) slots: BTreeMap<u32, u32>,
    /// Kernel ids of pinned maps by name.
    pub(crate) pins: BTreeMap<String, u32>,
}

/// The operations to perform, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Slots that have a map.
    pub(crate) occupied: BTreeSet<u32>,
    /// Slots that endpoints use.
    pub(crate) used: BTreeSet<u32>,
    /// Endpoints with an empty slot or the slot of another endpoint: they need a new map and a new pin.
    pub(crate) without_map: Vec<u16>,
    /// Endpoints with a missing pin, or a pin of another map than the one in their slot.
    pub(crate) repin: Vec<(u16, u32)>,
}

/// Compares settings entries, slots and pins. The settings entry is authoritative; pins follow.
pub(crate) fn plan(found: &Found) -> Plan {
    let mut plan = Plan { occupied: found.slots.keys().copied().collect(), ..Plan::default() };
    for config in &found.configs {
        let id = config.id as u16;
        let slot = config.policy_slot;
        let Some(map) = found.slots.get(&slot).filter(|_| slot != 0 && plan.used.insert(slot)) else {
            plan.without_map.push(id);
            continue;
        };
        if found.pins.get(&policy_name(id)) != Some(map) {
            plan.repin.push((id, slot));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(id: u32, policy_slot: u32) -> EndpointConfig {
        EndpointConfig { id, policy_slot, ..EndpointConfig::default() }
    }

    fn found() -> Found {
        Found {
            configs: vec![config(7, 1), config(8, 2)],
            slots: BTreeMap::from([(1, 101), (2, 102), (3, 103)]),
            pins: BTreeMap::from([(policy_name(7), 101), (policy_name(8), 102)]),
        }
    }

    #[test]
    fn nothing_to_do_after_a_clean_run() {
        let plan = plan(&found());
        assert_eq!(plan.used, BTreeSet::from([1, 2]));
        assert_eq!(plan.occupied, BTreeSet::from([1, 2, 3]));
        assert!(plan.repin.is_empty() && plan.without_map.is_empty());
    }

    #[test]
    fn pins_follow_the_settings_entry() {
        let mut found = found();
        found.pins.remove(&policy_name(7));
        found.pins.insert(policy_name(8), 999);
        assert_eq!(plan(&found).repin, [(7, 1), (8, 2)]);
    }

    #[test]
    fn an_empty_or_doubled_slot_is_replaced() {
        let mut found = found();
        found.slots.remove(&2);
        found.configs.push(config(9, 1));
        found.configs.push(config(10, 0));
        let plan = plan(&found);
        assert_eq!(plan.without_map, [8, 9, 10]);
        assert_eq!(plan.used, BTreeSet::from([1]));
    }
}

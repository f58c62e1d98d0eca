//! Leftovers of unknown endpoints: pins and map entries of crashed runs, and of a previous Cilium agent.

use std::collections::BTreeSet;

use bpf::{names_in, unpin};
use datapath_abi::{EndpointInfo, lxc_flag};
use maps::{Maps, POLICY_PREFIX};

use datapath_api::{DatapathError, Step};

/// Removes pins and map entries of unknown endpoints. Returns their number.
pub(crate) fn sweep(maps: &Maps, known: &BTreeSet<u16>) -> Result<usize, DatapathError> {
    let mut removed = 0;
    let fs = maps.fs();
    for name in fs.map_names().step(|| "list the pinned maps".to_owned())? {
        if is_leftover_pin(&name, known) {
            removed += usize::from(unpin(&fs.map(&name)).step(|| format!("remove the pin {name}"))?);
        }
    }
    let links = fs.root().join("cilium/endpoints");
    for name in names_in(&links).step(|| "list the endpoints' links".to_owned())? {
        if !name.parse().is_ok_and(|id| known.contains(&id)) {
            removed += usize::from(std::fs::remove_dir_all(links.join(name)).is_ok());
        }
    }
    let is_leftover = |info: &EndpointInfo| info.flags & lxc_flag::HOST == 0 && !known.contains(&info.lxc_id);
    let step = || "sweep the endpoint map".to_owned();
    let found = maps.lxc().filter(|_, info| is_leftover(info)).step(step)?;
    let keys: Vec<_> = found.iter().map(|(key, _)| *key).collect();
    maps.lxc().delete_batch(&keys).step(step)?;
    removed += keys.len();

    let step = || "sweep the interface maps".to_owned();
    let unknown = |id: u32| id != 0 && !u16::try_from(id).is_ok_and(|id| known.contains(&id));
    // Only the hash: an array entry that refers to an unused settings entry drops packets just as an empty one does, so
    // a scan of 65,536 entries has no benefit.
    for (ifindex, _) in maps.ep_by_ifindex_hi().filter(|_, id| unknown(*id)).step(step)? {
        removed += usize::from(maps.ep_by_ifindex_hi().delete(&ifindex).step(step)?);
    }
    // Ids of creations that a crash has interrupted.
    let step = || "sweep the list of endpoints".to_owned();
    for id in maps.ep_ids().keys().step(step)?.into_iter().filter(|id| unknown(*id)) {
        removed += usize::from(maps.ep_ids().delete(&id).step(step)?);
    }
    Ok(removed)
}

/// Whether a pin belongs to an unknown endpoint, or is a policy map of an older layout.
fn is_leftover_pin(name: &str, known: &BTreeSet<u16>) -> bool {
    let of_unknown = |rest: &str| {
        let id = rest.parse::<u16>().ok().filter(|_| rest.len() == 5);
        !id.is_some_and(|id| known.contains(&id))
    };
    if let Some(rest) = name.strip_prefix(POLICY_PREFIX) {
        return of_unknown(rest);
    }
    if let Some(rest) = name.strip_prefix("cilium_calls_") {
        // Only those of endpoints: other arrays have words in their names.
        return rest.bytes().all(|b| b.is_ascii_digit()) && of_unknown(rest);
    }
    name.starts_with("cilium_policy_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_pins_are_those_of_unknown_endpoints() {
        let known = BTreeSet::from([135]);
        for (name, leftover) in [
            ("cilium_policy_v2_00135", false),
            ("cilium_policy_v2_00136", true),
            ("cilium_policy_v2_135", true),
            ("cilium_policy_00135", true),
            ("cilium_policystats", false),
            ("cilium_calls_00135", false),
            ("cilium_calls_00007", true),
            ("cilium_calls_hostns_00506", false),
            ("cilium_calls_shared_9", false),
            ("cilium_lxc", false),
            ("ep_policies", false),
        ] {
            assert_eq!(is_leftover_pin(name, &known), leftover, "{name}");
        }
    }
}

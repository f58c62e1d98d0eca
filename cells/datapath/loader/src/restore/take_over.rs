//! Endpoints that another agent has left: Cilium's, or those of an Apiary build with other layouts.
//!
//! Both keep their endpoints in `cilium_lxc` and pin a policy map for each. The settings entries that the programs of
//! this build need are derived from these before the first program is replaced, so that packets between endpoints with
//! new and with old programs are delivered throughout.

use std::collections::BTreeMap;

use datapath_abi::{EndpointConfig, EndpointInfo, EndpointKey, ep_flag, lxc_flag};

/// Returns the settings entries of the endpoints in `cilium_lxc`, ordered by id, with policy slot 0. They enable the
/// check of source addresses, until the options of the endpoint are known.
pub(crate) fn configs(lxc: &[(EndpointKey, EndpointInfo)]) -> Vec<EndpointConfig> {
    let mut configs: BTreeMap<u16, EndpointConfig> = BTreeMap::new();
    let (own, of_parents): (Vec<_>, Vec<_>) = lxc.iter().partition(|(_, info)| info.parent_ifindex == 0);
    for (key, info) in own.into_iter().chain(of_parents) {
        if info.flags & lxc_flag::HOST_DELIVERY != 0 || info.lxc_id == 0 {
            continue;
        }
        let config = configs.entry(info.lxc_id).or_insert(EndpointConfig {
            id: info.lxc_id.into(),
            identity: info.sec_id,
            ifindex: info.ifindex,
            flags: ep_flag::LIVE | ep_flag::SOURCE_CHECK,
            mac: info.mac,
            node_mac: info.node_mac,
            parent_ifindex: info.parent_ifindex,
            ..EndpointConfig::default()
        });
        // A secondary address of another interface.
        if config.ifindex != info.ifindex {
            continue;
        }
        match key.ip() {
            Some(std::net::IpAddr::V4(_)) => config.ipv4 = key.address[0],
            Some(std::net::IpAddr::V6(_)) => config.ipv6 = key.address,
            None => {}
        }
    }
    configs.into_values().collect()
}

/// Returns a slot for each policy map in `policies`, which are map ids of the kernel. `occupied` has the map id in each
/// slot in use: a map that an interrupted take-over has already put into a slot keeps it.
pub(crate) fn slots(policies: &[u32], occupied: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut next = occupied.keys().max().map_or(1, |last| last + 1);
    let mut slot_of = |policy: &u32| match occupied.iter().find(|(_, map)| *map == policy) {
        Some((slot, _)) => *slot,
        None => {
            next += 1;
            next - 1
        }
    };
    policies.iter().map(&mut slot_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ip: &str) -> EndpointKey {
        ip.parse::<std::net::IpAddr>().unwrap().into()
    }

    /// Entries of a real agent (cilium_lxc, 10.244.63.210 and the host's 10.99.0.1), the first with an IPv6 address
    /// added.
    #[test]
    fn both_addresses_of_an_endpoint_make_one_entry_and_the_host_none() {
        let info = EndpointInfo {
            ifindex: 11,
            lxc_id: 1644,
            mac: 0xad81_5cc0_feaa,
            node_mac: 0xe03a_b473_4aa2,
            sec_id: 0x5d85,
            ..EndpointInfo::default()
        };
        let host = EndpointInfo { flags: lxc_flag::HOST, ..EndpointInfo::default() };
        let secondary = EndpointInfo { ifindex: 12, parent_ifindex: 11, ..info };
        let lxc = [
            (key("10.244.63.210"), info),
            (key("10.99.0.1"), host),
            (key("fd00::d2"), info),
            (key("10.244.63.211"), secondary),
        ];
        let found = configs(&lxc);
        assert_eq!(found.len(), 1);
        let EndpointConfig { id, identity, ifindex, ipv4, ipv6, mac, policy_slot, .. } = found[0];
        assert_eq!((id, identity, ifindex, mac, policy_slot), (1644, 0x5d85, 11, info.mac, 0));
        assert_eq!((ipv4, ipv6), (key("10.244.63.210").address[0], key("fd00::d2").address));
        // A pod that its peers reach by a secondary interface of the node.
        let of_parent = EndpointInfo { parent_ifindex: 3, ..info };
        let found = configs(&[(key("10.244.63.210"), of_parent), (key("fd00::d2"), of_parent)]);
        assert_eq!((found.len(), found[0].parent_ifindex, found[0].ipv4), (1, 3, ipv4));
        assert_eq!(found[0].ipv6, ipv6);
    }

    #[test]
    fn an_interrupted_take_over_continues_with_the_same_slots() {
        assert_eq!(slots(&[70, 80], &BTreeMap::new()), [1, 2]);
        let occupied = BTreeMap::from([(1, 70), (2, 99)]);
        assert_eq!(slots(&[70, 80, 90], &occupied), [1, 3, 4]);
    }
}

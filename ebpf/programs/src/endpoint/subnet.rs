//! Subnets of one network: packets between their addresses need no tunnel.

use crate::maps::cilium_subnet_map;
use crate::packet::family::Family;
use datapath_abi::{NO_SUBNET, SubnetKey};

/// True if both addresses are in subnets of the same group: the network between nodes routes packets from one to the other.
#[inline(always)]
pub(crate) fn is_same<F: Family>(source: F::Address, destination: F::Address) -> bool {
    if !enabled!(hybrid) {
        return false;
    }
    let group = group_of::<F>(source);
    group != NO_SUBNET && group == group_of::<F>(destination)
}

#[inline(always)]
fn group_of<F: Family>(address: F::Address) -> u32 {
    let prefixlen = SubnetKey::STATIC_BITS + F::BITS;
    let key = SubnetKey { prefixlen, pad0: 0, pad1: 0, family: F::NUMBER, address: F::words(address) };
    match cilium_subnet_map.get(&key) {
        Some(group) => *group,
        None => NO_SUBNET,
    }
}

//! Packets of VLANs at the devices below them: the kernel has taken the tag out of the packet, which would look like one of
//! the device's own network.

use crate::config::NODE_CONFIG;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::packet::skb::{PASS, Skb};
use datapath_abi::{NodeConfig, file, vlan_filter};

const FILE: u8 = file::BPF_HOST;

/// Returns the verdict of a packet of a VLAN, which is passed as it is or dropped; `None` for any other packet.
#[inline(always)]
pub(super) fn filter(skb: Skb, direction: u8) -> Option<i32> {
    if !enabled!(vlan_filter) {
        return None;
    }
    // Zero is the tag of a priority without a VLAN.
    let id = skb.vlan();
    if id == 0 {
        return None;
    }
    if node!(vlan_filter) == vlan_filter::ALL || is_listed(id) {
        return Some(PASS);
    }
    let why: Drop = drop_here!(VLAN_FILTERED);
    let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
    Some(dropped(skb, why, direction, parties))
}

#[inline(always)]
fn is_listed(id: u16) -> bool {
    let listed = (&raw const NODE_CONFIG.vlans).cast::<u16>();
    for at in 0..NodeConfig::VLANS {
        // SAFETY: within the array of an initialized static; volatile, as the macro's reads.
        if unsafe { core::ptr::read_volatile(listed.add(at)) } == id {
            return true;
        }
    }
    false
}

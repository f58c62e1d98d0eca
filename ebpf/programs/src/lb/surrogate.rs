//! Services at the addresses of all nodes: an entry with the address zero stands for the port of each of them.
//!
//! This node's own addresses have entries, but not those of other nodes. A pod that asks another node is sent to the
//! backend at once. The connection's entry has the original destination, as the service's reverse translation lacks it.

use super::*;
use crate::endpoint::ipcache;
use crate::lb::pods::{self, Service};
use datapath_abi::{identity, ipcache_flag, lb_flag2, lb_scope};

/// Number of words of an address in the context: `cb[0]` on.
const WORDS: usize = 4;

/// Looks up the service of a port of a node. A connection that is known by this destination stays untranslated.
#[inline(always)]
pub(crate) fn lookup<F: Services>(
    flow: &Flow<F::Address>,
    key: &mut LbServiceKey<F::Address>,
) -> Option<&'static LbService> {
    let receiver = ipcache::lookup::<F>(flow.destination)?;
    let port = u16::from_be(flow.dport);
    let node_port = port >= node!(nodeport_min) && port <= node!(nodeport_max);
    let is_other_node =
        ipcache::is_remote_node(receiver.sec_identity) && receiver.flags & ipcache_flag::REMOTE_CLUSTER == 0;
    if receiver.sec_identity != identity::HOST && !(node_port && is_other_node) {
        return None;
    }
    if conntrack::nodeport::is_direct::<F>(flow) {
        return None;
    }
    key.address = F::from_words([0; 4]);
    key.scope = lb_scope::EXTERNAL;
    let service = pods::lookup::<F>(key)?;
    let kind = if node_port { lb_flag::NODE_PORT } else { lb_flag::HOST_PORT };
    // A port for the node's loopback address only.
    let only_loopback = !node_port && service.flags2 & lb_flag2::LOOPBACK != 0;
    if service.flags & kind == 0 || only_loopback { None } else { Some(service) }
}

/// Stores the original destination in the context for the next program.
#[inline(always)]
pub(crate) fn hand_over<F: Services>(skb: Skb, destination: F::Address) {
    let words = F::words(destination);
    skb.set_cb(0, words[0]);
    skb.set_cb(1, words[1]);
    skb.set_cb(2, words[2]);
    skb.set_cb(3, words[3]);
}

/// Takes the original destination out of the context; zero if the service was not found by its port alone.
#[inline(always)]
pub(crate) fn take(skb: Skb, service: Service) -> [u32; WORDS] {
    if !enabled!(nodeport) || !service.surrogate {
        return [0; WORDS];
    }
    let words = [skb.cb(0), skb.cb(1), skb.cb(2), skb.cb(3)];
    skb.set_cb(0, 0);
    skb.set_cb(1, 0);
    skb.set_cb(2, 0);
    skb.set_cb(3, 0);
    words
}

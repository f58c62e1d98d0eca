//! Which service a destination is.

use datapath_abi::{
    LbService, LbServiceKey, RemoteEndpointInfo, identity, ipcache_flag, lb_flag, lb_flag2, lb_scope,
};

use crate::family::{Family, row};
use crate::maps::cilium_ipcache_v2;

/// Returns the key of a frontend for clients outside of the cluster, which is the first one to look up.
#[inline(always)]
pub(crate) fn key<F: Family>(address: F::Address, dport: u16, proto: u8) -> LbServiceKey<F::Address> {
    LbServiceKey { address, dport, backend_slot: 0, proto, scope: lb_scope::EXTERNAL, pad: [0; 2] }
}

/// Returns the entry of a frontend for clients inside of the cluster; the key is then that of the entry.
#[inline(always)]
pub(crate) fn of_frontend<F: Family>(key: &mut LbServiceKey<F::Address>) -> Option<&'static LbService> {
    let service = row(&F::services(), key)?;
    if service.flags2 & lb_flag2::TWO_SCOPES == 0 {
        return Some(service);
    }
    key.scope = lb_scope::INTERNAL;
    row(&F::services(), key)
}

/// Returns the service of a destination: that of its address, else that of a port of the node.
#[inline(always)]
pub(crate) fn of_destination<F: Family>(
    key: &mut LbServiceKey<F::Address>,
    in_host: impl Fn() -> bool,
) -> Option<&'static LbService> {
    let address = key.address;
    if let Some(service) = of_frontend::<F>(key) {
        return Some(service);
    }
    let is_node_port = is_node_port(key.dport);
    let is_loopback = F::is_loopback(address);
    let applies = if is_loopback { in_host() } else { is_node::<F>(address, is_node_port) };
    if !applies {
        return None;
    }
    key.address = F::ANY;
    key.scope = lb_scope::EXTERNAL;
    let service = of_frontend::<F>(key)?;
    if is_node_port {
        return (service.flags & lb_flag::NODE_PORT != 0).then_some(service);
    }
    let only_loopback = service.flags2 & lb_flag2::LOOPBACK != 0;
    (service.flags & lb_flag::HOST_PORT != 0 && (is_loopback || !only_loopback)).then_some(service)
}

/// True for a port of the range of NodePort services; `port` as on the wire.
#[inline(always)]
pub(crate) fn is_node_port(port: u16) -> bool {
    let port = port.to_be();
    port >= setting!(node_port_first) && port <= setting!(node_port_last)
}

#[inline(always)]
fn lookup<F: Family>(address: F::Address) -> Option<&'static RemoteEndpointInfo> {
    cilium_ipcache_v2.get(&F::ipcache_key(address))
}

/// True for addresses of this node, and with `or_remote` for those of other nodes of this cluster.
#[inline(always)]
fn is_node<F: Family>(address: F::Address, or_remote: bool) -> bool {
    const REMOTE_NODE_SCOPE: u32 = 2;
    let Some(info) = lookup::<F>(address) else { return false };
    let label = info.sec_identity;
    if label == identity::HOST {
        return true;
    }
    let is_remote =
        matches!(label, identity::REMOTE_NODE | identity::KUBE_APISERVER) || label >> 24 == REMOTE_NODE_SCOPE;
    or_remote && is_remote && info.flags & ipcache_flag::REMOTE_CLUSTER == 0
}

/// True for addresses of this node.
#[inline(always)]
pub(crate) fn is_host_address<F: Family>(address: F::Address) -> bool {
    is_node::<F>(address, false)
}

/// True if a proxy of this node serves it.
#[inline(always)]
pub(crate) fn is_l7(service: &LbService) -> bool {
    service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0
}

/// True if it is translated by another agent on this node.
#[inline(always)]
pub(crate) fn is_delegated(service: &LbService) -> bool {
    service.flags2 & lb_flag2::LOOPBACK != 0 && service.flags & lb_flag::HOST_PORT == 0
}

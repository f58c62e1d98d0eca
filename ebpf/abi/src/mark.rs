//! Metadata of a packet: `skb->mark`, `skb->cb`, `skb->tc_index` (constants: mark, cb_delivery_flag, tc_index).

/// The bits of the mark that encode its kind.
pub const MAGIC_MASK: u32 = 0x0f00;
/// To the proxy; its port in the upper half. Also carries a cluster id.
pub const TO_PROXY: u32 = 0x0200;
/// Masqueraded already.
pub const SNAT_DONE: u32 = 0x0300;
/// Encapsulated.
pub const OVERLAY: u32 = 0x0400;
/// Through an egress gateway already.
pub const EGW_DONE: u32 = 0x0500;
/// Not for the transparent proxy.
pub const SKIP_TPROXY: u32 = 0x0800;
/// From the egress proxy; the endpoint id in the upper half.
pub const PROXY_EGRESS_EPID: u32 = 0x0900;
/// From the ingress proxy, with the source identity.
pub const PROXY_INGRESS: u32 = 0x0a00;
/// From the egress proxy, with the source identity.
pub const PROXY_EGRESS: u32 = 0x0b00;
/// From the host.
pub const HOST: u32 = 0x0c00;
/// Decrypted, or to be decrypted.
pub const DECRYPT: u32 = 0x0d00;
/// Of a socket of health probes, until it connects (`bpf-lb-ipip-sock-mark`); packets do not have it.
pub const PROBE: u32 = 0x0d00;
/// To be encrypted.
pub const ENCRYPT: u32 = 0x0e00;
/// Carries the source identity.
pub const IDENTITY: u32 = 0x0f00;

/// Returns the mark `magic` with an identity: its low 16 bits in the upper half, its cluster bits in the low byte.
#[inline(always)]
pub const fn with_identity(magic: u32, identity: u32) -> u32 {
    magic | (identity & 0xffff) << 16 | (identity >> 16) & 0xff
}

/// Returns the mark of a packet to the proxy at a port as on the wire; 0 for the socket that the packet belongs to.
#[inline(always)]
pub const fn to_proxy(port: u16) -> u32 {
    TO_PROXY | (port as u32) << 16
}

/// Returns the identity in a mark that carries one.
#[inline(always)]
pub const fn identity(mark: u32) -> u32 {
    (mark & 0xff) << 16 | mark >> 16
}

/// `cb[4]` between the programs of a pod's egress: the service that a packet was sent to. Cleared before delivery.
pub mod service_state {
    /// The slot.
    pub const SLOT: usize = 4;
    /// The pod sent the packet to itself.
    pub const LOOPBACK: u32 = 1;
    /// The service was found by its port alone; `cb[0]` to `cb[3]` have the packet's original destination.
    pub const SURROGATE: u32 = 2;
    /// A proxy has the service's packets: its big-endian port is in the place of the id.
    pub const PROXY: u32 = 4;
    /// Shift of the service's big-endian id.
    pub const REV_NAT_SHIFT: u32 = 16;
}

/// Slots of `skb->cb` on the way into `cil_lxc_policy`.
pub mod cb {
    /// Source identity.
    pub const SRC_LABEL: usize = 0;
    /// [`delivery`](super::delivery) flags; our shared programs keep the endpoint id in the upper half.
    pub const DELIVERY_FLAGS: usize = 1;
    /// Cluster id of the source.
    pub const CLUSTER_ID: usize = 2;
    /// Non-zero if the packet came from the host.
    pub const FROM_HOST: usize = 3;
    /// Non-zero if the packet came from the tunnel.
    pub const FROM_TUNNEL: usize = 4;
}

/// Bits of `cb[1]` on the way into `cil_lxc_policy` (constants: cb_delivery_flag).
pub mod delivery {
    /// Redirect to the endpoint when policy allows.
    pub const REDIRECT: u32 = 1;
    /// The packet comes from the host.
    pub const FROM_HOST: u32 = 2;
    /// The packet comes from the tunnel.
    pub const FROM_TUNNEL: u32 = 4;
    /// Redirect into the pod's namespace, bypassing the host side of the veth (`bpf_redirect_peer`).
    pub const USE_REDIRECT_PEER: u32 = 8;
    /// From the ingress proxy.
    pub const FROM_INGRESS_PROXY: u32 = 16;
    /// From the egress proxy.
    pub const FROM_EGRESS_PROXY: u32 = 32;
    /// Shift of the destination endpoint's id, which our shared programs store here.
    pub const ENDPOINT_SHIFT: u32 = 16;
}

/// Bits of `skb->tc_index` (constants: tc_index).
pub mod tc_index {
    /// From the ingress proxy.
    pub const FROM_INGRESS_PROXY: u32 = 1;
    /// From the egress proxy.
    pub const FROM_EGRESS_PROXY: u32 = 2;
    /// No NodePort handling.
    pub const SKIP_NODEPORT: u32 = 4;
    /// No health check handling.
    pub const SKIP_HEALTH_CHECK: u32 = 8;
    /// No host firewall.
    pub const SKIP_HOST_FIREWALL: u32 = 16;
}

/// Flags in the metadata that programs of XDP give a packet for those of its device (constants: xdp_xfer).
pub mod xdp_transfer {
    /// The packet was translated to a backend: it only has to be delivered.
    pub const NO_SERVICE: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_survives_the_mark() {
        for id in [0, 1, 5, 0xffff, 0x0001_0000, 0x00ff_ffff] {
            let mark = with_identity(IDENTITY, id);
            assert_eq!(mark & MAGIC_MASK, IDENTITY);
            assert_eq!(identity(mark & !MAGIC_MASK), id);
        }
        assert_eq!(with_identity(IDENTITY, 0x0012_3456), 0x3456_0f12);
    }
}

//! A namespace of which the default routes leave by a device.

use anyhow::Result;
use test_kit::NetNs;

/// The index of the device.
pub(crate) const UPLINK: u32 = 40;

/// Returns a namespace with a route to clients by way of a next hop without a MAC address.
pub(crate) fn routed() -> Result<NetNs> {
    let ns = NetNs::detached()?;
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        ns.set_sysctl(key, "1")?;
    }
    ns.ip_batch(&format!(
        "link add out0 index {UPLINK} type veth peer name out1
         link set out1 up
         link set out0 up
         addr add 203.0.113.1/24 dev out0
         addr add 2001:db8:1::1/64 dev out0 nodad
         route add default via 203.0.113.9
         route add default via 2001:db8:1::9"
    ))?;
    Ok(ns)
}

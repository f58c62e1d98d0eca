//! The node's addresses, and the primary ones among them.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::tables::MappedIp;
use crate::{Device, DeviceAddress, HOST_DEVICE, Route, SCOPE_HOST, SCOPE_LINK};

/// Device name of the addresses of the node as a whole.
pub const WILDCARD_DEVICE: &str = "*";

/// Options that decide about node addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddressRules {
    /// `nodeport-addresses`: ranges on which NodePort services answer; empty for the
    /// best address of each device and family.
    pub node_port_ranges: Vec<IpNetwork>,
    /// `local-max-addr-scope`: the greatest scope (nearest to the host) of the node's addresses.
    pub scope_max: u8,
}

impl NodeAddressRules {
    fn in_node_port_range(&self, ip: IpAddr) -> bool {
        self.node_port_ranges.iter().any(|range| range.contains(ip))
    }
}

impl Default for NodeAddressRules {
    fn default() -> Self {
        Self { node_port_ranges: Vec::new(), scope_max: SCOPE_HOST }
    }
}

/// A row of table `node-addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"))]
pub struct NodeAddress {
    /// The address.
    pub addr: IpAddr,
    /// Whether NodePort services answer on it.
    #[serde(default, rename(serialize = "NodePort", deserialize = "nodeport"))]
    pub node_port: bool,
    /// Whether it is the device's source address, for instance of masqueraded packets.
    #[serde(default)]
    pub primary: bool,
    /// The device, or [`WILDCARD_DEVICE`].
    #[serde(default, rename(serialize = "DeviceName", deserialize = "devicename"))]
    pub device_name: String,
}

impl NodeAddress {
    /// Column names of table `node-addresses`.
    pub const COLUMNS: &[&str] = &["Address", "NodePort", "Primary", "DeviceName"];

    /// Returns the row's columns in the order of [`COLUMNS`](Self::COLUMNS).
    #[must_use]
    pub fn row(&self) -> Vec<String> {
        vec![
            self.addr.to_string(),
            self.node_port.to_string(),
            self.primary.to_string(),
            self.device_name.clone(),
        ]
    }
}

/// Derives the node's addresses from its devices and from the routes of table `local`. Sorted by address, then device.
#[must_use]
pub fn node_addresses<'r>(
    devices: &[&Device],
    local_routes: impl Iterator<Item = &'r Route>,
    rules: &NodeAddressRules,
) -> Vec<NodeAddress> {
    let mut rows = BTreeMap::new();
    let mut insert = |row: NodeAddress| {
        let key = (MappedIp::from(row.addr), row.device_name.clone());
        rows.insert(key, row);
    };
    let mut known = HashSet::new();
    let mut fallback: [Option<(&Device, &DeviceAddress)>; 2] = [None, None];
    for device in devices.iter().filter(|d| is_included(d)) {
        for row in of_device(device, rules) {
            known.insert(row.addr);
            insert(row);
        }
        if device.name.starts_with("lxc") || device.name == HOST_DEVICE {
            continue;
        }
        for addr in device.addrs.iter().filter(|a| !a.secondary) {
            let best = &mut fallback[usize::from(addr.addr.is_ipv6())];
            let candidate = (*device, addr);
            if best.is_none_or(|best| rank(candidate) < rank(best)) {
                *best = Some(candidate);
            }
        }
    }
    // Some clouds assign addresses to a node by a local route alone, without an address on a device.
    for route in local_routes {
        let ip = route.key.dst.ip();
        let plain = route.scope == SCOPE_HOST && route.src.is_none();
        if !plain || ip.is_unspecified() || ip.is_loopback() || known.contains(&ip) {
            continue;
        }
        let device = devices.iter().find(|d| d.index == route.key.link_index);
        if let Some(device) = device.filter(|d| is_included(d)) {
            known.insert(ip);
            insert(NodeAddress {
                addr: ip,
                node_port: device.name != HOST_DEVICE && rules.in_node_port_range(ip),
                primary: true,
                device_name: device.name.clone(),
            });
        }
    }
    for (_, addr) in fallback.into_iter().flatten() {
        insert(NodeAddress {
            addr: addr.addr,
            node_port: false,
            primary: true,
            device_name: WILDCARD_DEVICE.to_owned(),
        });
    }
    rows.into_values().collect()
}

/// Returns the rank of a candidate for the node's own address, best first.
fn rank((device, addr): (&Device, &DeviceAddress)) -> impl Ord {
    (!device.selected, !is_public(addr.addr), addr.scope, device.index, addr.addr)
}

/// Whether the device's addresses are the node's. Dummy devices are included even while they are down: node-local DNS
/// has its address on one.
fn is_included(device: &Device) -> bool {
    let dummy = device.kind == "dummy";
    (device.is_up() || dummy)
        && (device.selected || dummy || device.name == HOST_DEVICE || device.name == "lo")
}

fn of_device(device: &Device, rules: &NodeAddressRules) -> Vec<NodeAddress> {
    let host_device = device.name == HOST_DEVICE;
    let mut sorted: Vec<&DeviceAddress> = device.addrs.iter().collect();
    sorted.sort_by_key(|a| (a.secondary, a.scope, !is_public(a.addr), a.addr));

    let mut rows: Vec<NodeAddress> = Vec::with_capacity(sorted.len());
    // Indexes of the first public and the first private row, by family.
    let mut public = [None, None];
    let mut private = [None, None];
    for addr in sorted {
        let link_local = matches!(addr.addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_too_near = addr.scope > rules.scope_max;
        // As in Cilium: addresses of cilium_host with the scope link are the node's, whatever the maximum is.
        let is_router = host_device && addr.scope == SCOPE_LINK;
        if (addr.addr.is_loopback() || is_too_near) && !is_router {
            continue;
        }
        if !link_local {
            let family = usize::from(addr.addr.is_ipv6());
            let first = if is_public(addr.addr) { &mut public[family] } else { &mut private[family] };
            first.get_or_insert(rows.len());
        }
        rows.push(NodeAddress {
            addr: addr.addr,
            node_port: !host_device && rules.in_node_port_range(addr.addr),
            primary: false,
            device_name: device.name.clone(),
        });
    }
    for family in 0..2 {
        if rules.node_port_ranges.is_empty()
            && !host_device
            && device.is_up()
            && let Some(row) = private[family].or(public[family])
        {
            rows[row].node_port = true;
        }
        if let Some(row) = public[family].or(private[family]) {
            rows[row].primary = true;
        }
    }
    rows
}

/// Whether an address is not loopback, not link-local and not of a private range.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_private()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unique_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, device::IFF_UP};

    fn device(index: u32, name: &str, selected: bool, addrs: &[(&str, u8)]) -> Device {
        let address = |(text, scope): &(&str, u8)| DeviceAddress {
            addr: text.parse().unwrap(),
            secondary: false,
            scope: *scope,
            prefix_len: 24,
        };
        Device {
            link: Link {
                index,
                name: name.into(),
                kind: "veth".into(),
                raw_flags: IFF_UP,
                ..Link::default()
            },
            addrs: addrs.iter().map(address).collect(),
            selected,
            not_selected_reason: String::new(),
        }
    }

    fn show(devices: &[Device], ranges: &[&str]) -> Vec<String> {
        let devices: Vec<&Device> = devices.iter().collect();
        let rules = NodeAddressRules {
            node_port_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
            ..NodeAddressRules::default()
        };
        let rows = node_addresses(&devices, [].iter(), &rules);
        rows.iter().map(|row| row.row().join(" ")).collect()
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn same_rows_as_the_recorded_run() {
        let devices = [
            device(1, "lo", false, &[("127.0.0.1", 254), ("::1", 254)]),
            device(2, "ext0", true, &[("10.99.0.1", 0), ("fe80::8426:5cff:fe9a:729b", 253)]),
            device(3, "cilium_net", false, &[("fe80::a4a1:a0ff:febc:e9e4", 253)]),
            device(4, "cilium_host", false, &[("10.244.71.14", 0), ("fe80::ec0d:10ff:fef1:d7c8", 253)]),
            device(9, "lxc66da2a01a005", false, &[("fe80::bc5e:28ff:fe23:aba6", 253)]),
        ];
        assert_eq!(
            show(&devices, &[]),
            [
                "10.99.0.1 false true *",
                "10.99.0.1 true true ext0",
                "10.244.71.14 false true cilium_host",
                "fe80::8426:5cff:fe9a:729b false true *",
                "fe80::8426:5cff:fe9a:729b false false ext0",
                "fe80::ec0d:10ff:fef1:d7c8 false false cilium_host",
            ]
        );
    }

    #[test]
    fn node_ports_prefer_private_masquerading_prefers_public() {
        let devices = [
            device(2, "eth0", true, &[("192.168.1.5", 0), ("8.8.4.4", 0), ("2001:db8::1", 0)]),
            device(3, "eth1", false, &[("1.1.1.1", 0)]),
        ];
        assert_eq!(
            show(&devices, &[]),
            [
                "8.8.4.4 false true *",
                "8.8.4.4 false true eth0",
                "192.168.1.5 true false eth0",
                "2001:db8::1 false true *",
                "2001:db8::1 true true eth0",
            ]
        );
        let ranged = show(&devices, &["8.0.0.0/8"]);
        assert!(ranged.contains(&"8.8.4.4 true true eth0".to_owned()), "{ranged:?}");
        assert!(ranged.contains(&"192.168.1.5 false false eth0".to_owned()), "{ranged:?}");
    }

    #[test]
    fn a_local_route_without_source_is_an_address() {
        let devices = [device(2, "eth0", true, &[("192.168.1.5", 0)])];
        let route = |dst: &str, src: Option<IpAddr>| Route {
            key: crate::RouteKey {
                table: crate::TABLE_LOCAL,
                link_index: 2,
                dst: dst.parse().unwrap(),
                priority: 0,
            },
            kind: 2,
            scope: SCOPE_HOST,
            src,
            gateway: None,
            mtu: 0,
        };
        let routes = [route("192.168.1.5/32", Some([192, 168, 1, 5].into())), route("34.1.2.3/32", None)];
        let devices: Vec<&Device> = devices.iter().collect();
        let rows = node_addresses(&devices, routes.iter(), &NodeAddressRules::default());
        let rows: Vec<String> = rows.iter().map(|row| row.row().join(" ")).collect();
        assert!(rows.contains(&"34.1.2.3 false true eth0".to_owned()), "{rows:?}");
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn a_node_without_selected_devices_still_has_an_address() {
        let devices = [device(1, "lo", false, &[("127.0.0.1", 254)])];
        assert_eq!(show(&devices, &[]), ["127.0.0.1 false true *"]);
    }
}

//! The features that process packets on their way out of the node's devices.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use datapath_abi::{MasqueradeAddresses, NodeConfig, ipv4_word, ipv6_words};
use devices::{Device, NodeAddress, Selection, WILDCARD_DEVICE};
use hive::Settings;
use ipnetwork::IpNetwork;
use local_node::LocalNode;
use maps::FamilyConfig;
use masquerade::MasqueradeConfig;
use tunnel::Family;

use crate::programs::direct_return::DirectReturn;
use crate::programs::ipip::Ipip;
use crate::programs::nat46x64::Translation;

/// The ports of NodePort services without `node-port-range`.
const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// The features that need `cil_to_netdev` on the devices of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EgressFeatures {
    /// IPv4 packets of pods are masqueraded by the programs.
    masquerade_ipv4: bool,
    /// IPv6 packets of pods are masqueraded by the programs.
    masquerade_ipv6: bool,
    /// The range of IPv4 destinations that are not masqueraded, the node's pods if there is none.
    native_ipv4: Option<IpNetwork>,
    /// The same for IPv6.
    native_ipv6: Option<IpNetwork>,
    /// Ranges of a file are not masqueraded; without an option's range the node's pods are none.
    ip_masq_agent: bool,
    /// Packets to other nodes are masqueraded.
    remote_node_masquerade: bool,
    /// Devices serve frontends of services (`kube-proxy-replacement`).
    nodeport: bool,
    /// Devices that may be the direct-routing device (`direct-routing-device`).
    direct_routing: Selection,
    /// The first and the last port of services at nodes (`node-port-range`). Translations have the ports behind them.
    node_ports: (u16, u16),
    /// Packets to backends of other nodes have the source of their route (`enable-dynamic-source-lookup-nodeport`).
    dynamic_source: bool,
    /// How backends of other nodes reply to clients (`bpf-lb-mode`).
    direct_return: DirectReturn,
    /// Outer headers of packets to and from the network.
    pub(crate) ipip: Ipip,
    /// Packets that change the IP family.
    translation: Translation,
}

impl EgressFeatures {
    pub(crate) fn new(families: &FamilyConfig, masquerade: &MasqueradeConfig, settings: &Settings) -> Self {
        let value = |option: &str| settings.get(option).map(|setting| setting.value.clone());
        let native = |family| masquerade.native_routing_cidr(family).unwrap_or_default();
        Self {
            masquerade_ipv4: families.enable_ipv4 && masquerade.is_in_bpf(Family::Ipv4),
            masquerade_ipv6: families.enable_ipv6 && masquerade.is_in_bpf(Family::Ipv6),
            native_ipv4: native(Family::Ipv4),
            native_ipv6: native(Family::Ipv6),
            ip_masq_agent: masquerade.enable_ip_masq_agent,
            remote_node_masquerade: masquerade.enable_remote_node_masquerade,
            direct_routing: Selection {
                filter: value("direct-routing-device")
                    .into_iter()
                    .filter(|value| !value.is_empty())
                    .collect(),
                force_detection: false,
            },
            nodeport: value("kube-proxy-replacement").is_some_and(|value| value == "true"),
            node_ports: value("node-port-range").and_then(|range| node_ports(&range)).unwrap_or(NODE_PORTS),
            dynamic_source: value("enable-dynamic-source-lookup-nodeport")
                .is_some_and(|value| value == "true"),
            direct_return: DirectReturn::default(),
            ipip: Ipip::default(),
            translation: Translation::default(),
        }
    }

    pub(crate) fn with_direct_return(self, direct_return: DirectReturn) -> Self {
        Self { direct_return, ..self }
    }

    pub(crate) fn with_ipip(self, ipip: Ipip) -> Self {
        Self { ipip, ..self }
    }

    pub(crate) fn with_translation(self, translation: Translation) -> Self {
        Self { translation, ..self }
    }

    /// Writes the switches into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        constants.masquerade_ipv4 = self.masquerade_ipv4.into();
        constants.masquerade_ipv6 = self.masquerade_ipv6.into();
        constants.nodeport = self.nodeport.into();
        if self.is_masquerading() {
            constants.ip_masq_agent = self.ip_masq_agent.into();
            constants.remote_node_masquerade = self.remote_node_masquerade.into();
        }
        if self.is_masquerading() || self.nodeport {
            constants.snat_min_port = self.node_ports.1.saturating_add(1);
        }
        self.ipip.apply(constants);
        if self.nodeport {
            (constants.nodeport_min, constants.nodeport_max) = self.node_ports;
            constants.dynamic_source = self.dynamic_source.into();
            self.direct_return.apply(constants);
            self.translation.apply(constants);
        }
    }

    /// Whether programs must not be loaded before the ranges of ip-masq-agent are in the maps.
    pub(crate) fn needs_ranges(&self) -> bool {
        self.is_masquerading() && self.ip_masq_agent
    }

    fn is_masquerading(&self) -> bool {
        self.masquerade_ipv4 || self.masquerade_ipv6
    }

    /// Returns the row of `ep_masquerade` for the node: the first addresses of the direct-routing device. That of IPv6 is
    /// one of the link only if there is no other.
    pub(crate) fn direct_routing_row(
        &self,
        devices: &[&Device],
        node: &LocalNode,
    ) -> Option<MasqueradeAddresses> {
        if !self.nodeport {
            return None;
        }
        let device = self.direct_routing_device(devices, node);
        let addresses = || device.into_iter().flat_map(|device| &device.addrs).map(|address| address.addr);
        let ipv4 = addresses().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        let ipv6 = || {
            addresses().filter_map(|ip| match ip {
                IpAddr::V6(ip) => Some(ip),
                IpAddr::V4(_) => None,
            })
        };
        let ipv6 = ipv6().find(|ip| !ip.is_unicast_link_local()).or_else(|| ipv6().next());
        Some(MasqueradeAddresses {
            ipv4: ipv4.map_or(0, ipv4_word),
            ipv6: ipv6.map_or([0; 4], ipv6_words),
            ..MasqueradeAddresses::default()
        })
    }

    /// Returns the device of packets to other nodes: that of the option, the only one, or the one with the node's address.
    fn direct_routing_device<'a>(&self, devices: &[&'a Device], node: &LocalNode) -> Option<&'a Device> {
        if let Some(device) = devices.iter().find(|device| self.direct_routing.lists(device)) {
            return Some(device);
        }
        if let ([device], true) = (devices, self.direct_routing.filter.is_empty()) {
            return Some(device);
        }
        let own = [node.ipv4.map(IpAddr::V4), node.ipv6.map(IpAddr::V6)];
        let has = |device: &Device, ip: IpAddr| device.addrs.iter().any(|address| address.addr == ip);
        own.into_iter().flatten().find_map(|ip| devices.iter().find(|device| has(device, ip)).copied())
    }

    /// Returns the rows of `ep_masquerade`: the primary address of each device (name, index), else the node's. A link-local address
    /// cannot be that of packets that leave the link.
    pub(crate) fn masquerade_rows<'a>(
        &self,
        devices: impl IntoIterator<Item = (&'a str, u32)>,
        addresses: &[&NodeAddress],
        node: &LocalNode,
    ) -> BTreeMap<u32, MasqueradeAddresses> {
        if !self.is_masquerading() {
            return BTreeMap::new();
        }
        let primary = |device: &str| {
            let rows = addresses.iter().filter(|row| row.primary && row.device_name == device);
            rows.map(|row| row.addr).collect::<Vec<IpAddr>>()
        };
        let fallback = primary(WILDCARD_DEVICE);
        let pods_ipv4 = node.ipv4_alloc_cidr.filter(|_| !self.ip_masq_agent);
        let pods_ipv6 = node.ipv6_alloc_cidr.filter(|_| !self.ip_masq_agent);
        let excluded_ipv4 = self.native_ipv4.or(pods_ipv4.map(IpNetwork::V4));
        let excluded_ipv6 = self.native_ipv6.or(pods_ipv6.map(IpNetwork::V6));
        let row = |name: &str| {
            let own = primary(name);
            let all = || own.iter().chain(&fallback);
            let ipv4 = all().find_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            });
            let ipv6 = all().find_map(|ip| match ip {
                IpAddr::V6(ip) if !ip.is_unicast_link_local() => Some(*ip),
                _ => None,
            });
            let mut row = MasqueradeAddresses {
                ipv4: ipv4.map_or(0, ipv4_word),
                ipv6: ipv6.map_or([0; 4], ipv6_words),
                // No address is in a range with bits outside of its mask.
                excluded_ipv4: ipv4_word(Ipv4Addr::BROADCAST),
                excluded_ipv6: [u32::MAX; 4],
                ..MasqueradeAddresses::default()
            };
            if let Some(IpNetwork::V4(range)) = excluded_ipv4 {
                row.excluded_ipv4 = ipv4_word(range.network());
                row.excluded_ipv4_mask = ipv4_word(range.mask());
            }
            if let Some(IpNetwork::V6(range)) = excluded_ipv6 {
                row.excluded_ipv6 = ipv6_words(range.network());
                row.excluded_ipv6_mask = ipv6_words(range.mask());
            }
            row
        };
        devices.into_iter().map(|(name, ifindex)| (ifindex, row(name))).collect()
    }
}

/// Whether programs with these constants process packets that leave by the devices of the node.
pub(crate) fn is_needed(constants: &NodeConfig) -> bool {
    is_masquerading(constants) || constants.nodeport != 0 || constants.host_firewall != 0
}

/// Whether programs with these constants translate sources of IPv4 packets: of pods, or of clients of services.
pub(crate) fn is_translating_ipv4(constants: &NodeConfig) -> bool {
    constants.masquerade_ipv4 != 0 || constants.nodeport != 0 && constants.enable_ipv4 != 0
}

/// The same for IPv6.
pub(crate) fn is_translating_ipv6(constants: &NodeConfig) -> bool {
    constants.masquerade_ipv6 != 0 || constants.nodeport != 0 && constants.enable_ipv6 != 0
}

/// Returns the families for which the node has no direct-routing address, in words; `None` if it has them.
pub(crate) fn unaddressed(node: &MasqueradeAddresses, constants: &NodeConfig) -> Option<&'static str> {
    let no_ipv4 = constants.enable_ipv4 != 0 && node.ipv4 == 0;
    let no_ipv6 = constants.enable_ipv6 != 0 && node.ipv6 == [0; 4];
    match (no_ipv4, no_ipv6) {
        (true, true) => Some("IPv4 and IPv6"),
        (true, false) => Some("IPv4"),
        (false, true) => Some("IPv6"),
        (false, false) => None,
    }
}

/// Whether programs with these constants masquerade.
pub(crate) fn is_masquerading(constants: &NodeConfig) -> bool {
    (constants.masquerade_ipv4 | constants.masquerade_ipv6) != 0
}

/// Parses the value of `node-port-range`, which its owner has checked: the first and the last port.
fn node_ports(value: &str) -> Option<(u16, u16)> {
    let (first, last) = value.split_once([',', '-'])?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use devices::DeviceAddress;

    use super::*;

    #[test]
    fn node_ports_are_constants_only_if_programs_need_them() {
        let constants = |masquerade_ipv4, nodeport| {
            let mut constants = NodeConfig::default();
            let node_ports = node_ports("30000, 31000").unwrap();
            EgressFeatures { masquerade_ipv4, nodeport, node_ports, ..EgressFeatures::default() }
                .apply(&mut constants);
            [constants.snat_min_port, constants.nodeport_min, constants.nodeport_max]
        };
        assert_eq!(constants(false, true), [31_001, 30_000, 31_000]);
        assert_eq!(constants(true, false), [31_001, 0, 0]);
        assert_eq!(node_ports("30000"), None);
    }

    #[test]
    fn sources_of_routes_are_a_constant_only_of_services() {
        let constant = |nodeport| {
            let mut constants = NodeConfig::default();
            EgressFeatures { nodeport, dynamic_source: true, ..EgressFeatures::default() }
                .apply(&mut constants);
            constants.dynamic_source
        };
        assert_eq!((constant(true), constant(false)), (1, 0));
    }

    #[test]
    fn options_of_masquerading_are_constants_with_it() {
        let constants = |masquerade_ipv4| {
            let mut constants = NodeConfig::default();
            let (ip_masq_agent, remote_node_masquerade) = (true, true);
            EgressFeatures {
                masquerade_ipv4,
                ip_masq_agent,
                remote_node_masquerade,
                ..EgressFeatures::default()
            }
            .apply(&mut constants);
            [constants.ip_masq_agent, constants.remote_node_masquerade]
        };
        assert_eq!((constants(true), constants(false)), ([1, 1], [0, 0]));
    }

    fn features() -> EgressFeatures {
        EgressFeatures { masquerade_ipv4: true, masquerade_ipv6: true, ..EgressFeatures::default() }
    }

    fn rows(features: &EgressFeatures, addresses: &[(&str, &str, bool)]) -> Vec<MasqueradeAddresses> {
        let devices = [("eth0", 2), ("eth1", 3)];
        let addresses: Vec<NodeAddress> = addresses
            .iter()
            .map(|(device_name, addr, primary)| NodeAddress {
                addr: addr.parse().unwrap(),
                device_name: (*device_name).to_owned(),
                node_port: false,
                primary: *primary,
            })
            .collect();
        let addresses: Vec<&NodeAddress> = addresses.iter().collect();
        let node = LocalNode {
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            ipv6_alloc_cidr: Some("fd00::/64".parse().unwrap()),
            ..LocalNode::default()
        };
        features.masquerade_rows(devices, &addresses, &node).into_values().collect()
    }

    #[test]
    fn a_device_has_its_primary_address_or_the_nodes() {
        let all = [
            ("eth0", "192.0.2.1", true),
            ("eth0", "192.0.2.2", false),
            ("*", "192.0.2.1", true),
            ("*", "2001:db8::1", true),
        ];
        let found = rows(&features(), &all);
        assert_eq!(found[0].ipv4.to_ne_bytes(), [192, 0, 2, 1]);
        assert_eq!(found[1].ipv4, found[0].ipv4, "the node's address");
        assert_eq!(found[1].ipv6, ipv6_words("2001:db8::1".parse().unwrap()));
        assert_eq!(found[0].excluded_ipv4.to_ne_bytes(), [10, 244, 0, 0]);
        assert_eq!(found[0].excluded_ipv4_mask.to_ne_bytes(), [255, 255, 0, 0]);
        let none = rows(&features(), &[("*", "fe80::1", true)]);
        assert_eq!((none[0].ipv4, none[0].ipv6), (0, [0; 4]), "none, and not one of the link");
    }

    #[test]
    fn the_option_replaces_the_range_of_the_nodes_pods() {
        let features = EgressFeatures { native_ipv4: Some("10.0.0.0/8".parse().unwrap()), ..features() };
        assert_eq!(rows(&features, &[])[0].excluded_ipv4_mask.to_ne_bytes(), [255, 0, 0, 0]);
        assert_eq!(rows(&EgressFeatures::default(), &[]), []);
        // Only the file has ranges then, but for one of the option.
        let agent = |features| EgressFeatures { ip_masq_agent: true, ..features };
        let none = rows(&agent(self::features()), &[])[0];
        assert_eq!((none.excluded_ipv4, none.excluded_ipv4_mask), (u32::MAX, 0), "a range without addresses");
        assert_eq!(rows(&agent(features), &[])[0].excluded_ipv4_mask.to_ne_bytes(), [255, 0, 0, 0]);
    }

    #[test]
    fn the_direct_routing_device_is_that_of_the_option_the_only_one_or_that_of_the_node() {
        let device = |name: &str, addresses: &[&str]| {
            let addr = |text: &&str| DeviceAddress {
                addr: text.parse().unwrap(),
                secondary: false,
                scope: 0,
                prefix_len: 24,
            };
            let link = devices::Link {
                name: name.into(),
                alt_names: vec![format!("{name}-b")],
                ..Default::default()
            };
            Device { link, addrs: addresses.iter().map(addr).collect(), ..Device::default() }
        };
        let all = [
            device("eth0", &["192.0.2.1", "192.0.2.2", "fe80::1", "2001:db8::1"]),
            device("eth1", &["203.0.113.1", "fe80::2"]),
        ];
        let node = LocalNode { ipv4: Some("203.0.113.1".parse().unwrap()), ..LocalNode::default() };
        let row = |option: &str, devices: &[&Device], node: &LocalNode| {
            let filter = Vec::from_iter((!option.is_empty()).then(|| option.to_owned()));
            let direct_routing = Selection { filter, force_detection: false };
            let features = EgressFeatures { nodeport: true, direct_routing, ..EgressFeatures::default() };
            let row = features.direct_routing_row(devices, node).unwrap();
            (Ipv4Addr::from(row.ipv4.to_ne_bytes()).to_string(), row.ipv6)
        };
        let words = |text: &str| ipv6_words(text.parse().unwrap());
        let both = [&all[0], &all[1]];
        let first = ("192.0.2.1".to_owned(), words("2001:db8::1"));
        let second = ("203.0.113.1".to_owned(), words("fe80::2"));
        let none = ("0.0.0.0".to_owned(), [0; 4]);
        assert_eq!(row("", &both[..1], &node), first, "the only one");
        assert_eq!(row("", &both, &node), second, "that of the node");
        assert_eq!(row("eth0", &both, &node), first);
        assert_eq!(row("eth0-b", &both, &node), first);
        assert_eq!(row("eth+", &both, &node), first);
        assert_eq!(row("!eth0", &both, &node), second, "no other is listed");
        assert_eq!(row("wlan0", &both, &node), second, "no device has the name");
        assert_eq!(row("wlan0", &both[..1], &node), none, "nor the node's address");
        assert_eq!(row("", &both, &LocalNode::default()), none);
        assert_eq!(row("", &[], &node), none);
        assert_eq!(EgressFeatures::default().direct_routing_row(&both, &node), None);
        let constants =
            |enable_ipv4, enable_ipv6| NodeConfig { enable_ipv4, enable_ipv6, ..NodeConfig::default() };
        let some = MasqueradeAddresses { ipv4: 1, ..MasqueradeAddresses::default() };
        assert_eq!(unaddressed(&some, &constants(1, 0)), None);
        assert_eq!(unaddressed(&some, &constants(1, 1)), Some("IPv6"));
        assert_eq!(unaddressed(&MasqueradeAddresses::default(), &constants(1, 1)), Some("IPv4 and IPv6"));
    }
}

//! The options, in Cilium's spelling.

use hive::OptionError;
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use tunnel::Family;

/// Which packets of pods get the node's address when they leave the cluster. Changes take effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
#[config(check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct MasqueradeConfig {
    /// Masquerade IPv4 packets of pods that leave the cluster
    #[flag(default = true)]
    pub enable_ipv4_masquerade: bool,
    /// Masquerade IPv6 packets of pods that leave the cluster
    #[flag(default = true)]
    pub enable_ipv6_masquerade: bool,
    /// Masquerade by the programs of the datapath, not by iptables
    #[flag(default = false)]
    pub enable_bpf_masquerade: bool,
    /// Masquerade packets to other nodes of the cluster as well
    #[flag(default = false)]
    pub enable_remote_node_masquerade: bool,
    /// Keep the address of packets to the ranges of a file of ip-masq-agent
    #[flag(default = false)]
    pub enable_ip_masq_agent: bool,
    /// The file of ranges, in YAML or JSON; it is followed
    #[flag(default = "/etc/config/ip-masq-agent")]
    pub ip_masq_agent_config_path: String,
    /// Masquerade to the source address of the route, not to the device's primary address
    #[flag(default = false)]
    pub enable_masquerade_to_route_source: bool,
    /// Devices whose packets are masqueraded, all if empty
    #[flag(default = "")]
    pub egress_masquerade_interfaces: Vec<String>,
    /// Choose source ports of masqueraded connections at random
    #[flag(default = false)]
    pub iptables_random_fully: bool,
    /// IPv4 range that is not masqueraded, the pods' range if empty
    #[flag(default = "")]
    pub ipv4_native_routing_cidr: String,
    /// IPv6 range that is not masqueraded, the pods' range if empty
    #[flag(default = "")]
    pub ipv6_native_routing_cidr: String,
}

impl MasqueradeConfig {
    /// Whether the programs masquerade packets of the family, not iptables.
    #[must_use]
    pub fn is_in_bpf(&self, family: Family) -> bool {
        self.enable_bpf_masquerade && self.is_enabled(family)
    }

    /// Whether rules of iptables masquerade packets of the family.
    #[must_use]
    pub fn is_in_iptables(&self, family: Family) -> bool {
        !self.enable_bpf_masquerade && self.is_enabled(family)
    }

    /// Whether packets of the family are masqueraded.
    #[must_use]
    pub fn is_enabled(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.enable_ipv4_masquerade,
            Family::Ipv6 => self.enable_ipv6_masquerade,
        }
    }

    /// Returns the range that the cluster's network routes, as the options give it.
    pub fn native_routing_cidr(&self, family: Family) -> Result<Option<IpNetwork>, OptionError> {
        let (option, text, expected) = match family {
            Family::Ipv4 => {
                ("ipv4-native-routing-cidr", &self.ipv4_native_routing_cidr, "a range such as 10.0.0.0/8")
            }
            Family::Ipv6 => {
                ("ipv6-native-routing-cidr", &self.ipv6_native_routing_cidr, "a range such as fd00::/16")
            }
        };
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = match family {
            Family::Ipv4 => text.parse::<Ipv4Network>().ok().map(IpNetwork::V4),
            Family::Ipv6 => text.parse::<Ipv6Network>().ok().map(IpNetwork::V6),
        };
        // Without the prefix the parser takes an address for a range of one.
        let parsed = parsed.filter(|_| text.contains('/'));
        parsed.map(Some).ok_or_else(|| OptionError::new(option, text, expected))
    }

    /// Returns the range of the family that the programs never masquerade: that of the option, else the node's pods
    /// (`pods`), unless the file of ip-masq-agent lists all such ranges.
    pub fn excluded_range(&self, family: Family, pods: Option<IpNetwork>) -> Option<IpNetwork> {
        let pods = pods.filter(|_| !self.enable_ip_masq_agent);
        self.native_routing_cidr(family).unwrap_or_default().or(pods)
    }

    fn validate(&self) -> Result<(), OptionError> {
        self.native_routing_cidr(Family::Ipv4)?;
        self.native_routing_cidr(Family::Ipv6)?;
        if self.enable_ip_masq_agent && !self.ip_masq_agent_config_path.starts_with('/') {
            return Err(OptionError::new(
                "ip-masq-agent-config-path",
                &self.ip_masq_agent_config_path,
                "an absolute path such as /etc/config/ip-masq-agent",
            ));
        }
        let wrong = |name: &&String| {
            let name = name.as_str();
            name.is_empty()
                || name.len() > 15
                || name.contains(|c: char| c.is_whitespace() || "/!\"'".contains(c))
        };
        match self.egress_masquerade_interfaces.iter().find(wrong) {
            Some(name) => Err(OptionError::new(
                "egress-masquerade-interfaces",
                name,
                "names of devices such as eth0, or beginnings of names such as eth+",
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The options' defaults.
    pub(crate) fn masquerade() -> MasqueradeConfig {
        MasqueradeConfig {
            enable_ipv4_masquerade: true,
            enable_ipv6_masquerade: true,
            enable_bpf_masquerade: false,
            enable_remote_node_masquerade: false,
            enable_ip_masq_agent: false,
            ip_masq_agent_config_path: "/etc/config/ip-masq-agent".into(),
            enable_masquerade_to_route_source: false,
            egress_masquerade_interfaces: Vec::new(),
            iptables_random_fully: false,
            ipv4_native_routing_cidr: String::new(),
            ipv6_native_routing_cidr: String::new(),
        }
    }

    #[test]
    fn wrong_ranges_and_devices_are_named() {
        let error = |config: MasqueradeConfig| config.validate().unwrap_err().to_string();
        for wrong in ["10.0.0.0", "fd00::/8", "ten", "10.0.0.0/33"] {
            let config = MasqueradeConfig { ipv4_native_routing_cidr: wrong.into(), ..masquerade() };
            assert_eq!(
                error(config),
                format!(
                    "option ipv4-native-routing-cidr: '{wrong}' is wrong; give a range such as 10.0.0.0/8"
                )
            );
        }
        for wrong in ["eth0 -j DROP", "a/b", "", "name-that-is-too-long", "eth0\n-F"] {
            let config =
                MasqueradeConfig { egress_masquerade_interfaces: vec![wrong.into()], ..masquerade() };
            assert!(error(config).starts_with("option egress-masquerade-interfaces: "), "{wrong}");
        }
        let relative = MasqueradeConfig {
            enable_ip_masq_agent: true,
            ip_masq_agent_config_path: "ranges".into(),
            ..masquerade()
        };
        assert!(error(relative).starts_with("option ip-masq-agent-config-path: 'ranges' is wrong"));
        let good = MasqueradeConfig { ipv6_native_routing_cidr: " fd00::/8".into(), ..masquerade() };
        assert_eq!(good.native_routing_cidr(Family::Ipv6).unwrap(), Some("fd00::/8".parse().unwrap()));
        assert_eq!(good.native_routing_cidr(Family::Ipv4).unwrap(), None);
    }

    #[test]
    fn pods_are_excluded_unless_a_file_lists_the_ranges() {
        let pods = Some("10.244.1.0/24".parse().unwrap());
        let native = MasqueradeConfig { ipv4_native_routing_cidr: "10.0.0.0/8".into(), ..masquerade() };
        let excluded = |config: &MasqueradeConfig| config.excluded_range(Family::Ipv4, pods);
        assert_eq!(excluded(&masquerade()), pods);
        assert_eq!(excluded(&native), Some("10.0.0.0/8".parse().unwrap()));
        let agent = |config| MasqueradeConfig { enable_ip_masq_agent: true, ..config };
        assert_eq!(excluded(&agent(masquerade())), None);
        assert_eq!(excluded(&agent(native)), Some("10.0.0.0/8".parse().unwrap()));
    }
}

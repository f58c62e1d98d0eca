//! Options that select devices and node addresses. Changes take effect at the next start.

use ipnetwork::IpNetwork;

use hive::OptionError;

use crate::{NodeAddressRules, Selection};

/// Longest alternative name of a device in bytes (`ALTIFNAMSIZ` without the closing zero).
const MAX_NAME: usize = 127;

/// Options that select devices.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Devices")]
pub struct DevicesConfig {
    /// Devices that face the network; a trailing + matches any suffix, as in eth+, a leading ! excludes; empty to detect them
    #[flag(default = "")]
    pub devices: Vec<String>,
    /// Detect devices also when some are listed
    #[flag(default = false)]
    pub force_device_detection: bool,
    /// Device of packets to backends of services on other nodes, by its name or as in devices; empty for the only device,
    /// or the one with the node's address
    #[flag(default = "")]
    pub direct_routing_device: String,
}

impl DevicesConfig {
    /// Validates the options and returns them as rules.
    pub fn selection(&self) -> Result<Selection, OptionError> {
        let wrong = |name: &&String| {
            let pattern = name.strip_prefix('!').unwrap_or(name);
            let stem = pattern.strip_suffix('+').unwrap_or(pattern);
            pattern.is_empty() || stem.len() > MAX_NAME || stem.contains(['/', '+', ' ', ':'])
        };
        match self.devices.iter().find(wrong) {
            Some(name) => Err(OptionError::new(
                "devices",
                name,
                "names of network interfaces separated by commas, for instance eth0,ens+",
            )),
            None if !self.direct_routing_device.is_empty() && wrong(&&self.direct_routing_device) => {
                Err(OptionError::new(
                    "direct-routing-device",
                    &self.direct_routing_device,
                    "the name of a network interface, for instance eth0 or eth+",
                ))
            }
            None => {
                Ok(Selection { filter: self.devices.clone(), force_detection: self.force_device_detection })
            }
        }
    }
}

/// Options that select the node's addresses.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Devices")]
pub struct NodeAddressConfig {
    /// Ranges of the node's addresses on which NodePort services answer; empty for the best of each device
    #[flag(default = "")]
    pub nodeport_addresses: Vec<String>,
    /// The nearest scope of addresses that still count as the node's
    #[flag(default = "254", hidden)]
    pub local_max_addr_scope: String,
}

impl NodeAddressConfig {
    /// Validates the options and returns them as rules.
    pub fn rules(&self) -> Result<NodeAddressRules, OptionError> {
        let range = |text: &String| {
            text.parse::<IpNetwork>().map_err(|_| {
                OptionError::new(
                    "nodeport-addresses",
                    text,
                    "IP prefixes separated by commas, for instance 192.168.0.0/16,fd00::/8",
                )
            })
        };
        let ranges: Result<Vec<IpNetwork>, OptionError> = self.nodeport_addresses.iter().map(range).collect();
        Ok(NodeAddressRules { node_port_ranges: ranges?, scope_max: scope(&self.local_max_addr_scope)? })
    }
}

fn scope(text: &str) -> Result<u8, OptionError> {
    match text {
        "global" => Ok(0),
        "site" => Ok(200),
        "link" => Ok(253),
        "host" => Ok(254),
        "nowhere" => Ok(255),
        number => number.parse().map_err(|_| {
            OptionError::new(
                "local-max-addr-scope",
                text,
                "global, site, link, host or a number from 0 to 255",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_option_value_and_remedy() {
        let devices = |names: &[&str]| DevicesConfig {
            devices: names.iter().map(|n| (*n).to_owned()).collect(),
            force_device_detection: false,
            direct_routing_device: String::new(),
        };
        assert_eq!(
            devices(&["eth0", "eth 1"]).selection().unwrap_err().to_string(),
            "option devices: 'eth 1' is wrong; give names of network interfaces separated by commas, for instance eth0,ens+"
        );
        assert!(
            devices(&["!eth0", "!ens+"]).selection().is_ok() && devices(&["eth0", "!"]).selection().is_err()
        );
        assert!(devices(&["eth0", "ens+", "+"]).selection().unwrap().matches("anything"));
        let addresses = |range: &str, scope: &str| NodeAddressConfig {
            nodeport_addresses: vec![range.to_owned()],
            local_max_addr_scope: scope.to_owned(),
        };
        assert_eq!(
            addresses("10.0.0.0/40", "254").rules().unwrap_err().to_string(),
            "option nodeport-addresses: '10.0.0.0/40' is wrong; give IP prefixes separated by commas, for instance 192.168.0.0/16,fd00::/8"
        );
        assert_eq!(
            addresses("10.0.0.0/8", "near").rules().unwrap_err().to_string(),
            "option local-max-addr-scope: 'near' is wrong; give global, site, link, host or a number from 0 to 255"
        );
        assert_eq!(addresses("10.0.0.0/8", "link").rules().unwrap().scope_max, 253);
    }
}

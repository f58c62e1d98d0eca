//! The options of services in the datapath, in Cilium's spelling. Changes take effect at the next start.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::config::OptionError;

/// What becomes of packets that pods send to services.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
pub struct ServicesConfig {
    /// Where a pod's packets to itself through a service come from
    #[flag(default = "169.254.42.1")]
    pub ipv4_service_loopback_address: String,
    /// The same for IPv6
    #[flag(default = "fe80::1")]
    pub ipv6_service_loopback_address: String,
    /// What the sender is told when a service has no backends: reject (by ICMP) or drop (nothing)
    #[flag(default = "reject")]
    pub service_no_backend_response: String,
    /// Services without backends refuse packets; off leaves these to the routes of the node
    #[flag(default = true)]
    pub enable_no_service_endpoints_routable: bool,
}

/// The same, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceSettings {
    pub(crate) loopback_ipv4: Ipv4Addr,
    pub(crate) loopback_ipv6: Ipv6Addr,
    /// Senders are told that a service has no backends.
    pub(crate) reject: bool,
    /// Packets to a service without backends go no further.
    pub(crate) drop_empty: bool,
}

impl ServicesConfig {
    pub(crate) fn settings(&self) -> Result<ServiceSettings, OptionError> {
        let wrong = |option, value: &str, expected| OptionError { option, value: value.to_owned(), expected };
        let v4 = &self.ipv4_service_loopback_address;
        let v6 = &self.ipv6_service_loopback_address;
        Ok(ServiceSettings {
            loopback_ipv4: v4
                .parse()
                .map_err(|_| wrong("ipv4-service-loopback-address", v4, "an IPv4 address"))?,
            loopback_ipv6: v6
                .parse()
                .map_err(|_| wrong("ipv6-service-loopback-address", v6, "an IPv6 address"))?,
            reject: match self.service_no_backend_response.as_str() {
                "reject" => true,
                "drop" => false,
                other => return Err(wrong("service-no-backend-response", other, "reject or drop")),
            },
            drop_empty: self.enable_no_service_endpoints_routable,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> ServicesConfig {
        ServicesConfig {
            ipv4_service_loopback_address: "169.254.42.1".to_owned(),
            ipv6_service_loopback_address: "fe80::1".to_owned(),
            service_no_backend_response: "reject".to_owned(),
            enable_no_service_endpoints_routable: true,
        }
    }

    #[test]
    fn wrong_values_are_named() {
        assert!(config().settings().unwrap().reject);
        let drop = ServicesConfig { service_no_backend_response: "drop".to_owned(), ..config() };
        assert!(!drop.settings().unwrap().reject);
        let cases = [
            (
                ServicesConfig { service_no_backend_response: "refuse".to_owned(), ..config() },
                "option service-no-backend-response: 'refuse' is wrong; give reject or drop",
            ),
            (
                ServicesConfig { ipv4_service_loopback_address: "fe80::1".to_owned(), ..config() },
                "option ipv4-service-loopback-address: 'fe80::1' is wrong; give an IPv4 address",
            ),
            (
                ServicesConfig { ipv6_service_loopback_address: String::new(), ..config() },
                "option ipv6-service-loopback-address: '' is wrong; give an IPv6 address",
            ),
        ];
        for (config, message) in cases {
            assert_eq!(config.settings().unwrap_err().to_string(), message);
        }
    }
}

//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Which ports proxies get.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Proxy")]
#[config(check = Self::validate)]
pub struct ProxyConfig {
    /// Redirect traffic with rules of DNS names or of layer 7 to proxies; without it such rules are refused
    #[flag(default = true)]
    pub enable_l7_proxy: bool,
    /// Give redirected packets to the sockets of proxies by the programs, without rules of iptables
    #[flag(name = "enable-bpf-tproxy", default = false)]
    pub enable_bpf_tproxy: bool,
    /// Serve an Envoy that runs beside the agent, in a pod of its own; without it the agent starts one by envoy-binary
    #[flag(default = false)]
    pub external_envoy_proxy: bool,
    /// Leave DNS queries to a proxy that runs as a process of its own, at tofqdns-proxy-port
    #[flag(default = false)]
    pub enable_standalone_dns_proxy: bool,
    /// Port on the loopback address at which that proxy gets policies and reports addresses
    #[flag(default = 10_095)]
    pub standalone_dns_proxy_server_port: u16,
    /// First port for proxies
    #[flag(default = 10_000)]
    pub proxy_portrange_min: u16,
    /// Last port for proxies
    #[flag(default = 20_000)]
    pub proxy_portrange_max: u16,
    /// Age in minutes up to which the file with the ports of the previous run is used
    #[flag(default = 15)]
    pub restored_proxy_ports_age_limit: u64,
    /// Port of the DNS proxy; 0 for that of the previous run, or a random one
    #[flag(default = 0)]
    pub tofqdns_proxy_port: u16,
}

impl ProxyConfig {
    fn validate(&self) -> Result<(), String> {
        let (first, last) = (self.proxy_portrange_min, self.proxy_portrange_max);
        if self.enable_standalone_dns_proxy {
            if !self.enable_l7_proxy {
                return Err("enable-standalone-dns-proxy=true needs enable-l7-proxy=true".to_owned());
            }
            let ports = [
                ("tofqdns-proxy-port", self.tofqdns_proxy_port),
                ("standalone-dns-proxy-server-port", self.standalone_dns_proxy_server_port),
            ];
            if let Some((option, _)) = ports.into_iter().find(|(_, port)| *port == 0) {
                return Err(format!("{option}=0: enable-standalone-dns-proxy needs a port, such as 10094"));
            }
            if ports[0].1 == ports[1].1 {
                return Err(format!(
                    "standalone-dns-proxy-server-port={0}: is tofqdns-proxy-port, too",
                    ports[1].1
                ));
            }
        }
        match first {
            0 => Err("proxy-portrange-min=0: set a port from 1 on".to_owned()),
            _ if first > last => Err(format!(
                "proxy-portrange-max={last} is below proxy-portrange-min={first}: set it to this port or a higher one"
            )),
            _ => Ok(()),
        }
    }

    /// Whether the programs assign redirected packets to sockets of proxies.
    #[must_use]
    pub fn is_assigned_by_programs(&self) -> bool {
        self.enable_l7_proxy && self.enable_bpf_tproxy
    }

    /// Returns the range of ports.
    #[must_use]
    pub fn range(&self) -> RangeInclusive<u16> {
        self.proxy_portrange_min..=self.proxy_portrange_max
    }

    /// Returns the age up to which the file of the previous run is used.
    #[must_use]
    pub fn age_limit(&self) -> Duration {
        Duration::from_secs(self.restored_proxy_ports_age_limit.saturating_mul(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_a_port() {
        let with = |first, last| ProxyConfig {
            proxy_portrange_min: first,
            proxy_portrange_max: last,
            ..ProxyConfig::default()
        };
        assert_eq!(ProxyConfig::default(), with(10_000, 20_000));
        assert!(with(7, 7).validate().is_ok());
        for (first, last) in [(0, 20_000), (8, 7)] {
            assert!(with(first, last).validate().is_err(), "{first} to {last}");
        }
    }

    #[test]
    fn a_standalone_proxy_needs_two_ports() {
        let with = |port, server| ProxyConfig {
            enable_standalone_dns_proxy: true,
            tofqdns_proxy_port: port,
            standalone_dns_proxy_server_port: server,
            ..ProxyConfig::default()
        };
        assert!(with(10_094, 10_095).validate().is_ok());
        for (port, server) in [(0, 10_095), (10_094, 0), (10_094, 10_094)] {
            assert!(with(port, server).validate().is_err(), "{port} {server}");
        }
        assert!(ProxyConfig { enable_l7_proxy: false, ..with(10_094, 10_095) }.validate().is_err());
    }
}

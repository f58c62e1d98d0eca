//! The options of the tunnel as one value.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hive::config::FlagValue;
use maps::FamilyConfig;

use crate::{Error, TunnelConfig, UnderlayProtocol};

/// How packets travel between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// By a tunnel or not.
    pub mode: RoutingMode,
    /// The encapsulation.
    pub protocol: Protocol,
    /// The UDP destination port, never 0.
    pub port: u16,
    /// The lowest and the highest UDP source port; 0 and 0 for the kernel's choice.
    pub source_ports: (u16, u16),
    /// The family of the packets between nodes.
    pub underlay: Family,
    /// Whether pods have IPv6 addresses, of which the least MTU is larger.
    pub is_ipv6_enabled: bool,
}

impl Tunnel {
    /// Returns the value of these options; an error if they contradict each other.
    pub fn new(config: &TunnelConfig, families: &FamilyConfig) -> Result<Tunnel, Error> {
        let underlay = match config.underlay_protocol {
            UnderlayProtocol::Auto if families.enable_ipv4 => Family::Ipv4,
            UnderlayProtocol::Auto => Family::Ipv6,
            UnderlayProtocol::Ipv4 if families.enable_ipv4 => Family::Ipv4,
            UnderlayProtocol::Ipv6 if families.enable_ipv6 => Family::Ipv6,
            UnderlayProtocol::Ipv4 => return Err(Error::DisabledFamily { underlay: Family::Ipv4 }),
            UnderlayProtocol::Ipv6 => return Err(Error::DisabledFamily { underlay: Family::Ipv6 }),
        };
        let port = match config.tunnel_port {
            0 => config.tunnel_protocol.port(),
            port => port,
        };
        let SourcePorts { low, high } = config.tunnel_source_port_range;
        Ok(Tunnel {
            mode: config.routing_mode,
            protocol: config.tunnel_protocol,
            port,
            source_ports: (low, high),
            underlay,
            is_ipv6_enabled: families.enable_ipv6,
        })
    }

    /// Whether there is a tunnel: packets to pods of other nodes are encapsulated, with hybrid routing some of them.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.mode != RoutingMode::Native
    }

    /// Whether packets within a group of subnets are not encapsulated.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.mode == RoutingMode::Hybrid
    }

    /// Returns the bytes that encapsulation adds to an IP packet: the outer IP and UDP headers, the tunnel's header and
    /// the inner Ethernet header; 0 in native mode.
    #[must_use]
    pub fn overhead(&self) -> u32 {
        match (self.is_tunnel(), self.underlay) {
            (false, _) => 0,
            (true, Family::Ipv4) => 50,
            (true, Family::Ipv6) => 70,
        }
    }
}

/// How packets travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum RoutingMode {
    /// Encapsulated in UDP, between addresses of nodes.
    Tunnel,
    /// As they are, by the routes of nodes and network.
    Native,
    /// Native within groups of subnets, encapsulated between them.
    Hybrid,
}

/// The encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum Protocol {
    /// Virtual extensible LAN, RFC 7348.
    Vxlan,
    /// Generic network virtualization encapsulation, RFC 8926.
    Geneve,
}

impl Protocol {
    /// Returns the protocol as options and `GET /healthz` spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Vxlan => "vxlan",
            Protocol::Geneve => "geneve",
        }
    }

    /// Returns the default port: the kernel's own of VXLAN, which is older than IANA's 4789, and IANA's of Geneve.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Protocol::Vxlan => 8472,
            Protocol::Geneve => 6081,
        }
    }
}

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// Whether the address is of this family.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Family::Ipv4)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
        })
    }
}

/// A range of UDP source ports, the kernel's choice if both ends are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePorts {
    /// The lowest port.
    pub low: u16,
    /// The highest port.
    pub high: u16,
}

impl FromStr for SourcePorts {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SourcePorts, &'static str> {
        let (low, high) = text.split_once('-').ok_or("there is no '-'")?;
        let port = |text: &str| text.trim().parse().map_err(|_| "a port is a number from 0 to 65535");
        let ports = SourcePorts { low: port(low)?, high: port(high)? };
        if ports.low > ports.high {
            return Err("the first port is higher than the second");
        }
        Ok(ports)
    }
}

impl fmt::Display for SourcePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::prelude::*;

    use super::*;

    fn tunnel(options: &[(&str, &str)]) -> Result<Tunnel, String> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let read = move |tunnel: Arc<Tunnel>| sender.send(Tunnel::clone(&tunnel)).unwrap();
        let cells = [config::<FamilyConfig>(), crate::cell(), invoke(read)];
        let builder = hive::Hive::builder(module("test", "test", cells));
        let builder = options.iter().fold(builder, |builder, (key, value)| builder.set(*key, value));
        let mut hive = builder.build().map_err(|error| format!("{error:#}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(hive.populate()).map_err(|error| {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text += &format!(": {error}");
                cause = error.source();
            }
            text
        })?;
        Ok(receiver.recv().unwrap())
    }

    #[test]
    fn defaults_are_ciliums() {
        let defaults = tunnel(&[]).unwrap();
        let expected = Tunnel {
            mode: RoutingMode::Tunnel,
            protocol: Protocol::Vxlan,
            port: 8472,
            source_ports: (0, 0),
            underlay: Family::Ipv4,
            is_ipv6_enabled: true,
        };
        assert_eq!(defaults, expected);
        assert!(defaults.is_tunnel());
        assert_eq!(defaults.overhead(), 50);
    }

    #[test]
    fn options_are_values_of_the_tunnel() {
        let native = tunnel(&[("routing-mode", "native")]).unwrap();
        assert!(!native.is_tunnel());
        assert_eq!(native.overhead(), 0);
        let hybrid = tunnel(&[("routing-mode", "hybrid")]).unwrap();
        assert_eq!((hybrid.is_tunnel(), hybrid.is_hybrid(), hybrid.overhead()), (true, true, 50));
        let geneve = [("tunnel-protocol", "geneve"), ("tunnel-source-port-range", "1-65535")];
        let geneve = tunnel(&geneve).unwrap();
        assert_eq!((geneve.port, geneve.source_ports), (6081, (1, 65535)));
        assert_eq!(tunnel(&[("tunnel-port", "4789")]).unwrap().port, 4789);
        for options in [&[("underlay-protocol", "ipv6")], &[("enable-ipv4", "false")]] {
            let ipv6 = tunnel(options).unwrap();
            assert_eq!((ipv6.underlay, ipv6.overhead()), (Family::Ipv6, 70), "{options:?}");
        }
    }

    #[test]
    fn contradictions_name_the_option_and_the_remedy() {
        for (options, text) in [
            (
                &[("underlay-protocol", "ipv6"), ("enable-ipv6", "false")][..],
                "option underlay-protocol: ipv6 needs enable-ipv6=true; set it, or give underlay-protocol=auto",
            ),
            (
                &[("underlay-protocol", "ipv4"), ("enable-ipv4", "false"), ("routing-mode", "native")],
                "option underlay-protocol: ipv4 needs enable-ipv4=true; set it, or give underlay-protocol=auto",
            ),
            (&[("tunnel-source-port-range", "2-1")], "the first port is higher than the second"),
            (&[("tunnel-source-port-range", "2")], "there is no '-'"),
            (&[("tunnel-source-port-range", "2-65536")], "a port is a number from 0 to 65535"),
            (&[("tunnel-protocol", "gre")], "vxlan"),
            (&[("routing-mode", "disabled")], "tunnel"),
            (&[("mtu", "1279")], "option mtu: 1279 is less than 1280, the minimum of IPv6"),
            (&[("mtu", "1279"), ("routing-mode", "native")], "option mtu: 1279 is less than 1280"),
            (
                &[("mtu", "60"), ("enable-ipv6", "false")],
                "the minimum of IPv4 and the headers of the tunnel; set 118",
            ),
            (&[("mtu", "65486")], "option mtu: 65486 is more than 65485"),
            (&[("mtu", "4294967296")], "mtu"),
            (&[("mtu", "-1")], "mtu"),
        ] {
            let error = tunnel(options).unwrap_err();
            assert!(error.contains(text), "{options:?}: {error}");
        }
    }
}

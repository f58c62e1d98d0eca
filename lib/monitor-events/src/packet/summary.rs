//! A packet in a line, as the monitor and as Hubble print it.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::text::{ether_type, igmp_type, mac, socket, vrrp_type};
use super::{Frame, Headers, TransportHeader, Tunnel, icmp};

/// Flags of TCP in the order of summaries; the monitor prints the first four.
const TCP_FLAGS: [(u16, &str); 9] = [
    (2, "SYN"),
    (16, "ACK"),
    (4, "RST"),
    (1, "FIN"),
    (8, "PSH"),
    (32, "URG"),
    (64, "ECE"),
    (128, "CWR"),
    (256, "NS"),
];

fn tcp_flags(flags: u16, names: &[(u16, &str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join(", ")
}

impl TransportHeader {
    /// Returns the ports of source and destination.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        match *self {
            Self::Tcp { src, dst, .. } | Self::Udp { src, dst } | Self::Sctp { src, dst, .. } => {
                Some((src, dst))
            }
            Self::Icmpv4 { .. } | Self::Icmpv6 { .. } | Self::Vrrp { .. } | Self::Igmp { .. } => None,
        }
    }

    /// Returns the protocol and its details, as the monitor prints it.
    fn connection(&self) -> String {
        match *self {
            Self::Tcp { flags, .. } => match tcp_flags(flags, &TCP_FLAGS[..4]) {
                flags if flags.is_empty() => "tcp".to_owned(),
                flags => format!("tcp {flags}"),
            },
            Self::Udp { .. } => "udp".to_owned(),
            Self::Sctp { .. } => "sctp".to_owned(),
            Self::Icmpv4 { kind, code } => format!("icmp {}", icmp::text(false, kind, code)),
            Self::Icmpv6 { kind, code } => format!("icmp {}", icmp::text(true, kind, code)),
            Self::Vrrp { kind, id, priority } => format!("vrrp {} {id} {priority}", vrrp_type(kind)),
            Self::Igmp { kind, group } => format!("igmp {} {group}", igmp_type(kind)),
        }
    }

    /// Returns the header in few words, as Hubble prints it.
    fn summary(&self) -> String {
        match *self {
            Self::Tcp { flags, .. } => format!("TCP Flags: {}", tcp_flags(flags, &TCP_FLAGS)),
            Self::Udp { .. } => "UDP".to_owned(),
            Self::Sctp { .. } => "SCTP".to_owned(),
            Self::Icmpv4 { kind, code } => format!("ICMPv4 {}", icmp::text(false, kind, code)),
            Self::Icmpv6 { kind, code } => format!("ICMPv6 {}", icmp::text(true, kind, code)),
            Self::Vrrp { kind, .. } => format!("VRRP {}", vrrp_type(kind)),
            Self::Igmp { kind, .. } => format!("IGMP {}", igmp_type(kind)),
        }
    }
}

impl Headers<'_> {
    /// Returns `sIP:sport -> dIP:dport` or `sIP -> dIP`.
    fn ends(&self) -> Option<String> {
        let (src, dst) = self.ip?;
        Some(match self.transport.as_ref().and_then(TransportHeader::ports) {
            Some((sport, dport)) => format!("{} -> {}", socket(src, sport), socket(dst, dport)),
            None => format!("{src} -> {dst}"),
        })
    }

    fn connection(&self) -> Option<String> {
        let Some(mut line) = self.ends() else {
            let ethernet = self.ethernet?;
            let (src, dst) = (mac(ethernet.src), mac(ethernet.dst));
            return Some(format!("{src} -> {dst} {}", ether_type(ethernet.kind)));
        };
        if let Some(transport) = &self.transport {
            let _ = write!(line, " {}", transport.connection());
        }
        Some(line)
    }
}

impl Frame<'_> {
    /// Returns the connection in a line, as the monitor prints it.
    #[must_use]
    pub fn connection(&self) -> String {
        let inner = match self.headers.connection() {
            Some(line) => line,
            None if self.is_malformed => "[error]".to_owned(),
            None => "[unknown]".to_owned(),
        };
        match &self.outer {
            None => inner,
            Some((tunnel, _, outer)) => {
                let name = match tunnel {
                    Tunnel::Vxlan => "vxlan",
                    Tunnel::Geneve => "geneve",
                };
                let ends = outer.ends().unwrap_or_default();
                format!("{inner} [tunnel {ends} {name}]")
            }
        }
    }

    /// Returns the last header in few words, as Hubble prints it: `TCP Flags: SYN`, `ICMPv4 EchoRequest`, `UDP`.
    #[must_use]
    pub fn summary(&self) -> String {
        let Headers { ethernet, ip, transport, .. } = &self.headers;
        let name = match (transport, ip, ethernet) {
            (Some(transport), ..) => return transport.summary(),
            (None, Some((IpAddr::V4(_), _)), _) => "IPv4",
            (None, Some((IpAddr::V6(_), _)), _) => "IPv6",
            (None, None, Some(_)) => "Ethernet",
            (None, None, None) => "",
        };
        name.to_owned()
    }
}

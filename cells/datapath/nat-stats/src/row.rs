//! The row of table `nat-stats`.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use statedb::{TableDisplay, TableSpec};

/// A destination with the number of source ports that translations to it use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct NatStats {
    /// The address family: `ipv4` or `ipv6`.
    pub r#type: &'static str,
    /// The address that the translations give to packets.
    #[serde(rename = "EgressIP")]
    pub egress: IpAddr,
    /// The address of the destination.
    #[serde(rename = "EndpointIP")]
    pub remote: IpAddr,
    /// Its port; 0 for ICMP.
    pub remote_port: u16,
    /// The protocol: `TCP`, `UDP`, `ICMP` or `ICMPv6`.
    pub proto: &'static str,
    /// Translations to it.
    pub count: u32,
}

impl TableSpec for NatStats {
    const NAME: &'static str = "nat-stats";
    const PRIMARY: &'static str = "byTuple";
    type Key<'a> = (IpAddr, IpAddr, u16, &'a str);

    fn key(&self) -> (IpAddr, IpAddr, u16, &str) {
        (self.egress, self.remote, self.remote_port, self.proto)
    }
}

impl TableDisplay for NatStats {
    fn columns() -> &'static [&'static str] {
        &["IPFamily", "Proto", "EgressIP", "RemoteAddr", "Count"]
    }

    fn row(&self) -> Vec<String> {
        let bracketed = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let remote = match self.remote_port {
            0 => bracketed(self.remote),
            port => SocketAddr::new(self.remote, port).to_string(),
        };
        let egress = bracketed(self.egress);
        vec![self.r#type.to_owned(), self.proto.to_owned(), egress, remote, self.count.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_columns_and_names_of_cilium() {
        let row = NatStats {
            r#type: "ipv4",
            egress: IpAddr::from([192, 0, 2, 1]),
            remote: IpAddr::from([198, 51, 100, 7]),
            remote_port: 443,
            proto: "TCP",
            count: 2,
        };
        assert_eq!(row.row(), ["ipv4", "TCP", "192.0.2.1", "198.51.100.7:443", "2"]);
        let text = r#"{"Type":"ipv4","EgressIP":"192.0.2.1","EndpointIP":"198.51.100.7","RemotePort":443,"Proto":"TCP","Count":2}"#;
        assert_eq!(serde_json::to_string(&row).unwrap(), text);
        let v6 = "2001:db8::1".parse().unwrap();
        let row = NatStats { r#type: "ipv6", egress: v6, remote: v6, remote_port: 0, proto: "ICMPv6", ..row };
        assert_eq!(row.row(), ["ipv6", "ICMPv6", "[2001:db8::1]", "[2001:db8::1]", "2"]);
    }
}

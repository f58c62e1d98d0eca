//! The row of table `mtu`.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

/// The least MTU of IPv6 (RFC 8200, section 5).
const MIN_MTU_V6: u32 = 1280;

/// The MTUs of packets to a prefix, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Mtu {
    /// The destinations: all of a family.
    pub prefix: IpNetwork,
    /// MTU of devices.
    #[serde(rename = "DeviceMTU")]
    pub device: u32,
    /// MTU of routes to pods of other nodes, with space for the headers of the tunnel.
    #[serde(rename = "RouteMTU")]
    pub route: u32,
    /// The same for packets that are encrypted already; that of devices, as there is no encryption.
    #[serde(rename = "RoutePostEncryptMTU")]
    pub route_post_encrypt: u32,
}

impl Mtu {
    /// Returns the rows of both families, IPv6 first.
    pub(crate) fn rows(device: u32, route: u32) -> [Mtu; 2] {
        // The length is valid in both families.
        let v6 = IpNetwork::V6(Ipv6Network::from(std::net::Ipv6Addr::UNSPECIFIED));
        let v6 = IpNetwork::new(v6.ip(), 0).unwrap_or(v6);
        let v4 = IpNetwork::V4(Ipv4Network::from(std::net::Ipv4Addr::UNSPECIFIED));
        let v4 = IpNetwork::new(v4.ip(), 0).unwrap_or(v4);
        let row = |prefix, route| Mtu { prefix, device, route, route_post_encrypt: device };
        [row(v6, route.max(MIN_MTU_V6)), row(v4, route)]
    }

    /// Queries the row of a prefix.
    #[must_use]
    pub fn by_prefix(prefix: IpNetwork) -> Query<Mtu> {
        Query::primary(prefix)
    }
}

impl TableSpec for Mtu {
    const NAME: &'static str = "mtu";
    const PRIMARY: &'static str = "cidr";
    type Key<'a> = IpNetwork;

    fn key(&self) -> IpNetwork {
        self.prefix
    }
}

impl TableDisplay for Mtu {
    fn columns() -> &'static [&'static str] {
        &["Prefix", "DeviceMTU", "RouteMTU", "RoutePostEncryptMTU"]
    }

    fn row(&self) -> Vec<String> {
        let numbers = [self.device, self.route, self.route_post_encrypt].map(|mtu| mtu.to_string());
        std::iter::once(self.prefix.to_string()).chain(numbers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cilium's answer (reference samples/shell/db_show_mtu.txt).
    #[test]
    fn rows_are_those_of_cilium() {
        let rows = Mtu::rows(1500, 1450);
        assert_eq!(rows[0].row(), ["::/0", "1500", "1450", "1500"]);
        assert_eq!(rows[1].row(), ["0.0.0.0/0", "1500", "1450", "1500"]);
        let text = r#"{"Prefix":"0.0.0.0/0","DeviceMTU":1500,"RouteMTU":1450,"RoutePostEncryptMTU":1500}"#;
        assert_eq!(serde_json::to_string(&rows[1]).unwrap(), text);
        assert_eq!(Mtu::rows(1300, 1230).map(|row| row.route), [1280, 1230], "IPv6 needs 1280");
    }
}

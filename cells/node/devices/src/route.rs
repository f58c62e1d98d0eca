//! Routes of the kernel.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Serialize, Serializer};

/// Routing table `main`.
pub const TABLE_MAIN: u32 = 254;
/// Routing table `local`.
pub const TABLE_LOCAL: u32 = 255;
/// Scope of a route to an address of the host itself.
pub const SCOPE_HOST: u8 = 254;
/// Scope of a route to destinations on the link.
pub const SCOPE_LINK: u8 = 253;

/// The key of a route. Table `routes` is ordered by it: routing table, link, destination (IPv4 as mapped into IPv6),
/// priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// Routing table.
    pub table: u32,
    /// Interface index, 0 for routes without one.
    pub link_index: u32,
    /// Destination.
    pub dst: IpNetwork,
    /// Metric.
    pub priority: u32,
}

/// A row of table `routes`. A route with several next hops is a row for each interface that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Table, link, destination and priority.
    pub key: RouteKey,
    /// `RTN_*`: 1 unicast, 2 local, 3 broadcast, ...
    pub kind: u8,
    /// 0 universe, 253 link, 254 host, 255 nowhere.
    pub scope: u8,
    /// Preferred source address.
    pub src: Option<IpAddr>,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// MTU in bytes, 0 for the device's.
    pub mtu: u32,
}

impl Route {
    /// Column names of table `routes`.
    pub const COLUMNS: &[&str] =
        &["Destination", "Source", "Gateway", "LinkIndex", "MTU", "Table", "Type", "Scope", "Priority"];

    /// Whether it is a default route of the main table.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.key.table == TABLE_MAIN && self.key.dst.prefix() == 0 && self.key.dst.ip().is_unspecified()
    }

    /// Returns the row's columns in the order of [`COLUMNS`](Self::COLUMNS).
    #[must_use]
    pub fn row(&self) -> Vec<String> {
        let mtu = match self.mtu {
            0 => String::new(),
            mtu => mtu.to_string(),
        };
        vec![
            self.key.dst.to_string(),
            text(self.src),
            text(self.gateway),
            self.key.link_index.to_string(),
            mtu,
            table_name(self.key.table),
            kind_name(self.kind),
            scope_name(self.scope),
            self.key.priority.to_string(),
        ]
    }
}

/// Returns an address as text, empty for none.
pub(crate) fn text(ip: Option<IpAddr>) -> String {
    ip.map(|ip| ip.to_string()).unwrap_or_default()
}

/// Returns the name of a routing table, or its number.
#[must_use]
pub fn table_name(table: u32) -> String {
    match table {
        0 => "unspec".to_owned(),
        252 => "compat".to_owned(),
        253 => "default".to_owned(),
        254 => "main".to_owned(),
        255 => "local".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the name of a route's type (`RTN_*`), or its number.
#[must_use]
pub fn kind_name(kind: u8) -> String {
    const NAMES: [&str; 12] = [
        "unspec",
        "unicast",
        "local",
        "broadcast",
        "anycast",
        "multicast",
        "blackhole",
        "unreachable",
        "prohibit",
        "throw",
        "nat",
        "xresolve",
    ];
    match NAMES.get(usize::from(kind)) {
        Some(name) => (*name).to_owned(),
        None => kind.to_string(),
    }
}

/// Returns the name of a scope, or its number.
#[must_use]
pub fn scope_name(scope: u8) -> String {
    match scope {
        0 => "universe".to_owned(),
        200 => "site".to_owned(),
        253 => "link".to_owned(),
        254 => "host".to_owned(),
        255 => "nowhere".to_owned(),
        other => other.to_string(),
    }
}

impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            table: u32,
            link_index: u32,
            r#type: u8,
            scope: u8,
            dst: String,
            src: String,
            gw: String,
            priority: u32,
            #[serde(rename = "MTU")]
            mtu: u32,
        }
        Wire {
            table: self.key.table,
            link_index: self.key.link_index,
            r#type: self.kind,
            scope: self.scope,
            dst: self.key.dst.to_string(),
            src: text(self.src),
            gw: text(self.gateway),
            priority: self.key.priority,
            mtu: self.mtu,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_reads_as_the_original_prints_it() {
        let route = Route {
            key: RouteKey {
                table: TABLE_MAIN,
                link_index: 4,
                dst: "10.244.0.0/16".parse().unwrap(),
                priority: 0,
            },
            kind: 1,
            scope: 0,
            src: Some([10, 244, 71, 14].into()),
            gateway: Some([10, 244, 71, 14].into()),
            mtu: 0,
        };
        assert_eq!(
            route.row().join(" "),
            "10.244.0.0/16 10.244.71.14 10.244.71.14 4  main unicast universe 0"
        );
        assert_eq!(
            serde_json::to_string(&route).unwrap(),
            r#"{"Table":254,"LinkIndex":4,"Type":1,"Scope":0,"Dst":"10.244.0.0/16","Src":"10.244.71.14","Gw":"10.244.71.14","Priority":0,"MTU":0}"#
        );
    }
}

//! The row of table `desired-routes`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use devices::TABLE_MAIN;
use ipnetwork::IpNetwork;
use reconciler::Status;
use serde::{Serialize, Serializer};
use statedb::{
    Index, IndexDef, IndexKey, KeyBuf, KeyParseError, Prefix, PrefixOf, Query, TableDisplay, TableSpec,
};

use crate::fib::{FibEntry, FibKey, PROTOCOL};

/// The administrative distance of routes that name none.
pub const DEFAULT_ADMIN_DISTANCE: u8 = 100;

/// A path of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Next hop; `None` if the destination is on the link.
    pub nexthop: Option<IpAddr>,
    /// Name of the device; `None` if the next hop determines it.
    pub device: Option<Arc<str>>,
    /// Index of the device when the route was written last, 0 before.
    pub(crate) index: u32,
}

impl Hop {
    /// Returns a path by a device.
    #[must_use]
    pub fn new(nexthop: Option<IpAddr>, device: Option<&str>) -> Self {
        Self { nexthop, device: device.map(Arc::from), index: 0 }
    }

    fn is_equal(&self, other: &Hop) -> bool {
        (&self.nexthop, &self.device) == (&other.nexthop, &other.device)
    }

    fn device_text(&self) -> Option<String> {
        self.device.as_ref().map(|name| format!("{name} ({})", self.index))
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nexthop = self.nexthop.map(|ip| ip.to_string());
        let parts: Vec<String> = nexthop.into_iter().chain(self.device_text()).collect();
        f.write_str(&parts.join(" "))
    }
}

/// A route that an owner desires. Of the routes of several owners with one [`FibKey`] the one with the lowest
/// administrative distance, then the first owner by name, is selected; only that one is written.
#[derive(Clone, Debug)]
pub struct DesiredRoute {
    /// Name of its owner.
    pub owner: Arc<str>,
    /// Table, destination, metric.
    pub key: FibKey,
    /// Administrative distance: a lower one is preferred.
    pub admin_distance: u8,
    /// Whether it is the one that the kernel has.
    pub selected: bool,
    /// Preferred source address.
    pub src: Option<IpAddr>,
    /// Its paths; none for routes that lead nowhere (`unreachable`, `blackhole`).
    pub hops: Vec<Hop>,
    /// MTU in bytes, 0 for the device's.
    pub mtu: u32,
    /// Scope: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// `RTN_*`; 0 for unicast.
    pub kind: u8,
    /// Its state of reconciliation.
    pub status: Status,
}

impl DesiredRoute {
    /// Returns a unicast route of the main table without a path.
    #[must_use]
    pub fn new(prefix: IpNetwork) -> Self {
        Self {
            owner: Arc::from(""),
            key: FibKey::main(prefix),
            admin_distance: DEFAULT_ADMIN_DISTANCE,
            selected: false,
            src: None,
            hops: Vec::new(),
            mtu: 0,
            scope: 0,
            kind: 0,
            status: Status::pending(),
        }
    }

    /// Adds a path by a device to destinations on the link.
    #[must_use]
    pub fn device(self, name: &str) -> Self {
        self.hop(Hop::new(None, Some(name)))
    }

    /// Adds a path by a next hop over a device.
    #[must_use]
    pub fn via(self, nexthop: IpAddr, device: &str) -> Self {
        self.hop(Hop::new(Some(nexthop), Some(device)))
    }

    /// Adds a path.
    #[must_use]
    pub fn hop(mut self, hop: Hop) -> Self {
        self.hops.push(hop);
        self
    }

    /// Sets the routing table.
    #[must_use]
    pub fn table(mut self, table: u32) -> Self {
        self.key.table = if table == 0 { TABLE_MAIN } else { table };
        self
    }

    /// Sets the metric.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.key.priority = priority;
        self
    }

    /// Sets the preferred source address.
    #[must_use]
    pub fn src(self, src: IpAddr) -> Self {
        Self { src: Some(src), ..self }
    }

    /// Sets the MTU.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu, ..self }
    }

    /// Sets the scope.
    #[must_use]
    pub fn scope(self, scope: u8) -> Self {
        Self { scope, ..self }
    }

    /// Sets the type (`RTN_*`).
    #[must_use]
    pub fn kind(self, kind: u8) -> Self {
        Self { kind, ..self }
    }

    /// Sets the administrative distance.
    #[must_use]
    pub fn admin_distance(self, admin_distance: u8) -> Self {
        Self { admin_distance, ..self }
    }

    /// Selects all rows of a key.
    #[must_use]
    pub fn by_key(key: FibKey) -> Query<Self> {
        BY_KEY.query(&key)
    }

    /// Selects the rows of an owner.
    #[must_use]
    pub fn by_owner(owner: &str) -> Prefix<Self> {
        Prefix::primary(owner)
    }

    /// Selects the row of an owner and a key.
    #[must_use]
    pub fn by_id(owner: &str, key: FibKey) -> Query<Self> {
        Query::primary(RouteId { owner, key })
    }

    /// Whether two rows of an owner desire the same, whatever became of them.
    pub(crate) fn is_equal(&self, other: &DesiredRoute) -> bool {
        let parts = |route: &DesiredRoute| {
            (route.key, route.admin_distance, route.src, route.mtu, route.scope, route.kind)
        };
        parts(self) == parts(other)
            && self.hops.len() == other.hops.len()
            && self.hops.iter().zip(&other.hops).all(|(a, b)| a.is_equal(b))
    }

    /// Copies the indexes of devices from a row that was reconciled.
    pub(crate) fn copy_indexes(&mut self, reconciled: &DesiredRoute) {
        for (hop, resolved) in self.hops.iter_mut().zip(&reconciled.hops) {
            if hop.device == resolved.device {
                hop.index = resolved.index;
            }
        }
    }

    /// Returns the order of preference among routes of one key: the least is selected.
    pub(crate) fn preference(&self) -> (u8, &str) {
        (self.admin_distance, &self.owner)
    }

    /// Returns the kernel's form of the route, with the devices as they were resolved last.
    pub(crate) fn entry(&self) -> FibEntry {
        FibEntry {
            key: self.key,
            protocol: PROTOCOL,
            kind: self.kind,
            scope: self.scope,
            src: self.src,
            mtu: self.mtu,
            hops: self.hops.iter().map(|hop| (hop.index, hop.nexthop)).collect(),
        }
        .normal()
    }
}

/// The primary key: `owner:table:prefix[:priority]`.
#[derive(Clone, Copy, Debug)]
pub struct RouteId<'a> {
    owner: &'a str,
    key: FibKey,
}

impl IndexKey for RouteId<'_> {
    fn encode(&self, key: &mut KeyBuf) {
        self.owner.encode(key);
        self.key.encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError::new(text, "a route: owner:table:prefix[:priority]");
        let (owner, rest) = text.split_once(':').ok_or_else(wrong)?;
        owner.encode(key);
        FibKey::encode_text(rest, key).map_err(|_| wrong())
    }

    /// Parses an owner, or a whole key.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        if text.contains(':') { Self::encode_text(text, key) } else { str::encode_text_prefix(text, key) }
    }
}

impl<'a> PrefixOf<RouteId<'a>> for str {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

const BY_KEY: Index<DesiredRoute, FibKey> = Index::new("table-prefix", |route, keys| keys.add(&route.key));
const BY_DEVICE: Index<DesiredRoute, u32> = Index::new("device", |route, keys| {
    keys.extend(route.hops.iter().map(|hop| &hop.index).filter(|index| **index != 0));
});

impl TableSpec for DesiredRoute {
    const NAME: &'static str = "desired-routes";
    const PRIMARY: &'static str = "id";
    type Key<'a> = RouteId<'a>;

    fn key(&self) -> RouteId<'_> {
        RouteId { owner: &self.owner, key: self.key }
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_KEY.def(), BY_DEVICE.def()]
    }
}

impl TableDisplay for DesiredRoute {
    fn columns() -> &'static [&'static str] {
        &[
            "Owner",
            "Table",
            "Prefix",
            "Priority",
            "AD",
            "Selected",
            "Nexthop",
            "Src",
            "Device",
            "MultiPath",
            "MTU",
            "Scope",
            "Type",
            "Status",
        ]
    }

    fn row(&self) -> Vec<String> {
        let none = || "none".to_owned();
        let number = |number: u32| if number == 0 { none() } else { number.to_string() };
        let single = match &*self.hops {
            [hop] => Some(hop),
            _ => None,
        };
        let paths: Vec<String> = self.hops.iter().map(Hop::to_string).collect();
        vec![
            self.owner.to_string(),
            devices::table_name(self.key.table),
            self.key.prefix.to_string(),
            number(self.key.priority),
            self.admin_distance.to_string(),
            self.selected.to_string(),
            single.and_then(|hop| hop.nexthop).map_or_else(none, |ip| ip.to_string()),
            self.src.map_or_else(none, |ip| ip.to_string()),
            single.and_then(Hop::device_text).unwrap_or_else(none),
            if paths.len() > 1 { format!("[{}]", paths.join(", ")) } else { none() },
            number(self.mtu),
            devices::scope_name(self.scope),
            devices::kind_name(self.kind),
            self.status.to_string(),
        ]
    }
}

impl Serialize for DesiredRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Path {
            device: Option<String>,
            nexthop: String,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            owner: &'a str,
            table: u32,
            prefix: IpNetwork,
            priority: u32,
            admin_distance: u8,
            selected: bool,
            nexthop: String,
            src: String,
            device: Option<String>,
            multi_path: Option<Vec<Path>>,
            #[serde(rename = "MTU")]
            mtu: u32,
            scope: u8,
            r#type: u8,
            status: &'a Status,
        }
        let text = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
        let path = |hop: &Hop| Path { device: hop.device_text(), nexthop: text(hop.nexthop) };
        let single = match &*self.hops {
            [hop] => Some(path(hop)),
            _ => None,
        };
        let (device, nexthop) = single.map_or((None, String::new()), |path| (path.device, path.nexthop));
        Wire {
            owner: &self.owner,
            table: self.key.table,
            prefix: self.key.prefix,
            priority: self.key.priority,
            admin_distance: self.admin_distance,
            selected: self.selected,
            nexthop,
            src: text(self.src),
            device,
            multi_path: (self.hops.len() > 1).then(|| self.hops.iter().map(path).collect()),
            mtu: self.mtu,
            scope: self.scope,
            r#type: self.kind,
            status: &self.status,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_as_cilium_prints_it() {
        let mut route = DesiredRoute::new("10.244.1.0/24".parse().unwrap())
            .via([10, 0, 0, 2].into(), "eth0")
            .src([10, 0, 0, 1].into())
            .mtu(1450);
        route.owner = Arc::from("node/default/b");
        route.hops[0].index = 3;
        let row = route.row();
        assert_eq!(
            row[..13].join(" "),
            "node/default/b main 10.244.1.0/24 none 100 false 10.0.0.2 10.0.0.1 eth0 (3) none 1450 universe unspec"
        );
        let route = route.hop(Hop::new(None, Some("eth1"))).priority(7);
        assert_eq!(route.row()[9], "[10.0.0.2 eth0 (3), eth1 (0)]");
        let json = serde_json::to_value(&route).unwrap();
        assert_eq!((&json["Prefix"], &json["Device"]), (&"10.244.1.0/24".into(), &serde_json::Value::Null));
        let mut key = KeyBuf::new();
        RouteId::encode_text("node/default/b:main:10.244.1.0/24:7", &mut key).unwrap();
        let mut direct = KeyBuf::new();
        TableSpec::key(&route).encode(&mut direct);
        assert_eq!(key, direct);
    }
}

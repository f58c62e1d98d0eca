//! The four tables: keys, indexes, queries.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use statedb::{
    FromValue, Index, IndexDef, IndexKey, KeyBuf, KeyParseError, Prefix, PrefixOf, Query, TableDisplay,
    TableSpec,
};

use crate::{Device, Neighbor, NodeAddress, Route, RouteKey};

/// An address as a key; IPv4 is mapped into IPv6, which gives rows Cilium's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappedIp(Ipv6Addr);

impl From<IpAddr> for MappedIp {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        })
    }
}

impl IndexKey for MappedIp {
    fn encode(&self, key: &mut KeyBuf) {
        self.0.encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        Self::from(parse::<IpAddr>(text, "an IP address")?).encode(key);
        Ok(())
    }

    fn encode_raw(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        u128::encode_raw(raw, key)
    }

    fn encode_raw_bound(raw: &[u8], key: &mut KeyBuf) -> Result<bool, KeyParseError> {
        u128::encode_raw_bound(raw, key)
    }
}

fn parse<V: std::str::FromStr>(text: &str, expected: &'static str) -> Result<V, KeyParseError> {
    text.parse().map_err(|_| KeyParseError::new(text, expected))
}

/// Orders by table, link, destination, priority.
impl IndexKey for RouteKey {
    fn encode(&self, key: &mut KeyBuf) {
        self.table.encode(key);
        self.link_index.encode(key);
        MappedIp::from(self.dst.ip()).encode(key);
        let mapping = if self.dst.is_ipv4() { 96 } else { 0 };
        (self.dst.prefix() + mapping).encode(key);
        self.priority.encode(key);
    }

    /// Parses `table,link,destination` or `table,link,destination,priority`.
    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let expected = "a route: table,link,prefix[,priority]";
        let parts: Vec<&str> = text.split(',').collect();
        let (table, link, dst, priority) = match parts.as_slice() {
            [table, link, dst] => (table, link, dst, &"0"),
            [table, link, dst, priority] => (table, link, dst, priority),
            _ => {
                return Err(KeyParseError::new(text, expected));
            }
        };
        Self {
            table: parse(table, expected)?,
            link_index: parse(link, expected)?,
            dst: parse(dst, expected)?,
            priority: parse(priority, expected)?,
        }
        .encode(key);
        Ok(())
    }
}

impl PrefixOf<RouteKey> for u32 {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

const DEVICE_BY_NAME: Index<Device, str> = Index::new("name", |device, keys| {
    keys.add(&device.name);
    keys.extend(device.alt_names.iter().map(String::as_str));
});
const DEVICE_BY_SELECTED: Index<Device, bool> =
    Index::new("selected", |device, keys| keys.add(&device.selected));
const DEVICE_BY_GROUP: Index<Device, u32> = Index::new("group", |d, keys| keys.add(&d.group));

impl TableSpec for Device {
    const NAME: &'static str = "devices";
    const PRIMARY: &'static str = "id";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.index
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![DEVICE_BY_NAME.def(), DEVICE_BY_SELECTED.def(), DEVICE_BY_GROUP.def()]
    }
}

impl TableDisplay for Device {
    fn columns() -> &'static [&'static str] {
        Self::COLUMNS
    }

    fn row(&self) -> Vec<String> {
        Device::row(self)
    }
}

impl Device {
    /// Selects the device of this index.
    #[must_use]
    pub fn by_index(index: u32) -> Query<Self> {
        Query::primary(index)
    }

    /// Selects the device of this name or alternative name.
    #[must_use]
    pub fn by_name(name: &str) -> Query<Self> {
        DEVICE_BY_NAME.query(name)
    }

    /// Selects devices with names that begin with a prefix.
    #[must_use]
    pub fn by_name_prefix(start: &str) -> Prefix<Self> {
        DEVICE_BY_NAME.prefix(start)
    }

    /// Selects the devices that are selected, or the others.
    #[must_use]
    pub fn by_selected(selected: bool) -> Query<Self> {
        DEVICE_BY_SELECTED.query(&selected)
    }

    /// Selects the devices of a group.
    #[must_use]
    pub fn by_group(group: u32) -> Query<Self> {
        DEVICE_BY_GROUP.query(&group)
    }
}

const ROUTE_BY_LINK: Index<Route, u32> =
    Index::new("LinkIndex", |route, keys| keys.add(&route.key.link_index));

impl TableSpec for Route {
    const NAME: &'static str = "routes";
    const PRIMARY: &'static str = "id";
    type Key<'a> = RouteKey;

    fn key(&self) -> RouteKey {
        self.key
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![ROUTE_BY_LINK.def()]
    }
}

impl TableDisplay for Route {
    fn columns() -> &'static [&'static str] {
        Self::COLUMNS
    }

    fn row(&self) -> Vec<String> {
        Route::row(self)
    }
}

impl Route {
    /// Selects the route of this key.
    #[must_use]
    pub fn by_key(key: RouteKey) -> Query<Self> {
        Query::primary(key)
    }

    /// Selects routes that use this link.
    #[must_use]
    pub fn by_link(index: u32) -> Query<Self> {
        ROUTE_BY_LINK.query(&index)
    }

    /// Selects routes of a routing table.
    #[must_use]
    pub fn by_table(table: u32) -> Prefix<Self> {
        Prefix::primary(&table)
    }

    /// Returns the lower bound of the routes of `table` over `link_index` to `dst`, which are ordered by priority.
    #[must_use]
    pub fn from_destination(table: u32, link_index: u32, dst: IpNetwork) -> Query<Self> {
        Query::primary(RouteKey { table, link_index, dst, priority: 0 })
    }
}

const NEIGHBOR_BY_LINK: Index<Neighbor, u32> =
    Index::new("LinkIndex", |neighbor, keys| keys.add(&neighbor.link_index));
const NEIGHBOR_BY_IP: Index<Neighbor, MappedIp> = Index::new("IPAddr", |n, keys| keys.add(&n.ip.into()));

impl TableSpec for Neighbor {
    const NAME: &'static str = "neighbors";
    const PRIMARY: &'static str = "ID";
    type Key<'a> = (u32, MappedIp);

    fn key(&self) -> (u32, MappedIp) {
        (self.link_index, self.ip.into())
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![NEIGHBOR_BY_LINK.def(), NEIGHBOR_BY_IP.def()]
    }
}

impl TableDisplay for Neighbor {
    fn columns() -> &'static [&'static str] {
        Self::COLUMNS
    }

    fn row(&self) -> Vec<String> {
        Neighbor::row(self)
    }
}

impl Neighbor {
    /// Selects the entry of a link for an address.
    #[must_use]
    pub fn by_id(link_index: u32, ip: IpAddr) -> Query<Self> {
        Query::primary((link_index, ip.into()))
    }

    /// Selects all entries of a link.
    #[must_use]
    pub fn by_link(index: u32) -> Query<Self> {
        NEIGHBOR_BY_LINK.query(&index)
    }

    /// Selects all entries for an address.
    #[must_use]
    pub fn by_ip(ip: IpAddr) -> Query<Self> {
        NEIGHBOR_BY_IP.query(&ip.into())
    }
}

const ADDRESS_BY_DEVICE: Index<NodeAddress, str> =
    Index::new("name", |address, keys| keys.add(&address.device_name));
const ADDRESS_BY_NODE_PORT: Index<NodeAddress, bool> =
    Index::new("node-port", |address, keys| keys.add(&address.node_port));

impl TableSpec for NodeAddress {
    const NAME: &'static str = "node-addresses";
    const PRIMARY: &'static str = "id";
    type Key<'a> = (MappedIp, &'a str);

    fn key(&self) -> (MappedIp, &str) {
        (self.addr.into(), &self.device_name)
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![ADDRESS_BY_DEVICE.def(), ADDRESS_BY_NODE_PORT.def()]
    }
}

impl TableDisplay for NodeAddress {
    const FROM_VALUE: Option<FromValue<Self>> = Some(serde_json::from_value);

    fn columns() -> &'static [&'static str] {
        Self::COLUMNS
    }

    fn row(&self) -> Vec<String> {
        NodeAddress::row(self)
    }
}

impl NodeAddress {
    /// Selects the row of an address on a device.
    #[must_use]
    pub fn by_id(addr: IpAddr, device_name: &str) -> Query<Self> {
        Query::primary((addr.into(), device_name))
    }

    /// Selects the addresses of a device, [`WILDCARD_DEVICE`](crate::WILDCARD_DEVICE) for the node's own.
    #[must_use]
    pub fn by_device(name: &str) -> Query<Self> {
        ADDRESS_BY_DEVICE.query(name)
    }

    /// Selects the addresses on which NodePort services answer, or the others.
    #[must_use]
    pub fn by_node_port(node_port: bool) -> Query<Self> {
        ADDRESS_BY_NODE_PORT.query(&node_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TABLE_LOCAL;

    #[test]
    fn route_keys_have_the_order_of_cilium() {
        let key = |table: u32, link: u32, dst: &str| {
            let mut key = KeyBuf::new();
            let route = RouteKey { table, link_index: link, dst: dst.parse().unwrap(), priority: 0 };
            route.encode(&mut key);
            let mut parsed = KeyBuf::new();
            RouteKey::encode_text(&format!("{table},{link},{dst}"), &mut parsed).unwrap();
            assert_eq!(key, parsed);
            key
        };
        assert!(key(254, 9, "fe80::/64") < key(255, 1, "::1/128"));
        assert!(key(TABLE_LOCAL, 1, "::1/128") < key(TABLE_LOCAL, 1, "127.0.0.0/8"));
        assert!(key(TABLE_LOCAL, 1, "127.0.0.1/32") < key(TABLE_LOCAL, 1, "fe80::/64"));
        assert!(key(TABLE_LOCAL, 1, "0.0.0.0/0") != key(TABLE_LOCAL, 1, "::/0"));
        let error = RouteKey::encode_text("254,x", &mut KeyBuf::new()).unwrap_err();
        assert_eq!(error.to_string(), "`254,x` is not a route: table,link,prefix[,priority]");
    }
}

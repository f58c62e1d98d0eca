//! The table of addresses to which packets may be forwarded, and its owners.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use devices::MappedIp;
use serde::{Deserialize, Serialize};
use statedb::{FromValue, Initializer, Query, RwTable, Table, TableDisplay, TableSpec, Writer};

/// The kind of an [`Owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerKind {
    /// Another node.
    Node,
    /// A service, for its backends.
    Service,
}

/// The reason why an address is in the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"))]
pub struct Owner {
    /// Its kind.
    #[serde(rename(deserialize = "type", serialize = "Type"))]
    pub kind: OwnerKind,
    /// Its name among those of its kind, for nodes `cluster/name`.
    #[serde(rename(serialize = "ID"))]
    pub id: Arc<str>,
}

impl Owner {
    /// Returns the owner for a node, by `cluster/name`.
    #[must_use]
    pub fn node(full_name: &str) -> Self {
        Self { kind: OwnerKind::Node, id: Arc::from(full_name) }
    }

    /// Returns the owner for a service.
    #[must_use]
    pub fn service(id: &str) -> Self {
        Self { kind: OwnerKind::Service, id: Arc::from(id) }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            OwnerKind::Node => "node",
            OwnerKind::Service => "service",
        };
        write!(f, "{kind}:{}", self.id)
    }
}

/// A row of table `forwardable-ip`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"))]
pub struct ForwardableIp {
    /// The address.
    #[serde(rename(serialize = "IP"))]
    pub ip: IpAddr,
    /// Its owners, sorted.
    #[serde(default)]
    pub owners: Vec<Owner>,
}

impl ForwardableIp {
    /// Selects the row of an address.
    #[must_use]
    pub fn by_ip(ip: IpAddr) -> Query<Self> {
        Query::primary(MappedIp::from(ip))
    }
}

impl TableSpec for ForwardableIp {
    const NAME: &'static str = "forwardable-ip";
    const PRIMARY: &'static str = "id";
    type Key<'a> = MappedIp;

    fn key(&self) -> MappedIp {
        self.ip.into()
    }
}

impl TableDisplay for ForwardableIp {
    const FROM_VALUE: Option<FromValue<Self>> = Some(serde_json::from_value);

    fn columns() -> &'static [&'static str] {
        &["IP", "Owners"]
    }

    fn row(&self) -> Vec<String> {
        let owners: Vec<String> = self.owners.iter().map(Owner::to_string).collect();
        vec![self.ip.to_string(), owners.join(", ")]
    }
}

/// Inserts addresses on behalf of owners. A row stays until its last owner removes it.
#[derive(Clone, Debug)]
pub struct ForwardableIps(Arc<RwTable<ForwardableIp>>);

impl ForwardableIps {
    pub(crate) fn new(table: Arc<RwTable<ForwardableIp>>) -> Self {
        Self(table)
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> Table<ForwardableIp> {
        self.0.reader()
    }

    /// Registers a source of addresses. Until it [has finished](Self::finish) no entry of the previous run is deleted.
    pub fn register_initializer(&self, name: &str) -> Initializer<ForwardableIp> {
        let mut txn = self.0.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Declares that a source has named all of its addresses.
    pub fn finish(&self, initializer: Initializer<ForwardableIp>) {
        let mut txn = self.0.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Adds an owner to an address.
    pub fn insert(&self, ip: IpAddr, owner: &Owner) {
        self.change(|txn| insert(txn, ip, owner));
    }

    /// Removes an owner of an address.
    pub fn delete(&self, ip: IpAddr, owner: &Owner) {
        self.change(|txn| delete(txn, ip, owner));
    }

    pub(crate) fn change(&self, work: impl FnOnce(&mut Writer<'_, ForwardableIp>)) {
        let mut txn = self.0.write();
        work(&mut txn);
        txn.commit();
    }
}

pub(crate) fn insert(txn: &mut Writer<'_, ForwardableIp>, ip: IpAddr, owner: &Owner) {
    let row = txn.get(ForwardableIp::by_ip(ip));
    let mut row =
        row.map_or_else(|| ForwardableIp { ip, owners: Vec::new() }, |row| ForwardableIp::clone(row));
    if let Err(at) = row.owners.binary_search(owner) {
        row.owners.insert(at, owner.clone());
        txn.insert(row);
    }
}

pub(crate) fn delete(txn: &mut Writer<'_, ForwardableIp>, ip: IpAddr, owner: &Owner) {
    let Some(row) = txn.get(ForwardableIp::by_ip(ip)) else { return };
    let mut row = ForwardableIp::clone(row);
    row.owners.retain(|other| other != owner);
    if row.owners.is_empty() {
        txn.delete(ForwardableIp::by_ip(ip));
    } else {
        txn.insert(row);
    }
}

#[cfg(test)]
mod tests {
    use statedb::Db;

    use super::*;

    #[test]
    fn a_row_stays_until_its_last_owner_removes_it() {
        let table = Arc::new(Db::new().table_with_display::<ForwardableIp>().unwrap());
        let ips = ForwardableIps::new(Arc::clone(&table));
        let rows = || {
            let snapshot = table.reader().snapshot();
            table.all(&snapshot).map(|row| row.row().join(" ")).collect::<Vec<String>>()
        };
        let (node, service) = (Owner::node("default/b"), Owner::service("10.9.0.1:80"));
        let (v4, v6) = (IpAddr::from([192, 0, 2, 2]), "2001:db8::2".parse().unwrap());
        ips.insert(v4, &service);
        ips.insert(v4, &node);
        ips.insert(v6, &node);
        let revision = table.revision(&table.snapshot());
        ips.insert(v4, &node);
        assert_eq!(table.revision(&table.snapshot()), revision, "an equal one is not written");
        assert_eq!(rows(), ["192.0.2.2 node:default/b, service:10.9.0.1:80", "2001:db8::2 node:default/b"]);
        ips.delete(v4, &Owner::node("b"));
        ips.delete(v4, &node);
        ips.delete(v6, &node);
        ips.delete(v6, &node);
        assert_eq!(rows(), ["192.0.2.2 service:10.9.0.1:80"]);
    }

    #[test]
    fn a_row_is_serialized_as_cilium_does() {
        let value = serde_json::json!({"ip": "192.0.2.2", "owners": [{"type": "node", "id": "default/b"}]});
        let row: ForwardableIp = serde_json::from_value(value).unwrap();
        assert_eq!(row.owners, [Owner::node("default/b")]);
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"IP":"192.0.2.2","Owners":[{"Type":"node","ID":"default/b"}]}"#);
        let bare: ForwardableIp = serde_json::from_value(serde_json::json!({"ip": "fd00::1"})).unwrap();
        assert!(bare.owners.is_empty());
    }
}

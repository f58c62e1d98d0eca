//! Two small tables: pods with shared and several keys, services with a unique secondary key.

use serde::Serialize;
use statedb::{Index, IndexDef, Prefix, Query, TableDisplay, TableSpec};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pod {
    pub(crate) id: u8,
    pub(crate) node: String,
    pub(crate) ports: Vec<u16>,
}

pub(crate) const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
pub(crate) const BY_PORT: Index<Pod, u16> = Index::new("port", |pod, keys| keys.extend(&pod.ports));

impl TableSpec for Pod {
    const NAME: &'static str = "pods";
    type Key<'a> = u8;

    fn key(&self) -> u8 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NODE.def(), BY_PORT.def()]
    }
}

impl TableDisplay for Pod {
    fn columns() -> &'static [&'static str] {
        &["ID", "Node"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.node.clone()]
    }
}

pub(crate) fn pod(id: u8, node: &str, ports: &[u16]) -> Pod {
    Pod { id, node: node.to_owned(), ports: ports.to_vec() }
}

pub(crate) fn by_id(id: u8) -> Query<Pod> {
    Query::primary(id)
}

pub(crate) fn by_node(node: &str) -> Query<Pod> {
    BY_NODE.query(node)
}

pub(crate) fn node_prefix(start: &str) -> Prefix<Pod> {
    BY_NODE.prefix(start)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) address: Option<u8>,
}

pub(crate) const BY_ADDRESS: Index<Service, u8> =
    Index::unique("address", |service, keys| keys.extend(&service.address));

impl TableSpec for Service {
    const NAME: &'static str = "services";
    const UNIQUE_SECONDARY: bool = true;
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_ADDRESS.def()]
    }
}

impl TableDisplay for Service {
    fn columns() -> &'static [&'static str] {
        &["Name", "Address"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.clone(), format!("{:?}", self.address)]
    }
}

pub(crate) fn service(name: &str, address: Option<u8>) -> Service {
    Service { name: name.to_owned(), address }
}

/// A row with a number as its only field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Numbered(pub(crate) u32);

impl TableSpec for Numbered {
    const NAME: &'static str = "numbered";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.0
    }
}

impl TableDisplay for Numbered {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

//! The table `frontends`: addresses that are served, each with the backends chosen for it.

use std::sync::Arc;

use reconciler::{Status, StatusKind};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use statedb::{Index, IndexDef, Obj, Query, TableSpec, age};

use crate::address::LbAddress;
use crate::backend::Backend;
use crate::name::ServiceName;
use crate::service::Service;

/// What kind of address a frontend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontendType {
    /// Of the cluster alone.
    ClusterIP,
    /// A port of every node.
    NodePort,
    /// An address that somebody routes to the cluster.
    ExternalIPs,
    /// An address of a load balancer.
    LoadBalancer,
}

impl FrontendType {
    /// As in tables and in the REST API.
    pub fn name(self) -> &'static str {
        match self {
            FrontendType::ClusterIP => "ClusterIP",
            FrontendType::NodePort => "NodePort",
            FrontendType::ExternalIPs => "ExternalIPs",
            FrontendType::LoadBalancer => "LoadBalancer",
        }
    }

    /// Whether the datapath translates packets to it. Node ports it does not serve.
    pub fn is_served(self) -> bool {
        self != FrontendType::NodePort
    }
}

/// What a source says of a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendParams {
    /// Where it is.
    pub address: LbAddress,
    /// What kind of address that is.
    pub kind: FrontendType,
    /// Name of its port, which backends with names must have, too; empty for all.
    pub port_name: Arc<str>,
    /// The service's port, also of a node port.
    pub service_port: u16,
}

/// A frontend with its service and backends.
#[derive(Debug, Clone)]
pub struct Frontend {
    /// What its source says of it.
    pub params: FrontendParams,
    /// Its service.
    pub service: Obj<Service>,
    /// Where its connections go: rows of the table `backends`, by address, one an address.
    pub backends: Arc<[Obj<Backend>]>,
    /// Number of its rows in the kernel, 0 before it has any.
    pub id: u16,
    /// Whether the kernel has it.
    pub status: Status,
}

impl Frontend {
    /// The frontend at an address.
    pub fn by_address(address: &LbAddress) -> Query<Frontend> {
        Query::primary(*address)
    }

    /// All frontends of a service, by address.
    pub fn by_service(service: &ServiceName) -> Query<Frontend> {
        BY_SERVICE.query(service.as_str())
    }

    /// Whether the datapath serves it; its status says why not.
    pub fn is_served(&self) -> bool {
        self.status.kind() != StatusKind::Unset
    }

    /// Its address.
    pub fn address(&self) -> LbAddress {
        self.params.address
    }
}

const BY_SERVICE: Index<Frontend, str> =
    Index::new("service", |frontend, keys| keys.add(frontend.service.name.as_str()));

/// With all fields of the original; redirects to pods of this node are not built.
impl Serialize for Frontend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Frontend", 10)?;
        s.serialize_field("Address", &self.params.address)?;
        s.serialize_field("Type", self.params.kind.name())?;
        s.serialize_field("ServiceName", &self.service.name)?;
        s.serialize_field("PortName", &*self.params.port_name)?;
        s.serialize_field("ServicePort", &self.params.service_port)?;
        s.serialize_field("Status", &self.status)?;
        s.serialize_field("Backends", &*self.backends)?;
        s.serialize_field("HealthCheckBackends", &*self.backends)?;
        s.serialize_field("ID", &self.id)?;
        s.serialize_field("RedirectTo", &None::<()>)?;
        s.end()
    }
}

impl TableSpec for Frontend {
    const NAME: &'static str = "frontends";
    const PRIMARY: &'static str = "address";
    type Key<'a> = LbAddress;

    fn key(&self) -> LbAddress {
        self.params.address
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_SERVICE.def()]
    }

    fn columns() -> &'static [&'static str] {
        &["Address", "Type", "ServiceName", "PortName", "Backends", "RedirectTo", "Status", "Since", "Error"]
    }

    fn row(&self) -> Vec<String> {
        const SHOWN: usize = 5;
        let shown: Vec<_> = self.backends.iter().take(SHOWN).map(|b| b.address.to_string()).collect();
        let more = match self.backends.len() {
            0..=SHOWN => String::new(),
            all => format!(" + {} more ...", all - SHOWN),
        };
        vec![
            self.params.address.to_string(),
            self.params.kind.name().to_owned(),
            self.service.name.to_string(),
            self.params.port_name.to_string(),
            shown.join(", ") + &more,
            String::new(),
            self.status.kind().to_string(),
            age::since(self.status.updated_at()),
            self.status.error().unwrap_or_default().to_owned(),
        ]
    }
}

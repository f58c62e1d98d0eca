//! The table `frontends`: served addresses, each with its selected backends.

use std::sync::Arc;

use reconciler::{Status, StatusKind};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use statedb::{Index, IndexDef, Obj, Prefix, Query, TableDisplay, TableSpec, age};

use crate::model::address::LbAddress;
use crate::model::backend::Backend;
use crate::model::go_serialize::{Encoded, Encoding, Fields, GoSerialize, yaml};
use crate::model::name::ServiceName;
use crate::model::service::Service;

/// The kind of address of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontendType {
    /// An address of the cluster network.
    ClusterIP,
    /// A port of every node.
    NodePort,
    /// An address that is routed to the cluster from outside.
    ExternalIPs,
    /// An address of a load balancer.
    LoadBalancer,
    /// A port of this node that is forwarded to a pod.
    HostPort,
    /// An address that a policy redirects to pods of this node.
    LocalRedirect,
}

impl FrontendType {
    /// Returns the name in tables and in the REST API.
    pub fn name(self) -> &'static str {
        match self {
            FrontendType::ClusterIP => "ClusterIP",
            FrontendType::NodePort => "NodePort",
            FrontendType::ExternalIPs => "ExternalIPs",
            FrontendType::LoadBalancer => "LoadBalancer",
            FrontendType::HostPort => "HostPort",
            FrontendType::LocalRedirect => "LocalRedirect",
        }
    }
}

/// A frontend as defined by a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendParams {
    /// Its address.
    pub address: LbAddress,
    /// The kind of address.
    pub kind: FrontendType,
    /// The name of its port, which backends with named ports must have, too; empty for all.
    pub port_name: Arc<str>,
    /// The service's port, for a node port as well.
    pub service_port: u16,
}

/// A frontend with its service and backends.
#[derive(Debug, Clone)]
pub struct Frontend {
    /// The definition by its source.
    pub params: FrontendParams,
    /// Its service.
    pub service: Obj<Service>,
    /// Its selected backends: rows of the table `backends`, by address, one for each address.
    pub backends: Arc<[Obj<Backend>]>,
    /// The backends to health-check: the selected ones, and those not checked yet if only checked ones are selected.
    pub health_check_backends: Arc<[Obj<Backend>]>,
    /// The service whose backends it uses instead of those of its own service.
    pub redirect_to: Option<ServiceName>,
    /// Its id in the kernel (rev_nat), 0 before it has map entries.
    pub id: u16,
    /// The state of its reconciliation.
    pub status: Status,
}

impl Frontend {
    /// Returns a frontend without backends.
    pub(crate) fn new(params: FrontendParams, service: Obj<Service>) -> Frontend {
        let none: Arc<[Obj<Backend>]> = Arc::default();
        let (backends, health_check_backends) = (none.clone(), none);
        let status = Status::pending();
        Frontend { params, service, backends, health_check_backends, redirect_to: None, id: 0, status }
    }

    /// Returns a query for the frontend at an address.
    pub fn by_address(address: &LbAddress) -> Query<Frontend> {
        Query::primary(*address)
    }

    /// Returns a query for all frontends of a service, by address.
    pub fn by_service(service: &ServiceName) -> Query<Frontend> {
        BY_SERVICE.query(service.as_str())
    }

    /// Returns a query for all frontends that are redirected to the backends of this service.
    pub(crate) fn by_redirect(service: &ServiceName) -> Query<Frontend> {
        BY_REDIRECT.query(service.as_str())
    }

    /// Returns a query for all redirected frontends.
    pub(crate) fn redirected() -> Prefix<Frontend> {
        BY_REDIRECT.prefix("")
    }

    /// Whether it is desired in the maps; otherwise its status contains the reason.
    pub fn is_reconciled(&self) -> bool {
        self.status.kind() != StatusKind::Unset
    }

    /// Returns its address.
    pub fn address(&self) -> LbAddress {
        self.params.address
    }
}

const BY_SERVICE: Index<Frontend, str> =
    Index::new("service", |frontend, keys| keys.add(frontend.service.name.as_str()));

const BY_REDIRECT: Index<Frontend, str> = Index::new("redirect-to", |frontend, keys| {
    keys.extend(frontend.redirect_to.iter().map(ServiceName::as_str));
});

/// [`FrontendParams`] with the name of the service; a separate struct in YAML.
struct Params<'f>(&'f Frontend);

impl GoSerialize for Params<'_> {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        let Frontend { params, service, .. } = self.0;
        fields.add("Address", &params.address)?;
        fields.add("Type", params.kind.name())?;
        fields.add("ServiceName", &service.name)?;
        fields.add("PortName", &*params.port_name)?;
        fields.add("ServicePort", &params.service_port)
    }
}

impl GoSerialize for Frontend {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        match fields.form {
            Encoding::Json => Params(self).fields(fields)?,
            Encoding::Yaml => fields.add("FrontendParams", &Encoded(&Params(self), Encoding::Yaml))?,
        }
        fields.add("Status", &self.status)?;
        fields.rows("Backends", self.backends.iter().map(|backend| &**backend))?;
        fields.rows("HealthCheckBackends", self.health_check_backends.iter().map(|backend| &**backend))?;
        fields.add("ID", &self.id)?;
        fields.add("RedirectTo", &self.redirect_to)
    }
}

impl Serialize for Frontend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Encoded(self, Encoding::Json).serialize(serializer)
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
        vec![BY_SERVICE.def(), BY_REDIRECT.def()]
    }
}

impl TableDisplay for Frontend {
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
            self.redirect_to.as_ref().map(ToString::to_string).unwrap_or_default(),
            self.status.kind().to_string(),
            age::since(self.status.updated_at()),
            self.status.error().unwrap_or_default().to_owned(),
        ]
    }

    fn yaml(&self) -> Option<String> {
        yaml(self)
    }
}

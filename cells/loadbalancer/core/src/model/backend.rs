//! The table `backends`: destinations of a service's connections, a row for each source.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_tables::SmolStr;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use statedb::{
    Index, IndexDef, IndexKey, KeyBuf, KeyParseError, Prefix, PrefixOf, Query, TableDisplay, TableSpec,
};

use crate::model::address::LbAddress;
use crate::model::go_serialize::{Encoded, Encoding, Fields, GoSerialize, yaml};
use crate::model::name::ServiceName;
use crate::model::source::Source;

/// Weight of a backend without an explicit one.
pub const DEFAULT_WEIGHT: u16 = 100;

/// The state of a backend, the most usable first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendState {
    /// New connections, and existing ones.
    #[default]
    Active,
    /// Existing connections, and new ones as a last resort.
    Terminating,
    /// Existing connections.
    TerminatingNotServing,
    /// Existing connections, until it is healthy again.
    Quarantined,
    /// No connections.
    Maintenance,
}

impl BackendState {
    /// Returns the name in tables and in the REST API.
    pub fn name(self) -> &'static str {
        match self {
            BackendState::Active => "active",
            BackendState::Terminating => "terminating",
            BackendState::TerminatingNotServing => "terminating-not-serving",
            BackendState::Quarantined => "quarantined",
            BackendState::Maintenance => "maintenance",
        }
    }
}

/// The topology hints of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Zone {
    /// Its zone.
    pub zone: SmolStr,
    /// The zones whose clients it is meant for; empty without hints.
    pub for_zones: Vec<SmolStr>,
}

/// A backend of a service, by one source. Of several rows of one address that of the source with the highest precedence
/// takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The service.
    pub service_name: ServiceName,
    /// Its address.
    pub address: LbAddress,
    /// Names of the ports it serves; empty for all.
    pub port_names: Arc<[SmolStr]>,
    /// Its share of new connections, if the algorithm uses weights.
    pub weight: u16,
    /// Its node; empty for this one.
    pub node_name: SmolStr,
    /// Its zone and hints.
    pub zone: Option<Arc<Zone>>,
    /// Its cluster, 0 for this one.
    pub cluster_id: u32,
    /// Its source.
    pub source: Source,
    /// Its state as reported by the source.
    pub state: BackendState,
    /// Whether the last health check of the service failed.
    pub unhealthy: bool,
    /// The time of the last health check.
    pub unhealthy_updated_at: Option<SystemTime>,
}

impl Backend {
    /// Returns an active backend of default weight on this node.
    pub fn new(service_name: ServiceName, address: LbAddress, source: Source) -> Backend {
        Backend {
            service_name,
            address,
            port_names: Arc::default(),
            weight: DEFAULT_WEIGHT,
            node_name: SmolStr::default(),
            zone: None,
            cluster_id: 0,
            source,
            state: BackendState::Active,
            unhealthy: false,
            unhealthy_updated_at: None,
        }
    }

    /// Returns a query for all rows of a service, by address, the source with the highest precedence first.
    pub fn of_service(service: &ServiceName) -> Prefix<Backend> {
        Prefix::primary(service)
    }

    /// Returns a query for the rows of a service at an address.
    pub(crate) fn of_service_at(service: &ServiceName, address: &LbAddress) -> Prefix<Backend> {
        let mut key = KeyBuf::of(service.as_str());
        address.encode(&mut key);
        Prefix::raw_primary(key)
    }

    /// Returns a query for all rows of an address.
    pub fn by_address(address: &LbAddress) -> Query<Backend> {
        BY_ADDRESS.query(address)
    }

    /// Whether it serves a port of this name.
    pub(crate) fn serves(&self, port_name: &str) -> bool {
        port_name.is_empty()
            || self.port_names.is_empty()
            || self.port_names.iter().any(|name| name == port_name)
    }

    /// Returns the effective state: that of the source, unless a health check has failed.
    pub fn effective_state(&self) -> BackendState {
        if self.unhealthy { BackendState::Quarantined } else { self.state }
    }
}

impl From<&Zone> for Arc<Zone> {
    fn from(zone: &Zone) -> Arc<Zone> {
        Arc::new(zone.clone())
    }
}

impl GoSerialize for Zone {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        fields.add("Zone", &self.zone)?;
        fields.list("ForZones", &self.for_zones)
    }
}

impl GoSerialize for Backend {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        let form = fields.form;
        fields.add("ServiceName", &self.service_name)?;
        fields.add("Address", &self.address)?;
        fields.list("PortNames", &self.port_names)?;
        fields.add("Weight", &self.weight)?;
        fields.add("NodeName", &self.node_name)?;
        fields.add("Zone", &self.zone.as_deref().map(|zone| Encoded(zone, form)))?;
        fields.add("ClusterID", &self.cluster_id)?;
        fields.add("Source", &self.source)?;
        fields.add("State", &(self.state as u8))?;
        fields.add("Unhealthy", &self.unhealthy)?;
        fields.add("UnhealthyUpdatedAt", &self.unhealthy_updated_at.map(api_models::rfc3339))
    }
}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Encoded(self, Encoding::Json).serialize(serializer)
    }
}

/// Primary key of the table: service, address, priority of the source. As text the parts are joined by commas.
pub struct BackendKey<'a> {
    service: &'a str,
    address: LbAddress,
    priority: u8,
}

impl IndexKey for BackendKey<'_> {
    fn encode(&self, key: &mut KeyBuf) {
        self.service.encode(key);
        self.address.encode(key);
        key.push(&[self.priority]);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        <(String, LbAddress, u8)>::encode_text(text, key)
    }

    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        <(String, LbAddress, u8)>::encode_text_prefix(text, key)
    }
}

impl PrefixOf<BackendKey<'static>> for ServiceName {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.as_str().encode(key);
    }
}

const BY_ADDRESS: Index<Backend, LbAddress> =
    Index::new("address", |backend, keys| keys.add(&backend.address));

impl TableSpec for Backend {
    const NAME: &'static str = "backends";
    const PRIMARY: &'static str = "key";
    type Key<'a> = BackendKey<'a>;

    fn key(&self) -> BackendKey<'_> {
        let priority = self.source.priority();
        BackendKey { service: self.service_name.as_str(), address: self.address, priority }
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_ADDRESS.def()]
    }
}

impl TableDisplay for Backend {
    fn columns() -> &'static [&'static str] {
        &["Service", "Address", "Source", "Priority", "State", "PortNames", "NodeName"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.service_name.to_string(),
            self.address.to_string(),
            self.source.to_string(),
            self.source.priority().to_string(),
            self.state.name().to_owned(),
            self.port_names.join(","),
            self.node_name.to_string(),
        ]
    }

    fn yaml(&self) -> Option<String> {
        yaml(self)
    }
}

//! Services and pools, as far as addresses depend on them.
//!
//! Services have a type of their own: that of the agent has neither the policy of families nor conditions, which would make its
//! rows larger.

use k8s_tables::Tabled;
use k8s_types::cilium::{CiliumLoadBalancerIPPool, Condition};
use k8s_types::core::LoadBalancerIngress;
use k8s_types::{Kind, ObjectMeta, Resource, SmolStr, StringMap};
use serde::{Deserialize, Serialize};

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LbService {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: LbServiceSpec,
    pub(crate) status: LbServiceStatus,
}

/// The desired state of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LbServiceSpec {
    pub(crate) r#type: SmolStr,
    pub(crate) ports: Vec<LbServicePort>,
    pub(crate) selector: StringMap,
    #[serde(rename = "loadBalancerIP")]
    pub(crate) load_balancer_ip: SmolStr,
    pub(crate) external_traffic_policy: SmolStr,
    pub(crate) ip_families: Vec<SmolStr>,
    pub(crate) ip_family_policy: SmolStr,
    pub(crate) load_balancer_class: Option<SmolStr>,
}

/// A port of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LbServicePort {
    pub(crate) protocol: SmolStr,
    pub(crate) port: u16,
}

/// The observed state of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LbServiceStatus {
    pub(crate) load_balancer: LoadBalancer,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
}

/// The load balancer of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoadBalancer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ingress: Vec<LoadBalancerIngress>,
}

impl LbService {
    /// Whether it is a load balancer of a class that is accepted.
    pub(crate) fn is_load_balancer(&self, accepts: impl Fn(Option<&str>) -> bool) -> bool {
        self.spec.r#type == "LoadBalancer" && accepts(self.spec.load_balancer_class.as_deref())
    }

    /// Returns the annotation of this key, else of the older key.
    pub(crate) fn annotation(&self, key: &str, alias: &str) -> Option<&str> {
        let annotations = &self.metadata.annotations;
        annotations.get(key).or_else(|| annotations.get(alias)).map(SmolStr::as_str)
    }
}

impl Resource for LbService {
    const KIND: Kind = Kind::Service;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Tabled for LbService {
    const TABLE: &'static str = "k8s-services";
}

/// A pool of addresses for load balancers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct IpPool(pub(crate) CiliumLoadBalancerIPPool);

impl Resource for IpPool {
    const KIND: Kind = Kind::CiliumLoadBalancerIPPool;

    fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }

    fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        CiliumLoadBalancerIPPool::from_json(json).map(IpPool)
    }

    fn to_json(&self) -> Vec<u8> {
        self.0.to_json()
    }
}

impl Tabled for IpPool {
    const TABLE: &'static str = "k8s-ciliumloadbalancerippools";
}

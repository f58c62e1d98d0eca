//! Policies as the API server stores them.
//!
//! Rules stay JSON text, which takes less memory than values: they are read once for each version.

use k8s_tables::Tabled;
use k8s_types::{Kind, ObjectMeta, Resource};
use policy_engine::{Policy, Refusal, Settings};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// A policy of a namespace, or of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyObject<const CLUSTERWIDE: bool> {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spec: Option<Rules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) specs: Option<Rules>,
    #[serde(default)]
    pub(crate) status: Status,
}

/// The status of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Value>,
    #[serde(flatten)]
    pub(crate) others: Map<String, Value>,
}

/// Rules as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Rules(Box<RawValue>);

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Rules {
    pub(crate) fn value(&self) -> Value {
        // It was JSON when it was stored.
        serde_json::from_str(self.0.get()).unwrap_or_default()
    }
}

impl<const CLUSTERWIDE: bool> PolicyObject<CLUSTERWIDE> {
    /// Parses the policy as agents do. The error has the reasons for which they refuse it.
    pub fn parse(&self, settings: &Settings) -> Result<Policy, Refusal> {
        let kind = match CLUSTERWIDE {
            true => policy_engine::Kind::CiliumClusterwideNetworkPolicy,
            false => policy_engine::Kind::CiliumNetworkPolicy,
        };
        let mut manifest = json!({"metadata": {"name": *self.metadata.name}});
        if !CLUSTERWIDE {
            manifest["metadata"]["namespace"] = json!(*self.metadata.namespace);
        }
        for (field, rules) in [("spec", &self.spec), ("specs", &self.specs)] {
            if let Some(rules) = rules {
                manifest[field] = rules.value();
            }
        }
        policy_engine::parse(kind, &manifest, settings)
    }
}

impl<const CLUSTERWIDE: bool> Resource for PolicyObject<CLUSTERWIDE> {
    const KIND: Kind =
        if CLUSTERWIDE { Kind::CiliumClusterwideNetworkPolicy } else { Kind::CiliumNetworkPolicy };

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

impl<const CLUSTERWIDE: bool> Tabled for PolicyObject<CLUSTERWIDE> {
    const TABLE: &'static str =
        if CLUSTERWIDE { "k8s-clusterwide-policies" } else { "k8s-namespaced-policies" };
}

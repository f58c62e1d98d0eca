//! Tables `k8s-networkpolicies` and `k8s-clusternetworkpolicies`.

use k8s_types::core::{ClusterNetworkPolicy, NetworkPolicy};
use serde_json::Value;

use crate::row::{Row, Tabled};

impl Tabled for NetworkPolicy {
    const TABLE: &'static str = "k8s-networkpolicies";

    fn columns() -> &'static [&'static str] {
        &["Name", "PolicyTypes", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let types: Vec<&str> = row.spec.policy_types.iter().map(|kind| kind.as_str()).collect();
        vec![format!("{}/{}", row.metadata.namespace, row.metadata.name), types.join(", "), row.age()]
    }
}

impl Tabled for ClusterNetworkPolicy {
    const TABLE: &'static str = "k8s-clusternetworkpolicies";

    fn columns() -> &'static [&'static str] {
        &["Name", "Tier", "Priority", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let field = |name| row.spec.as_ref().and_then(|spec| spec.get(name));
        let tier = field("tier").and_then(Value::as_str).unwrap_or_default();
        let priority = field("priority").map(Value::to_string).unwrap_or_default();
        vec![row.metadata.name.to_string(), tier.to_owned(), priority, row.age()]
    }
}

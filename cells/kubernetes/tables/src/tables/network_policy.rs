//! Table `k8s-networkpolicies`.

use k8s_types::core::NetworkPolicy;

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

//! Table `k8s-nodes`.

use k8s_types::core::Node;

use crate::row::{Row, Tabled};

impl Tabled for Node {
    const TABLE: &'static str = "k8s-nodes";

    fn columns() -> &'static [&'static str] {
        &["Name", "Addresses", "PodCIDRs", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let address = |a: &k8s_types::core::NodeAddress| format!("{} ({})", a.address, a.r#type);
        let addresses: Vec<String> = row.status.addresses.iter().map(address).collect();
        let ranges: Vec<&str> = match row.spec.pod_cidrs.is_empty() {
            true => [row.spec.pod_cidr.as_str()].into_iter().filter(|range| !range.is_empty()).collect(),
            false => row.spec.pod_cidrs.iter().map(|range| range.as_str()).collect(),
        };
        vec![row.metadata.name.to_string(), addresses.join(", "), ranges.join(", "), row.age()]
    }
}

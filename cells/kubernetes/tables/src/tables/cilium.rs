//! Tables `k8s-ciliumnodes`, `k8s-ciliumidentities`, `k8s-ciliumendpoints`, `k8s-ciliumendpointslices`,
//! `k8s-ciliumcidrgroups`, `k8s-ciliumlocalredirectpolicies`, `k8s-ciliumenvoyconfigs`,
//! `k8s-clusterwideenvoyconfigs` and `podippools`.

use k8s_types::cilium::{
    AddressPair, CiliumCIDRGroup, CiliumClusterwideEnvoyConfig, CiliumEndpoint, CiliumEndpointSlice,
    CiliumEnvoyConfig, CiliumIdentity, CiliumLocalRedirectPolicy, CiliumNode, CiliumPodIPPool, PoolFamily,
};

use crate::pool::Pool;
use crate::row::{Row, Tabled};

impl Tabled for CiliumNode {
    const TABLE: &'static str = "k8s-ciliumnodes";

    fn columns() -> &'static [&'static str] {
        &["Name", "Addresses", "PodCIDRs", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let addresses: Vec<String> =
            row.spec.addresses.iter().map(|address| format!("{} ({})", address.ip, address.r#type)).collect();
        let ranges: Vec<&str> = row.spec.ipam.pod_cidrs.iter().map(|range| range.as_str()).collect();
        vec![row.metadata.name.to_string(), addresses.join(", "), ranges.join(", "), row.age()]
    }
}

impl Tabled for CiliumIdentity {
    const TABLE: &'static str = "k8s-ciliumidentities";

    fn columns() -> &'static [&'static str] {
        &["Name", "Labels", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let labels: Vec<String> =
            row.security_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![row.metadata.name.to_string(), labels.join(", "), row.age()]
    }

    /// The names of labels are those of all identities, and most values those of many.
    fn share(&mut self, pool: &mut Pool) {
        self.security_labels.for_each_mut(|text| pool.text(text));
    }
}

impl Tabled for CiliumEndpoint {
    const TABLE: &'static str = "k8s-ciliumendpoints";

    fn columns() -> &'static [&'static str] {
        &["Name", "Identity", "Addresses", "Node", "State", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let status = &row.status;
        let addressing = status.networking.iter().flat_map(|networking| &networking.addressing);
        let addresses: Vec<&str> = addressing.flat_map(addresses).collect();
        vec![
            format!("{}/{}", row.metadata.namespace, row.metadata.name),
            status.identity.as_ref().map(|identity| identity.id.to_string()).unwrap_or_default(),
            addresses.join(", "),
            status.networking.as_ref().map(|networking| networking.node_ip.to_string()).unwrap_or_default(),
            status.state.to_string(),
            row.age(),
        ]
    }

    fn share(&mut self, pool: &mut Pool) {
        if let Some(identity) = &mut self.status.identity {
            identity.labels.iter_mut().for_each(|label| pool.text(label));
        }
        if let Some(networking) = &mut self.status.networking {
            pool.text(&mut networking.node_ip);
        }
        pool.text(&mut self.status.service_account);
    }
}

fn addresses(pair: &AddressPair) -> impl Iterator<Item = &str> {
    [pair.ipv4.as_str(), pair.ipv6.as_str()].into_iter().filter(|address| !address.is_empty())
}

impl Tabled for CiliumEnvoyConfig {
    const TABLE: &'static str = "k8s-ciliumenvoyconfigs";
}

impl Tabled for CiliumClusterwideEnvoyConfig {
    const TABLE: &'static str = "k8s-clusterwideenvoyconfigs";
}

impl Tabled for CiliumEndpointSlice {
    const TABLE: &'static str = "k8s-ciliumendpointslices";

    fn columns() -> &'static [&'static str] {
        &["Name", "Namespace", "Endpoints", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let count = row.endpoints.len().to_string();
        vec![row.metadata.name.to_string(), row.namespace.to_string(), count, row.age()]
    }

    fn share(&mut self, pool: &mut Pool) {
        pool.text(&mut self.namespace);
        for endpoint in &mut self.endpoints {
            if let Some(networking) = &mut endpoint.networking {
                pool.text(&mut networking.node_ip);
            }
            pool.text(&mut endpoint.service_account);
        }
    }
}

impl Tabled for CiliumCIDRGroup {
    const TABLE: &'static str = "k8s-ciliumcidrgroups";

    fn columns() -> &'static [&'static str] {
        &["Name", "CIDRs", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let ranges: Vec<&str> = row.spec.external_cidrs.iter().map(|range| range.as_str()).collect();
        vec![row.metadata.name.to_string(), ranges.join(", "), row.age()]
    }
}

impl Tabled for CiliumLocalRedirectPolicy {
    const TABLE: &'static str = "k8s-ciliumlocalredirectpolicies";
}

/// How many CIDRs of a pool a row shows, unless it has one more.
const MAX_SHOWN_CIDRS: usize = 2;

/// Columns, name and order as in Cilium.
impl Tabled for CiliumPodIPPool {
    const TABLE: &'static str = "podippools";
    const HAS_TYPE: bool = true;

    fn columns() -> &'static [&'static str] {
        &["Name", "v4CIDRs", "v4MaskSize", "v6CIDRs", "v6MaskSize", "Flags"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let skips = row
            .metadata
            .annotations
            .get("ipam.cilium.io/skip-masquerade")
            .is_some_and(|value| value == "true");
        let flags = [
            ("SkipMasquerade=true", skips),
            ("AllowFirstIP=true", row.spec.allow_first_ip),
            ("AllowLastIP=true", row.spec.allow_last_ip),
        ];
        let flags: Vec<&str> =
            flags.into_iter().filter_map(|(flag, is_set)| is_set.then_some(flag)).collect();
        let [ipv4, ipv6] = [&row.spec.ipv4, &row.spec.ipv6].map(pool_family);
        let mut cells = vec![row.metadata.name.to_string()];
        cells.extend(ipv4.into_iter().chain(ipv6));
        cells.push(flags.join(", "));
        cells
    }
}

/// Returns CIDRs and mask size of a family.
fn pool_family(family: &Option<PoolFamily>) -> [String; 2] {
    let Some(PoolFamily { cidrs, mask_size }) = family else { return [String::new(), "-".to_owned()] };
    let mut shown: Vec<&str> = cidrs.iter().map(|cidr| cidr.as_str()).collect();
    if shown.len() > MAX_SHOWN_CIDRS + 1 {
        shown.truncate(MAX_SHOWN_CIDRS);
        shown.push("...");
    }
    [shown.join(", "), mask_size.to_string()]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use statedb::TableDisplay;

    use super::*;

    fn row<T: Tabled>(object: &Value) -> Vec<String> {
        let mut row = Row::of(k8s_types::decode::<T>(object.to_string().as_bytes()).unwrap()).row();
        assert_eq!(row.len(), T::columns().len());
        row.pop();
        row
    }

    #[test]
    fn objects_print_their_main_fields() {
        let node = json!({"metadata": {"name": "n1"}, "spec": {
            "addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}], "ipam": {"podCIDRs": ["10.0.0.0/24"]},
        }});
        assert_eq!(row::<CiliumNode>(&node), ["n1", "192.0.2.1 (InternalIP)", "10.0.0.0/24"]);
        let identity = json!({"metadata": {"name": "7000"}, "security-labels": {"k8s:b": "2", "k8s:a": "1"}});
        assert_eq!(row::<CiliumIdentity>(&identity), ["7000", "k8s:a=1, k8s:b=2"]);
        let endpoint = json!({"metadata": {"name": "web", "namespace": "shop"}, "status": {
            "identity": {"id": 7000}, "state": "ready",
            "networking": {"node": "192.0.2.1", "addressing": [{"ipv4": "10.0.0.5", "ipv6": "fd00::5"}]},
        }});
        assert_eq!(
            row::<CiliumEndpoint>(&endpoint),
            ["shop/web", "7000", "10.0.0.5, fd00::5", "192.0.2.1", "ready"]
        );
        let slice = json!({"metadata": {"name": "ces-1"}, "namespace": "shop", "endpoints": [{"name": "a"}, {"name": "b"}]});
        assert_eq!(row::<CiliumEndpointSlice>(&slice), ["ces-1", "shop", "2"]);
        let group = json!({"metadata": {"name": "offices"}, "spec": {"externalCIDRs": ["192.0.2.0/24"]}});
        assert_eq!(row::<CiliumCIDRGroup>(&group), ["offices", "192.0.2.0/24"]);
    }

    #[test]
    fn pools_print_their_cidrs_and_flags() {
        let cells = |object: &Value| {
            Row::of(k8s_types::decode::<CiliumPodIPPool>(object.to_string().as_bytes()).unwrap()).row()
        };
        let pool = json!({
            "metadata": {"name": "blue", "annotations": {"ipam.cilium.io/skip-masquerade": "true"}},
            "spec": {
                "ipv4": {"cidrs": ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"], "maskSize": 27},
                "allowLastIP": true,
            },
        });
        let flags = "SkipMasquerade=true, AllowLastIP=true";
        assert_eq!(cells(&pool), ["blue", "10.1.0.0/16, 10.2.0.0/16, ...", "27", "", "-", flags]);
        let pool =
            json!({"metadata": {"name": "six"}, "spec": {"ipv6": {"cidrs": ["fd00::/64"], "maskSize": 112}}});
        assert_eq!(cells(&pool), ["six", "", "-", "fd00::/64", "112", ""]);
    }
}

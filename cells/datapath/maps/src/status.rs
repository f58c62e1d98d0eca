//! The maps in `GET /healthz`: sizes by purpose, under Cilium's names.

use api_models::{BpfMapProperties, BpfMapStatus};

use crate::specs::Specs;

/// Cilium's names, each with the map that it stands for.
const NAMES: [(&str, &str); 22] = [
    ("Auth", "cilium_auth_map"),
    ("Non-TCP connection tracking", "cilium_ct_any4_global"),
    ("TCP connection tracking", "cilium_ct4_global"),
    ("Endpoints", "cilium_lxc"),
    ("IP cache", "cilium_ipcache_v2"),
    ("IPv4 masquerading agent", "cilium_ipmasq_v4"),
    ("IPv6 masquerading agent", "cilium_ipmasq_v6"),
    ("IPv4 fragmentation", "cilium_ipv4_frag_datagrams"),
    ("IPv4 service", "cilium_lb4_services_v2"),
    ("IPv6 service", "cilium_lb6_services_v2"),
    ("IPv4 service backend", "cilium_lb4_backends_v3"),
    ("IPv6 service backend", "cilium_lb6_backends_v3"),
    ("IPv4 service reverse NAT", "cilium_lb4_reverse_nat"),
    ("IPv6 service reverse NAT", "cilium_lb6_reverse_nat"),
    ("Metrics", "cilium_metrics"),
    ("Ratelimit metrics", "cilium_ratelimit_metrics"),
    ("NAT", "cilium_snat_v4_external"),
    ("Neighbor table", "cilium_nodeport_neigh4"),
    ("Endpoint policy", "cilium_policy_v2"),
    ("Policy stats", "cilium_policystats"),
    ("Session affinity", "cilium_lb4_affinity"),
    ("Sock reverse NAT", "cilium_lb4_reverse_sk"),
];

/// Returns the sizes that follow from options, memory and CPUs, also of maps that do not exist.
pub(crate) fn status(specs: &Specs) -> BpfMapStatus {
    let size = |name: &str| specs.find(name).map_or(0, |spec| spec.layout.max_entries);
    let properties =
        NAMES.map(|(name, map)| BpfMapProperties { name: name.to_owned(), size: size(map).into() });
    BpfMapStatus {
        dynamic_size_ratio: specs.config().bpf_map_dynamic_size_ratio,
        maps: properties.to_vec().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FamilyConfig, MapsConfig};

    #[test]
    fn every_name_has_a_size() {
        let status = status(&Specs::new(MapsConfig::default(), FamilyConfig::default()));
        let maps = status.maps.0.unwrap();
        assert!(maps.iter().all(|map| map.size > 0), "{maps:?}");
        let size = |name: &str| maps.iter().find(|map| map.name == name).unwrap().size;
        assert_eq!((size("IP cache"), size("Endpoint policy"), size("Metrics")), (512_000, 16_384, 1024));
    }
}

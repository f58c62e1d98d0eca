//! Services: what load balancing reads of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use k8s_types::names;

use crate::field::{Field, decode};
use crate::{ObjectMeta, Protocol, Refusal, meta};

/// A Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Service {
    /// Name, namespace, labels and annotations.
    pub metadata: ObjectMeta,
    /// `spec.type`.
    pub kind: ServiceType,
    /// Whether it has no address of its own: `clusterIP: None`.
    pub headless: bool,
    /// `spec.clusterIPs`, or `spec.clusterIP` alone.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.selector`.
    pub selector: BTreeMap<String, String>,
    /// Whether `spec.sessionAffinity` is `ClientIP`.
    pub session_affinity: bool,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds`.
    pub session_affinity_timeout: Option<u32>,
    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// Whether `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `spec.trafficDistribution`; empty if not given.
    pub traffic_distribution: String,
    /// `spec.loadBalancerClass`.
    pub load_balancer_class: Option<String>,
    /// `spec.loadBalancerSourceRanges` as written: a wrong one is skipped by the reader, as in the original.
    pub source_ranges: Vec<String>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: u16,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
}

/// Types of services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reached by its cluster addresses.
    #[default]
    ClusterIp,
    /// Reached by a port of every node too.
    NodePort,
    /// Reached by addresses of a load balancer too.
    LoadBalancer,
    /// A name only.
    ExternalName,
}

/// A port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, by which backends' ports are found; empty if it is the only one.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// The port of nodes; 0 for none.
    pub node_port: u16,
}

/// An address of the load balancer in front.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The address; none if it is a host name.
    pub ip: Option<IpAddr>,
    /// Whether packets arrive with the address: `ipMode` is `VIP` or not given.
    pub vip: bool,
}

impl Service {
    /// Reads a manifest.
    pub fn decode(manifest: &Value) -> Result<Service, Refusal> {
        decode(manifest, read)
    }
}

const FIELDS: &[&str] = &[
    "type",
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "ports",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "trafficDistribution",
    "loadBalancerClass",
    "loadBalancerSourceRanges",
    "healthCheckNodePort",
];

fn read(manifest: Field<'_>) -> Service {
    meta::check_type(manifest, "v1", "Service");
    manifest.only(&["apiVersion", "kind", "metadata", "spec", "status"]);
    let metadata = meta::read(manifest, true, names::service_name);
    let spec = manifest.get("spec");
    spec.no_slips(FIELDS, &["externalName", "loadBalancerIP", "ipFamilies"]);
    let (headless, cluster_ips) = cluster_ips(spec);
    let local = |name| spec.get(name).one_of(&["Cluster", "Local", ""]) == Some("Local");
    let affinity = spec.get("sessionAffinityConfig");
    let text = |field: Field<'_>| field.string().unwrap_or_default().to_owned();
    Service {
        kind: match spec.get("type").one_of(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", ""]) {
            Some("NodePort") => ServiceType::NodePort,
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("ExternalName") => ServiceType::ExternalName,
            _ => ServiceType::ClusterIp,
        },
        headless,
        cluster_ips,
        external_ips: spec.get("externalIPs").each(address).into_iter().flatten().collect(),
        ports: spec.get("ports").each(port).into_iter().flatten().collect(),
        selector: spec.get("selector").strings(names::qualified_name, names::label_value),
        session_affinity: spec.get("sessionAffinity").one_of(&["None", "ClientIP", ""]) == Some("ClientIP"),
        session_affinity_timeout: {
            let seconds = affinity.get("clientIP").get("timeoutSeconds").integer(1, 86_400);
            seconds.and_then(|seconds| u32::try_from(seconds).ok())
        },
        external_local: local("externalTrafficPolicy"),
        internal_local: local("internalTrafficPolicy"),
        traffic_distribution: {
            let words = ["PreferClose", "PreferSameZone", "PreferSameNode", ""];
            spec.get("trafficDistribution").one_of(&words).unwrap_or_default().to_owned()
        },
        load_balancer_class: spec.get("loadBalancerClass").string().map(str::to_owned),
        source_ranges: spec.get("loadBalancerSourceRanges").each(text),
        health_check_node_port: {
            let port = spec.get("healthCheckNodePort").integer(0, 65535).unwrap_or_default();
            u16::try_from(port).unwrap_or_default()
        },
        ingress: manifest.get("status").get("loadBalancer").get("ingress").each(|item| Ingress {
            ip: address(item.get("ip")),
            vip: item.get("ipMode").one_of(&["VIP", "Proxy"]) != Some("Proxy"),
        }),
        metadata,
    }
}

fn address(field: Field<'_>) -> Option<IpAddr> {
    field.parsed("an IPv4 or IPv6 address")
}

/// Both fields may be there; the list counts, and says the same as the other in objects of the API server.
fn cluster_ips(spec: Field<'_>) -> (bool, Vec<IpAddr>) {
    let mut headless = false;
    let mut read = |field: Field<'_>| match field.string() {
        None | Some("") => None,
        Some("None") => {
            headless = true;
            None
        }
        Some(_) => field.parsed("an IPv4 or IPv6 address, or None"),
    };
    let first = read(spec.get("clusterIP"));
    let mut all: Vec<IpAddr> = spec.get("clusterIPs").each(read).into_iter().flatten().collect();
    if all.is_empty() {
        all.extend(first);
    }
    (headless, all)
}

fn port(item: Field<'_>) -> Option<ServicePort> {
    item.object();
    item.only(&["name", "protocol", "appProtocol", "port", "targetPort", "nodePort"]);
    let node_port = item.get("nodePort").integer(0, 65535).unwrap_or_default();
    Some(ServicePort {
        name: {
            let name =
                item.get("name").named(|name| if name.is_empty() { Ok(()) } else { names::dns_label(name) });
            name.unwrap_or_default().to_owned()
        },
        protocol: Protocol::read(item.get("protocol")),
        port: item.get("port").required(Field::port)?,
        node_port: u16::try_from(node_port).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_read() {
        let service = Service::decode(&json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "externalTrafficPolicy": "Local", "selector": {"app": "web"},
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "x", "ipMode": "Proxy"}]}},
        }))
        .unwrap();
        assert_eq!(service.cluster_ips, ["10.96.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert_eq!(service.ports[0], ServicePort { name: "http".into(), port: 80, ..ServicePort::default() });
        assert_eq!((service.ports[1].protocol, service.ports[1].node_port), (Protocol::Udp, 30053));
        assert_eq!((service.session_affinity, service.session_affinity_timeout), (true, Some(60)));
        assert!(service.external_local && !service.internal_local && !service.headless);
        assert_eq!(
            service.ingress,
            [Ingress { ip: Some([192, 0, 2, 1].into()), vip: true }, Ingress { ip: None, vip: false }]
        );
    }

    #[test]
    fn headless_services_have_no_address() {
        for spec in [json!({"clusterIP": "None"}), json!({"clusterIPs": ["None"]})] {
            let service = Service::decode(&json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
            assert!(service.headless && service.cluster_ips.is_empty());
        }
    }

    #[test]
    fn every_wrong_field_has_its_path() {
        let refusal = Service::decode(&json!({
            "metadata": {"name": "0web"},
            "spec": {
                "type": "clusterip", "clusterIP": "10.96", "clusterIPs": [1], "externalIP": [], "sessionAffinity": 1,
                "ports": [{}, {"port": 80, "name": "A", "nodePort": -1, "target": 1}, 5],
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}, "internalTrafficPolicy": "local",
            },
        }))
        .unwrap_err();
        let mut paths: Vec<&str> = refusal.0.iter().map(|problem| problem.path.as_str()).collect();
        paths.sort();
        assert_eq!(
            paths,
            [
                "metadata.name",
                "spec.clusterIP",
                "spec.clusterIPs[0]",
                "spec.externalIP",
                "spec.internalTrafficPolicy",
                "spec.ports[0].port",
                "spec.ports[1].name",
                "spec.ports[1].nodePort",
                "spec.ports[1].target",
                "spec.ports[2]",
                "spec.ports[2].port",
                "spec.sessionAffinity",
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                "spec.type",
            ]
        );
    }
}

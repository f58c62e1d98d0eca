//! EndpointSlices: backends of services.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use k8s_types::names;

use crate::field::{Field, decode};
use crate::{ObjectMeta, Protocol, Refusal, meta};

/// The label of a slice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// An EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointSlice {
    /// Name, namespace, labels and annotations.
    pub metadata: ObjectMeta,
    /// What its addresses are.
    pub address_type: AddressType,
    /// The ports, the same for all its endpoints.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// What the addresses of a slice are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AddressType {
    /// IPv4 addresses.
    #[default]
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// Host names, which no load balancer can use.
    Fqdn,
}

/// A port of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointPort {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number; none stands for all ports.
    pub port: Option<u16>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its addresses; none for slices of host names.
    pub addresses: Vec<IpAddr>,
    /// `conditions.ready`; not said counts as true.
    pub ready: bool,
    /// `conditions.serving`; not said counts as true.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// The node it is on, by `nodeName` or the older topology label; empty if unknown.
    pub node_name: String,
    /// Its zone; empty if unknown.
    pub zone: String,
    /// The zones that should use it: `hints.forZones`.
    pub for_zones: Vec<String>,
}

impl EndpointSlice {
    /// Reads a manifest.
    pub fn decode(manifest: &Value) -> Result<EndpointSlice, Refusal> {
        decode(manifest, read)
    }

    /// The name of its service; none if it belongs to none.
    pub fn service(&self) -> Option<&str> {
        self.metadata.labels.get(SERVICE_NAME).map(String::as_str)
    }
}

fn read(manifest: Field<'_>) -> EndpointSlice {
    meta::check_type(manifest, "discovery.k8s.io/v1", "EndpointSlice");
    manifest.only(&["apiVersion", "kind", "metadata", "addressType", "ports", "endpoints"]);
    let metadata = meta::read(manifest, true, names::dns_subdomain);
    let kind = manifest.get("addressType").required(|kind| kind.one_of(&["IPv4", "IPv6", "FQDN"]));
    let address_type = match kind {
        Some("IPv6") => AddressType::Ipv6,
        Some("FQDN") => AddressType::Fqdn,
        _ => AddressType::Ipv4,
    };
    EndpointSlice {
        metadata,
        address_type,
        ports: manifest.get("ports").each(port),
        endpoints: manifest.get("endpoints").each(|item| endpoint(item, address_type)),
    }
}

fn port(item: Field<'_>) -> EndpointPort {
    item.object();
    item.only(&["name", "protocol", "port", "appProtocol"]);
    let name = item.get("name");
    let name = name.named(|name| if name.is_empty() { Ok(()) } else { names::dns_label(name) });
    EndpointPort {
        name: name.unwrap_or_default().to_owned(),
        protocol: Protocol::read(item.get("protocol")),
        port: item.get("port").port(),
    }
}

fn endpoint(item: Field<'_>, kind: AddressType) -> Endpoint {
    item.object();
    item.only(&[
        "addresses",
        "conditions",
        "deprecatedTopology",
        "hints",
        "hostname",
        "nodeName",
        "targetRef",
        "zone",
    ]);
    let conditions = item.get("conditions");
    conditions.only(&["ready", "serving", "terminating"]);
    let topology = item.get("deprecatedTopology").strings(names::qualified_name, |_| Ok(()));
    let text = |name| item.get(name).string().filter(|text| !text.is_empty()).map(str::to_owned);
    let older = |topology: &BTreeMap<String, String>, key: &str| topology.get(key).cloned();
    let addresses = item.get("addresses");
    Endpoint {
        addresses: match kind {
            AddressType::Ipv4 => addresses.each(|a| a.parsed("an IPv4 address").map(IpAddr::V4)),
            AddressType::Ipv6 => addresses.each(|a| a.parsed("an IPv6 address").map(IpAddr::V6)),
            AddressType::Fqdn => Vec::new(),
        }
        .into_iter()
        .flatten()
        .collect(),
        ready: conditions.get("ready").boolean().unwrap_or(true),
        serving: conditions.get("serving").boolean().unwrap_or(true),
        terminating: conditions.get("terminating").boolean().unwrap_or(false),
        node_name: text("nodeName")
            .or_else(|| older(&topology, "kubernetes.io/hostname"))
            .unwrap_or_default(),
        zone: text("zone").or_else(|| older(&topology, "topology.kubernetes.io/zone")).unwrap_or_default(),
        for_zones: {
            let zone =
                |zone: Field<'_>| zone.get("name").required(Field::string).unwrap_or_default().to_owned();
            item.get("hints").get("forZones").each(zone)
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_is_read() {
        let slice = EndpointSlice::decode(&json!({
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv6",
            "ports": [{"name": "http", "port": 8080}, {"port": null}],
            "endpoints": [
                {"addresses": ["fd00::1"], "conditions": {"ready": false, "terminating": true}, "nodeName": "n"},
                {"addresses": ["fd00::2"], "deprecatedTopology": {"kubernetes.io/hostname": "m"}, "zone": "z",
                 "hints": {"forZones": [{"name": "z"}]}},
            ],
        }))
        .unwrap();
        assert_eq!((slice.service(), slice.address_type), (Some("web"), AddressType::Ipv6));
        assert_eq!(slice.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [Some(8080), None]);
        let [first, second] = &slice.endpoints[..] else { panic!("{:?}", slice.endpoints) };
        assert_eq!(
            (first.ready, first.serving, first.terminating, &*first.node_name),
            (false, true, true, "n")
        );
        assert_eq!((second.ready, &*second.node_name, &*second.zone), (true, "m", "z"));
        assert_eq!(second.for_zones, ["z"]);
    }

    #[test]
    fn every_wrong_field_has_its_path() {
        let refusal = EndpointSlice::decode(&json!({
            "metadata": {"name": "a"}, "addressType": "IPv4",
            "ports": [{"port": 0, "prot": "TCP"}],
            "endpoints": [{"addresses": ["fd00::1"], "conditions": {"ready": "yes", "redy": true}}, {"address": []}],
        }))
        .unwrap_err();
        let mut paths: Vec<&str> = refusal.0.iter().map(|problem| problem.path.as_str()).collect();
        paths.sort();
        assert_eq!(
            paths,
            [
                "endpoints[0].addresses[0]",
                "endpoints[0].conditions.ready",
                "endpoints[0].conditions.redy",
                "endpoints[1].address",
                "ports[0].port",
                "ports[0].prot",
            ]
        );
        assert_eq!(
            EndpointSlice::decode(&json!({"metadata": {"name": "a"}})).unwrap_err().to_string(),
            "addressType: is missing"
        );
    }
}

//! The desired fields of the CiliumNode: a pure function of the local node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_types::cilium::CiliumNode;
use local_node::{AddressType, IpamMode, LocalNode};
use maps::FamilyConfig;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::config::CiliumNodeConfig;

/// Members of `spec` and `status` that Cilium's clients always send, without content here.
const EMPTY_SPEC: [&str; 6] = ["alibaba-cloud", "azure", "encryption", "eni", "health", "ingress"];

/// The fields that this agent owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    name: String,
    uid: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    addresses: Vec<(AddressType, IpAddr)>,
    /// Families whose router has no address yet: one that the object has stays.
    keeps_router: [bool; 2],
    boot_id: String,
    health: [Option<IpAddr>; 2],
    ingress: [Option<IpAddr>; 2],
    /// None in modes in which the operator writes them.
    pod_cidrs: Option<Vec<String>>,
    demand: Demand,
    /// The cloud's id of the node, where the operator asks the cloud for it.
    instance_id: Option<String>,
}

/// The options that the fields depend on.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ipam: IpamMode,
    pub(crate) families: FamilyConfig,
    pub(crate) excluded_labels: Vec<Regex>,
    pub(crate) demand: Demand,
}

/// The fields of `spec.ipam` by which the node asks for single addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand(Vec<(&'static str, Value)>);

impl Demand {
    /// Returns the fields that options set, in modes that have them.
    pub(crate) fn new(ipam: IpamMode, config: &CiliumNodeConfig) -> Demand {
        if !matches!(ipam, IpamMode::Crd | IpamMode::Azure | IpamMode::Alibabacloud) {
            return Demand::default();
        }
        let numbers = [
            ("min-allocate", config.ipam_min_allocate),
            ("pre-allocate", config.ipam_pre_allocate),
            ("max-allocate", config.ipam_max_allocate),
        ];
        let numbers = numbers.into_iter().filter(|(_, count)| *count > 0);
        let mut fields: Vec<_> = numbers.map(|(name, count)| (name, json!(count))).collect();
        if !config.ipam_static_ip_tags.is_empty() {
            fields.push(("static-ip-tags", json!(config.ipam_static_ip_tags)));
        }
        Demand(fields)
    }
}

impl Desired {
    pub(crate) fn new(settings: &Settings, node: &LocalNode) -> Desired {
        let is_included = |key: &str| !settings.excluded_labels.iter().any(|pattern| pattern.is_match(key));
        let labels = node.labels.iter().filter(|(key, _)| is_included(key));
        let cidrs = node.ipv4_alloc_cidrs().map(|cidr| cidr.to_string());
        let pod_cidrs = cidrs.chain(node.ipv6_alloc_cidrs().map(|cidr| cidr.to_string()));
        Desired {
            name: node.name.clone(),
            uid: node.uid.clone(),
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
            annotations: node.annotations.clone(),
            addresses: node.addresses(),
            keeps_router: [
                settings.families.enable_ipv4 && node.router_ipv4.is_none(),
                settings.families.enable_ipv6 && node.router_ipv6.is_none(),
            ],
            boot_id: node.boot_id.clone(),
            health: [node.health_ipv4.map(IpAddr::V4), node.health_ipv6.map(IpAddr::V6)],
            ingress: [node.ingress_ipv4.map(IpAddr::V4), node.ingress_ipv6.map(IpAddr::V6)],
            pod_cidrs: (settings.ipam == IpamMode::Kubernetes).then(|| pod_cidrs.collect()),
            demand: settings.demand.clone(),
            instance_id: (node.provider_id.strip_prefix("azure://"))
                .filter(|_| settings.ipam == IpamMode::Azure)
                .map(str::to_lowercase),
        }
    }

    /// Returns the object to create.
    pub(crate) fn object(&self) -> Value {
        let mut object = json!({
            "status": {"alibaba-cloud": {}, "azure": {}, "eni": {}, "ipam": {"operator-status": {}}},
        });
        self.apply(&mut object, &BTreeSet::new());
        object
    }

    /// Writes the fields into an object. `former` are keys of annotations that this agent wrote before.
    pub(crate) fn apply(&self, object: &mut Value, former: &BTreeSet<String>) {
        let metadata = member(object, "metadata");
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid});
        metadata.insert("ownerReferences".into(), json!([owner]));
        replace_map(metadata, "labels", json!(self.labels));
        let mut annotations = match metadata.remove("annotations") {
            Some(Value::Object(annotations)) => annotations,
            _ => Map::new(),
        };
        annotations.retain(|key, _| !former.contains(key));
        annotations.extend(self.annotations.iter().map(|(key, value)| (key.clone(), json!(value))));
        replace_map(metadata, "annotations", Value::Object(annotations));

        let spec = member(object, "spec");
        for name in EMPTY_SPEC {
            spec.entry(name).or_insert_with(|| json!({}));
        }
        let present = spec.get("addresses").and_then(Value::as_array).cloned().unwrap_or_default();
        let kept = present.into_iter().filter(|address| self.keeps(address));
        let own = self.addresses.iter().map(|(kind, ip)| json!({"ip": ip, "type": kind.as_str()}));
        spec.insert("addresses".into(), kept.chain(own).collect());
        spec.insert("bootid".into(), json!(self.boot_id));
        for (name, addresses) in [("health", self.health), ("ingress", self.ingress)] {
            let by_family = ["ipv4", "ipv6"].into_iter().zip(addresses);
            let by_family =
                by_family.filter_map(|(family, ip)| Some((family.to_owned(), json!(ip?)))).collect();
            spec.insert(name.into(), Value::Object(by_family));
        }
        if let Some(id) = &self.instance_id {
            spec.insert("instance-id".into(), json!(id));
        }
        let ipam = member_of(spec, "ipam");
        ipam.entry("pools").or_insert_with(|| json!({}));
        if let Some(cidrs) = &self.pod_cidrs {
            ipam.insert("podCIDRs".into(), json!(cidrs));
        }
        ipam.extend(self.demand.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }

    /// Whether an address of the object is that of a router whose present address is not known yet.
    fn keeps(&self, address: &Value) -> bool {
        let ip = address["ip"].as_str().and_then(|ip| ip.parse().ok());
        let is_router = address["type"] == AddressType::CiliumInternalIP.as_str();
        is_router
            && match ip {
                Some(IpAddr::V4(_)) => self.keeps_router[0],
                Some(IpAddr::V6(_)) => self.keeps_router[1],
                None => false,
            }
    }

    /// Returns the fields in which an object differs.
    pub(crate) fn differences(&self, object: &CiliumNode) -> Vec<&'static str> {
        let mut value: Value = serde_json::to_value(object).unwrap_or_default();
        let before = value.clone();
        self.apply(&mut value, &BTreeSet::new());
        let fields = [
            "/metadata/ownerReferences",
            "/metadata/labels",
            "/metadata/annotations",
            "/spec/addresses",
            "/spec/bootid",
            "/spec/health",
            "/spec/ingress",
            "/spec/instance-id",
            "/spec/ipam",
        ];
        let member =
            |object: &Value, field| object.pointer(field).filter(|member| !is_empty(member)).cloned();
        fields.into_iter().filter(|field| member(&value, field) != member(&before, field)).collect()
    }

    /// Returns the keys of annotations that this agent writes.
    pub(crate) fn annotation_keys(&self) -> impl Iterator<Item = &String> {
        self.annotations.keys()
    }
}

/// Whether a member may as well be missing: types of objects leave it out.
fn is_empty(member: &Value) -> bool {
    match member {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Inserts a map, or removes the member if the map is empty.
fn replace_map(object: &mut Map<String, Value>, name: &str, map: Value) {
    match map.as_object().is_some_and(Map::is_empty) {
        true => drop(object.remove(name)),
        false => drop(object.insert(name.into(), map)),
    }
}

/// Returns the member of an object, which both become objects if they are none.
fn member<'o>(object: &'o mut Value, name: &str) -> &'o mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    match object {
        Value::Object(object) => member_of(object, name),
        _ => unreachable!("it was made an object"),
    }
}

fn member_of<'o>(object: &'o mut Map<String, Value>, name: &str) -> &'o mut Map<String, Value> {
    let member = object.entry(name).or_insert(Value::Null);
    if !member.is_object() {
        *member = json!({});
    }
    match member {
        Value::Object(member) => member,
        _ => unreachable!("it was made an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(ipam: IpamMode) -> Settings {
        Settings {
            ipam,
            families: FamilyConfig { enable_ipv4: true, enable_ipv6: false },
            excluded_labels: vec![Regex::new("^secret").unwrap()],
            demand: Demand::default(),
        }
    }

    fn node() -> LocalNode {
        let labels = [("kubernetes.io/os", "linux"), ("secret/x", "1")];
        LocalNode {
            name: "peer1".into(),
            uid: "6606e43e".into(),
            labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
            ipv4: Some([10, 99, 0, 1].into()),
            boot_id: "0ad0eb21".into(),
            ..LocalNode::default()
        }
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn the_object_is_created_in_the_shape_of_cilium() {
        let object = Desired::new(&settings(IpamMode::ClusterPool), &node()).object();
        let expected = json!({
            "metadata": {
                "labels": {"kubernetes.io/os": "linux"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "peer1", "uid": "6606e43e"}],
            },
            "spec": {
                "addresses": [{"ip": "10.99.0.1", "type": "InternalIP"}],
                "alibaba-cloud": {}, "azure": {}, "bootid": "0ad0eb21", "encryption": {}, "eni": {}, "health": {},
                "ingress": {}, "ipam": {"pools": {}},
            },
            "status": {"alibaba-cloud": {}, "azure": {}, "eni": {}, "ipam": {"operator-status": {}}},
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn fields_of_others_stay_and_the_routers_address_until_it_is_known() {
        let mut present = json!({
            "metadata": {"name": "peer1", "resourceVersion": "7", "annotations": {
                "ipam.cilium.io/ignore": "true", "network.cilium.io/old": "1",
            }, "labels": {"stale": "1"}},
            "spec": {
                "addresses": [
                    {"type": "InternalIP", "ip": "192.0.2.9"}, {"type": "CiliumInternalIP", "ip": "10.0.1.5"},
                    {"type": "CiliumInternalIP", "ip": "fd00::5"}, {"type": "CiliumInternalIP", "ip": "bad"},
                ],
                "ipam": {"podCIDRs": ["10.0.1.0/24"], "pools": {"allocated": []}}, "unknown": 1,
            },
        });
        let former = BTreeSet::from(["network.cilium.io/old".to_owned()]);
        let (settings, mut node) = (settings(IpamMode::ClusterPool), node());
        Desired::new(&settings, &node).apply(&mut present, &former);
        assert_eq!(present["metadata"]["annotations"], json!({"ipam.cilium.io/ignore": "true"}));
        assert_eq!(present["metadata"]["labels"], json!({"kubernetes.io/os": "linux"}));
        assert_eq!(present["metadata"]["resourceVersion"], "7");
        let addresses = json!([
            {"type": "CiliumInternalIP", "ip": "10.0.1.5"}, {"type": "InternalIP", "ip": "10.99.0.1"},
        ]);
        assert_eq!(present["spec"]["addresses"], addresses);
        assert_eq!(present["spec"]["ipam"], json!({"podCIDRs": ["10.0.1.0/24"], "pools": {"allocated": []}}));
        assert_eq!(present["spec"]["unknown"], 1);

        node.router_ipv4 = Some([10, 0, 1, 9].into());
        node.health_ipv4 = Some([10, 0, 1, 7].into());
        node.ingress_ipv4 = Some([10, 0, 1, 8].into());
        let desired = Desired::new(&settings, &node);
        desired.apply(&mut present, &former);
        let known = json!([
            {"type": "InternalIP", "ip": "10.99.0.1"}, {"type": "CiliumInternalIP", "ip": "10.0.1.9"},
        ]);
        assert_eq!(
            (&present["spec"]["addresses"], &present["spec"]["health"], &present["spec"]["ingress"]),
            (&known, &json!({"ipv4": "10.0.1.7"}), &json!({"ipv4": "10.0.1.8"}))
        );
        let row = |object: &Value| k8s_types::decode::<CiliumNode>(object.to_string().as_bytes()).unwrap();
        assert_eq!(desired.differences(&row(&present)), Vec::<&str>::new());
        present["spec"]["addresses"] = json!([]);
        present["spec"]["ingress"] = json!({"ipv4": "10.0.1.99"});
        present["metadata"]["ownerReferences"] = json!([]);
        let differences = ["/metadata/ownerReferences", "/spec/addresses", "/spec/ingress"];
        assert_eq!(desired.differences(&row(&present)), differences);
    }

    #[test]
    fn pod_cidrs_are_written_in_kubernetes_mode_alone() {
        let mut node = node();
        node.assign_ipv4_cidrs(&["10.0.1.0/24".parse().unwrap()]);
        let ipam = |mode| Desired::new(&settings(mode), &node).object()["spec"]["ipam"].clone();
        assert_eq!(ipam(IpamMode::ClusterPool), json!({"pools": {}}));
        assert_eq!(ipam(IpamMode::Kubernetes), json!({"pools": {}, "podCIDRs": ["10.0.1.0/24"]}));
    }

    #[test]
    fn the_demand_for_single_addresses_is_written_in_modes_that_have_it() {
        let config = CiliumNodeConfig {
            ipam_min_allocate: 4,
            ipam_static_ip_tags: [("pool".to_owned(), "a".to_owned())].into(),
            ..CiliumNodeConfig::default()
        };
        let node = LocalNode { provider_id: "azure:///Sub/VM-1".into(), ..node() };
        let spec = |mode| {
            let settings = Settings { demand: Demand::new(mode, &config), ..settings(mode) };
            Desired::new(&settings, &node).object()["spec"].clone()
        };
        let demand = json!({"pools": {}, "min-allocate": 4, "static-ip-tags": {"pool": "a"}});
        assert_eq!(spec(IpamMode::Crd)["ipam"], demand);
        assert_eq!(spec(IpamMode::Crd)["instance-id"], Value::Null);
        assert_eq!(
            (&spec(IpamMode::Azure)["ipam"], &spec(IpamMode::Azure)["instance-id"]),
            (&demand, &json!("/sub/vm-1"))
        );
        assert_eq!(spec(IpamMode::ClusterPool)["ipam"], json!({"pools": {}}));

        // Fields of others stay: the addresses, and demands that no option names.
        let mut present = json!({"spec": {"ipam": {"pre-allocate": 7, "pool": {"10.0.0.1": {}}}}});
        let crd = Settings { demand: Demand::new(IpamMode::Crd, &config), ..settings(IpamMode::Crd) };
        Desired::new(&crd, &node).apply(&mut present, &BTreeSet::new());
        let ipam = &present["spec"]["ipam"];
        assert_eq!((&ipam["pre-allocate"], &ipam["pool"]), (&json!(7), &json!({"10.0.0.1": {}})));
    }
}

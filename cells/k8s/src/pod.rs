//! Table `k8s-pods`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use statedb::{Prefix, Query, TableSpec, age};

use k8s_types::names;

use crate::field::{Field, decode};
use crate::{Protocol, Refusal, meta};

/// Words of `status.phase`.
const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];

/// A row of `k8s-pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What tells it from an earlier pod of that name; empty if the source has no such thing.
    pub uid: Arc<str>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The service account it runs as.
    pub service_account: Arc<str>,
    /// The node it is bound to; empty if it is bound to none.
    pub node_name: Arc<str>,
    /// Whether it lives in the node's network namespace.
    pub host_network: bool,
    /// Its addresses as Kubernetes knows them.
    pub pod_ips: Vec<IpAddr>,
    /// Its containers, the initializing ones first.
    pub containers: Vec<Container>,
    /// `Running` and so on; empty if the source does not say.
    pub phase: Arc<str>,
    /// The source that has it.
    pub source: Arc<str>,
    /// Where it was read: file and document.
    pub origin: String,
    /// When the row was last written.
    pub updated_at: Option<SystemTime>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// The ports it says it listens on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Whether it runs before the others.
    #[serde(skip)]
    pub init: bool,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ContainerPort {
    /// The name that policies and services may use; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its number.
    #[serde(rename = "containerPort")]
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl Pod {
    /// Reads a manifest. What it leaves out is as the API server would fill it in: namespace and service account are
    /// `default`.
    pub fn decode(manifest: &Value) -> Result<Pod, Refusal> {
        decode(manifest, read)
    }

    /// The pod of this name.
    pub fn by_name(namespace: &str, name: &str) -> Query<Pod> {
        Query::primary(format!("{namespace}/{name}"))
    }

    /// The pods of a namespace.
    pub fn in_namespace(namespace: &str) -> Prefix<Pod> {
        Prefix::primary(&*format!("{namespace}/"))
    }

    /// The ports of all its containers.
    pub fn ports(&self) -> impl Iterator<Item = &ContainerPort> {
        self.containers.iter().flat_map(|container| &container.ports)
    }
}

fn read(manifest: Field<'_>) -> Pod {
    meta::check_type(manifest, "v1", "Pod");
    let meta = meta::read(manifest, true, names::dns_subdomain);
    manifest.only(&["apiVersion", "kind", "metadata", "spec", "status"]);
    let spec = manifest.get("spec");
    spec.no_slips(&["nodeName", "serviceAccountName", "hostNetwork", "containers", "initContainers"], &[]);
    let status = manifest.get("status");
    status.no_slips(&["phase", "podIP", "podIPs"], &["hostIP", "hostIPs"]);
    let account = spec.get("serviceAccountName");
    let account = account.named(names::dns_subdomain).filter(|name| !name.is_empty());
    let address = "an IPv4 or IPv6 address";
    let mut pod_ips: Vec<IpAddr> = status
        .get("podIPs")
        .each(|item| item.get("ip").required(|ip| ip.parsed(address)))
        .into_iter()
        .flatten()
        .collect();
    let first: Option<IpAddr> = status.get("podIP").parsed(address);
    if pod_ips.is_empty() {
        pod_ips.extend(first);
    }
    let mut containers = spec.get("initContainers").each(|item| container(item, true));
    containers.extend(spec.get("containers").each(|item| container(item, false)));
    Pod {
        namespace: meta.namespace.into(),
        name: meta.name.into(),
        uid: meta.uid.into(),
        labels: meta.labels,
        annotations: meta.annotations,
        service_account: account.unwrap_or("default").into(),
        node_name: spec.get("nodeName").named(names::dns_subdomain).unwrap_or_default().into(),
        host_network: spec.get("hostNetwork").boolean().unwrap_or_default(),
        pod_ips,
        containers,
        phase: status.get("phase").one_of(&PHASES).unwrap_or_default().into(),
        source: Arc::default(),
        origin: String::new(),
        updated_at: None,
    }
}

fn container(item: Field<'_>, init: bool) -> Container {
    item.object();
    item.no_slips(&["name", "ports"], &[]);
    let mut seen: Vec<String> = Vec::new();
    let ports = item.get("ports").each(|port| {
        port.only(&["name", "containerPort", "protocol", "hostPort", "hostIP"]);
        let name = port.get("name");
        let text = name.named(names::port_name).unwrap_or_default().to_owned();
        if !text.is_empty() && seen.contains(&text) {
            name.wrong(format_args!("{text:?} is the name of another port of this container; rename one"));
        }
        seen.push(text.clone());
        Some(ContainerPort {
            name: text,
            port: port.get("containerPort").required(Field::port)?,
            protocol: Protocol::read(port.get("protocol")),
        })
    });
    Container {
        name: item.get("name").required(|name| name.named(names::dns_label)).unwrap_or_default().to_owned(),
        ports: ports.into_iter().flatten().collect(),
        init,
    }
}

impl TableSpec for Pod {
    const NAME: &'static str = "k8s-pods";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "UID", "HostNetwork", "PodIPs", "Containers", "Phase", "Age"]
    }

    fn row(&self) -> Vec<String> {
        let ips: Vec<String> = self.pod_ips.iter().map(IpAddr::to_string).collect();
        let containers: Vec<String> =
            self.containers.iter().filter(|c| !c.init).map(Container::text).collect();
        vec![
            self.key(),
            self.uid.to_string(),
            self.host_network.to_string(),
            ips.join(", "),
            containers.join(", "),
            self.phase.to_string(),
            self.updated_at.map(age::since).unwrap_or_default(),
        ]
    }
}

impl Container {
    /// `c (80/TCP (http),443/TCP)`.
    fn text(&self) -> String {
        let port = |port: &ContainerPort| match port.name.is_empty() {
            true => format!("{}/{}", port.port, port.protocol),
            false => format!("{}/{} ({})", port.port, port.protocol, port.name),
        };
        let ports: Vec<String> = self.ports.iter().map(port).collect();
        match ports.is_empty() {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, ports.join(",")),
        }
    }
}

/// As Kubernetes writes a pod, with the time of the row behind.
impl Serialize for Pod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec<'a> {
            #[serde(skip_serializing_if = "Vec::is_empty")]
            init_containers: Vec<&'a Container>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            containers: Vec<&'a Container>,
            service_account_name: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            node_name: &'a str,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            host_network: bool,
        }
        #[derive(Serialize)]
        struct Whole<'a> {
            metadata: meta::ObjectMeta,
            spec: Spec<'a>,
            status: Value,
            #[serde(rename = "updatedAt", serialize_with = "time")]
            updated_at: Option<SystemTime>,
        }
        let mut status = serde_json::Map::new();
        if !self.phase.is_empty() {
            status.insert("phase".into(), json!(&*self.phase));
        }
        if let Some(first) = self.pod_ips.first() {
            status.insert("podIP".into(), json!(first));
            let ips: Vec<Value> = self.pod_ips.iter().map(|ip| json!({"ip": ip})).collect();
            status.insert("podIPs".into(), ips.into());
        }
        let containers = |init| self.containers.iter().filter(|c| c.init == init).collect();
        let whole = Whole {
            metadata: meta::ObjectMeta {
                name: self.name.to_string(),
                namespace: self.namespace.to_string(),
                uid: self.uid.to_string(),
                labels: self.labels.clone(),
                annotations: self.annotations.clone(),
            },
            spec: Spec {
                init_containers: containers(true),
                containers: containers(false),
                service_account_name: &self.service_account,
                node_name: &self.node_name,
                host_network: self.host_network,
            },
            status: status.into(),
            updated_at: self.updated_at,
        };
        whole.serialize(serializer)
    }
}

/// A time in UTC with seconds, or `null`.
pub(crate) fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(api_models::rfc3339).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_and_written() {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "labels": {"app": "web"}},
            "spec": {
                "serviceAccountName": "robot", "nodeName": "n1", "restartPolicy": "Always",
                "initContainers": [{"name": "i"}],
                "containers": [
                    {"name": "c", "image": "x", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 443}]},
                    {"name": "d"},
                ],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        let pod = Pod::decode(&manifest).unwrap();
        assert_eq!(
            pod.row()[..6],
            ["shop/web-0", "u", "false", "10.0.0.1, fd00::1", "c (80/TCP (http),443/TCP), d", "Running"]
        );
        assert_eq!((&*pod.service_account, &*pod.node_name), ("robot", "n1"));
        assert_eq!(pod.ports().map(|port| port.port).collect::<Vec<_>>(), [80, 443]);
        let mut written = serde_json::to_value(&pod).unwrap();
        written.as_object_mut().unwrap().remove("updatedAt");
        assert_eq!(Pod::decode(&written).unwrap(), pod);
    }

    #[test]
    fn what_is_left_out_is_as_the_api_server_has_it() {
        let pod = Pod::decode(&json!({"metadata": {"name": "a"}, "spec": {"containers": null}})).unwrap();
        assert_eq!((&*pod.namespace, &*pod.service_account, pod.host_network), ("default", "default", false));
    }

    #[test]
    fn every_wrong_field_has_its_path() {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "spce": {},
            "metadata": {"name": "a_b", "namespace": "X"},
            "spec": {
                "hostNetwork": "yes", "nodeNmae": "a",
                "containers": [
                    {"name": "c", "ports": [
                        {"containerPort": 70000}, {"name": "http"}, {"containerPort": 1, "protocol": "tcp"},
                        {"containerPort": 2, "name": "a"}, {"containerPort": 3, "name": "a", "hostport": 1},
                    ]},
                    7,
                ],
            },
            "status": {"phase": "Gone", "podIPs": [{"ip": "10.0.0"}, {}]},
        });
        let refusal = Pod::decode(&manifest).unwrap_err();
        let mut paths: Vec<&str> = refusal.0.iter().map(|problem| problem.path.as_str()).collect();
        paths.sort();
        assert_eq!(
            paths,
            [
                "metadata.name",
                "metadata.namespace",
                "spce",
                "spec.containers[0].ports[0].containerPort",
                "spec.containers[0].ports[1].containerPort",
                "spec.containers[0].ports[2].protocol",
                "spec.containers[0].ports[4].hostport",
                "spec.containers[0].ports[4].name",
                "spec.containers[1]",
                "spec.containers[1].name",
                "spec.hostNetwork",
                "spec.nodeNmae",
                "status.phase",
                "status.podIPs[0].ip",
                "status.podIPs[1].ip",
            ]
        );
    }
}

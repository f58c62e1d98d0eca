//! Columns of Kubernetes' own kinds: those of `kubectl`, as far as the agent stores their fields.

use k8s_types::core::{
    ClusterNetworkPolicy, EndpointPort, EndpointSlice, Namespace, NetworkPolicy, Node, Pod, Service,
    ServicePort,
};
use k8s_types::{Kind, LabelSelector, ObjectMeta, Resource, SmolStr, StringMap};

use super::age::age;
use super::column::{Column, usual, wide};

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

/// The maximum number of a slice's ports, or addresses, in a cell.
const SHOWN: usize = 3;

/// A type with headings and cells.
pub(super) trait Shown: Resource {
    /// Returns the columns after the name.
    fn columns() -> Vec<Column>;

    /// Returns the cells after the name; `now` in seconds since 1970.
    fn cells(&self, now: i64) -> Vec<String>;
}

/// Returns the columns of a kind; `None` if it is not Kubernetes' own or has no table.
pub(super) fn columns(kind: Kind) -> Option<Vec<Column>> {
    Some(match kind {
        Kind::Namespace => Namespace::columns(),
        Kind::Node => Node::columns(),
        Kind::Pod => Pod::columns(),
        Kind::Service => Service::columns(),
        Kind::EndpointSlice => EndpointSlice::columns(),
        Kind::NetworkPolicy => NetworkPolicy::columns(),
        Kind::ClusterNetworkPolicy => ClusterNetworkPolicy::columns(),
        _ => return None,
    })
}

/// Returns the cells of an object of such a kind.
pub(super) fn cells(kind: Kind, json: &[u8], now: i64) -> serde_json::Result<Vec<String>> {
    fn of<T: Shown>(json: &[u8], now: i64) -> serde_json::Result<Vec<String>> {
        T::from_json(json).map(|object| object.cells(now))
    }
    match kind {
        Kind::Namespace => of::<Namespace>(json, now),
        Kind::Node => of::<Node>(json, now),
        Kind::Pod => of::<Pod>(json, now),
        Kind::Service => of::<Service>(json, now),
        Kind::EndpointSlice => of::<EndpointSlice>(json, now),
        Kind::NetworkPolicy => of::<NetworkPolicy>(json, now),
        Kind::ClusterNetworkPolicy => of::<ClusterNetworkPolicy>(json, now),
        _ => Ok(Vec::new()),
    }
}

impl Shown for Namespace {
    fn columns() -> Vec<Column> {
        vec![usual("STATUS"), usual("AGE")]
    }

    /// An API server sets the phase together with the deletion timestamp, so it is derived from the latter.
    fn cells(&self, now: i64) -> Vec<String> {
        let status = if self.metadata.deletion_timestamp.is_some() { "Terminating" } else { "Active" };
        vec![status.to_owned(), made(&self.metadata, now)]
    }
}

impl Shown for Pod {
    fn columns() -> Vec<Column> {
        vec![usual("STATUS"), usual("AGE"), wide("IP"), wide("NODE")]
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let or_none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
        let first = self.status.pod_ips.first().map_or(&self.status.pod_ip, |ip| &ip.ip);
        vec![pod_status(self), made(&self.metadata, now), or_none(first), or_none(&self.spec.node_name)]
    }
}

/// Returns the status of a pod without its containers' states.
fn pod_status(pod: &Pod) -> String {
    let gated =
        |c: &k8s_types::core::PodCondition| c.r#type == "PodScheduled" && &*c.reason == "SchedulingGated";
    match pod.status.phase.as_str() {
        _ if pod.metadata.deletion_timestamp.is_some() => "Terminating".to_owned(),
        _ if pod.status.conditions.iter().any(gated) => "SchedulingGated".to_owned(),
        "" => UNKNOWN.to_owned(),
        phase => phase.to_owned(),
    }
}

impl Shown for Node {
    fn columns() -> Vec<Column> {
        vec![usual("STATUS"), usual("ROLES"), usual("AGE"), wide("INTERNAL-IP"), wide("EXTERNAL-IP")]
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let address = |wanted: &str| {
            let found = self.status.addresses.iter().find(|address| address.r#type == wanted);
            found.map_or_else(|| NONE.to_owned(), |address| address.address.to_string())
        };
        vec![
            node_status(self),
            roles(&self.metadata.labels),
            made(&self.metadata, now),
            address("InternalIP"),
            address("ExternalIP"),
        ]
    }
}

/// Returns whether a node is ready, and whether it is cordoned, which the cluster also shows as a taint.
fn node_status(node: &Node) -> String {
    let ready = node.status.conditions.iter().find(|condition| condition.r#type == "Ready");
    let mut status = match ready.map(|condition| condition.status.as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.spec.taints.iter().any(|taint| taint.key == "node.kubernetes.io/unschedulable") {
        status += ",SchedulingDisabled";
    }
    status
}

fn roles(labels: &StringMap) -> String {
    let role = |(key, value): (&SmolStr, &SmolStr)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None => (key == "kubernetes.io/role" && !value.is_empty()).then(|| value.to_string()),
    };
    let mut roles: Vec<String> = labels.iter().filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.sort();
    roles.dedup();
    if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }
}

impl Shown for Service {
    fn columns() -> Vec<Column> {
        let columns = ["TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"].map(usual);
        columns.into_iter().chain([wide("SELECTOR")]).collect()
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let spec = &self.spec;
        let kind = if spec.r#type.is_empty() { "ClusterIP" } else { &spec.r#type };
        let first = spec.cluster_ips.first().unwrap_or(&spec.cluster_ip);
        let ports: Vec<String> = spec.ports.iter().map(port).collect();
        vec![
            kind.to_owned(),
            if first.is_empty() { NONE.to_owned() } else { first.to_string() },
            external_ips(self, kind),
            if ports.is_empty() { NONE.to_owned() } else { ports.join(",") },
            made(&self.metadata, now),
            labels(&spec.selector),
        ]
    }
}

fn external_ips(service: &Service, kind: &str) -> String {
    let ingress = service.status.load_balancer.ingress.iter();
    let mut balancer: Vec<&str> =
        ingress.map(|at| if at.ip.is_empty() { at.hostname.as_str() } else { at.ip.as_str() }).collect();
    balancer.retain(|address| !address.is_empty());
    balancer.sort_unstable();
    balancer.dedup();
    let external = service.spec.external_ips.iter().map(SmolStr::as_str);
    let (addresses, nothing) = match kind {
        // The agent does not store the name.
        "ExternalName" => return UNKNOWN.to_owned(),
        "LoadBalancer" => (balancer.into_iter().chain(external).collect::<Vec<_>>(), "<pending>"),
        _ => (external.collect(), NONE),
    };
    if addresses.is_empty() { nothing.to_owned() } else { addresses.join(",") }
}

/// Formats `80/TCP`, with a node port `80:30080/TCP`.
fn port(port: &ServicePort) -> String {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    match port.node_port {
        0 => format!("{}/{protocol}", port.port),
        node => format!("{}:{node}/{protocol}", port.port),
    }
}

impl Shown for EndpointSlice {
    fn columns() -> Vec<Column> {
        ["ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"].map(usual).into()
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let port = |port: &EndpointPort| match (port.port, &port.name) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.to_string(),
            (None, None) => "*".to_owned(),
        };
        let addresses = self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        vec![
            self.address_type.to_string(),
            few(self.ports.iter().map(port).collect()),
            few(addresses.map(ToString::to_string).collect()),
            made(&self.metadata, now),
        ]
    }
}

/// Formats `a,b,c + 2 more...`.
fn few(items: Vec<String>) -> String {
    match items.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} + {more} more...", items[..SHOWN].join(",")),
        _ if items.is_empty() => "<unset>".to_owned(),
        _ => items.join(","),
    }
}

impl Shown for NetworkPolicy {
    fn columns() -> Vec<Column> {
        ["POD-SELECTOR", "AGE"].map(usual).into()
    }

    fn cells(&self, now: i64) -> Vec<String> {
        vec![selector(&self.spec.pod_selector), made(&self.metadata, now)]
    }
}

impl Shown for ClusterNetworkPolicy {
    fn columns() -> Vec<Column> {
        ["TIER", "PRIORITY", "AGE"].map(usual).into()
    }

    fn cells(&self, now: i64) -> Vec<String> {
        let field = |name| self.spec.as_ref().and_then(|spec| spec.get(name));
        let tier = field("tier").and_then(|tier| tier.as_str()).unwrap_or_default();
        let priority = field("priority").map(ToString::to_string).unwrap_or_default();
        vec![tier.to_owned(), priority, made(&self.metadata, now)]
    }
}

/// Formats a selector in the syntax of `-l`.
fn selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| (key, format!("{key}={value}")));
    let conditions = selector.match_expressions.iter().map(|condition| {
        let key = &condition.key;
        let mut values: Vec<&str> = condition.values.iter().map(SmolStr::as_str).collect();
        values.sort_unstable();
        let text = match condition.operator.as_str() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_string(),
            "DoesNotExist" => format!("!{key}"),
            _ => "<error>".to_owned(),
        };
        (key, text)
    });
    let mut terms: Vec<(&SmolStr, String)> = labels.chain(conditions).collect();
    terms.sort_by_key(|(key, _)| *key);
    let terms: Vec<String> = terms.into_iter().map(|(_, text)| text).collect();
    if terms.is_empty() { NONE.to_owned() } else { terms.join(",") }
}

/// Formats `a=b,c=d`.
pub(super) fn labels(labels: &StringMap) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

fn made(metadata: &ObjectMeta, now: i64) -> String {
    age(metadata.creation_timestamp, now)
}

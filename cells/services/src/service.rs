//! The table `services`: what is said of a service as a whole.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};
use statedb::{Query, TableSpec};

use crate::name::ServiceName;
use crate::source::Source;

/// Which backends traffic may go to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// All.
    #[default]
    Cluster,
    /// Those of this node.
    Local,
}

impl TrafficPolicy {
    /// As in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        }
    }
}

/// A service. Its frontends and backends are rows of their own tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Who says it.
    pub source: Source,
    /// Labels of the manifest.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// Which pods are its backends, for those who ask; backends come from endpoint slices.
    pub selector: BTreeMap<String, String>,
    /// For traffic from outside.
    pub ext_traffic_policy: TrafficPolicy,
    /// For traffic from inside the cluster.
    pub int_traffic_policy: TrafficPolicy,
    /// How long a client stays with its backend; `None` for not at all.
    pub session_affinity: Option<Duration>,
    /// Who manages the addresses of type LoadBalancer.
    pub load_balancer_class: Option<String>,
    /// Where cloud load balancers ask for local backends, or 0.
    pub health_check_node_port: u16,
    /// Clients that may use it; empty for all.
    pub source_ranges: Vec<IpNetwork>,
    /// Its named ports.
    pub port_names: BTreeMap<String, u16>,
    /// Which backends are preferred: empty, `PreferClose`, `PreferSameZone` or `PreferSameNode`.
    pub traffic_distribution: String,
}

impl Service {
    /// A service without anything.
    pub fn new(name: ServiceName, source: Source) -> Service {
        Service {
            name,
            source,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            selector: BTreeMap::new(),
            ext_traffic_policy: TrafficPolicy::Cluster,
            int_traffic_policy: TrafficPolicy::Cluster,
            session_affinity: None,
            load_balancer_class: None,
            health_check_node_port: 0,
            source_ranges: Vec::new(),
            port_names: BTreeMap::new(),
            traffic_distribution: String::new(),
        }
    }

    /// The service of that name.
    pub fn by_name(name: &ServiceName) -> Query<Service> {
        Query::primary(name.as_str())
    }

    /// Whether the source ranges are those that may not use it (annotation `service.cilium.io/src-ranges-policy`).
    pub fn denies_source_ranges(&self) -> bool {
        let policy = self.annotations.get("service.cilium.io/src-ranges-policy");
        policy.is_some_and(|policy| policy.eq_ignore_ascii_case("deny"))
    }

    fn flags(&self) -> String {
        let mut flags = Vec::new();
        if self.health_check_node_port != 0 {
            flags.push(format!("HealthCheckNodePort={}", self.health_check_node_port));
        }
        if let Some(class) = &self.load_balancer_class {
            flags.push(format!("LoadBalancerClass={class}"));
        }
        if let Some(timeout) = self.session_affinity {
            flags.push(format!("SessionAffinity={}", go_duration(timeout)));
        }
        if !self.source_ranges.is_empty() {
            let ranges: Vec<_> = self.source_ranges.iter().map(IpNetwork::to_string).collect();
            flags.push(format!("SourceRanges={}", ranges.join(", ")));
        }
        if self.denies_source_ranges() {
            flags.push("SourceRangesPolicy=deny".to_owned());
        }
        if !self.traffic_distribution.is_empty() {
            flags.push(format!("TrafficDistribution={}", self.traffic_distribution));
        }
        flags.join(", ")
    }
}

/// Whole seconds as Go prints them: `3h0m0s`, `1m30s`, `45s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Labels of a manifest as the original shows them, each with its source.
struct Labelled<'a>(&'a BTreeMap<String, String>);

#[derive(Serialize)]
struct Labelling<'a> {
    key: &'a str,
    value: &'a str,
    source: &'static str,
}

impl Serialize for Labelled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, &Labelling { key, value, source: "k8s" })?;
        }
        map.end()
    }
}

/// Empty maps and lists as Go's nil.
fn unless_empty<T>(value: T, empty: bool) -> Option<T> {
    (!empty).then_some(value)
}

/// With all fields of the original; those of features that are not built have their empty values.
impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let timeout = self.session_affinity.unwrap_or_default().as_nanos();
        let mut s = serializer.serialize_struct("Service", 19)?;
        s.serialize_field("Name", &self.name)?;
        s.serialize_field("Source", &self.source)?;
        s.serialize_field("Labels", &Labelled(&self.labels))?;
        s.serialize_field("Annotations", &unless_empty(&self.annotations, self.annotations.is_empty()))?;
        s.serialize_field("Selector", &unless_empty(&self.selector, self.selector.is_empty()))?;
        s.serialize_field("NatPolicy", "")?;
        s.serialize_field("ExtTrafficPolicy", self.ext_traffic_policy.name())?;
        s.serialize_field("IntTrafficPolicy", self.int_traffic_policy.name())?;
        s.serialize_field("ForwardingMode", "")?;
        s.serialize_field("SessionAffinity", &self.session_affinity.is_some())?;
        s.serialize_field("SessionAffinityTimeout", &u64::try_from(timeout).unwrap_or(u64::MAX))?;
        s.serialize_field("LoadBalancerClass", &self.load_balancer_class)?;
        s.serialize_field("ProxyRedirects", &None::<()>)?;
        s.serialize_field("HealthCheckNodePort", &self.health_check_node_port)?;
        s.serialize_field("LoopbackHostPort", &false)?;
        s.serialize_field("SourceRanges", &unless_empty(&self.source_ranges, self.source_ranges.is_empty()))?;
        s.serialize_field("PortNames", &unless_empty(&self.port_names, self.port_names.is_empty()))?;
        s.serialize_field("TrafficDistribution", &self.traffic_distribution)?;
        s.end()
    }
}

impl TableSpec for Service {
    const NAME: &'static str = "services";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        self.name.as_str()
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "Source", "PortNames", "TrafficPolicy", "Flags"]
    }

    fn row(&self) -> Vec<String> {
        let mut ports = String::new();
        for (name, port) in &self.port_names {
            let comma = if ports.is_empty() { "" } else { ", " };
            let _ = write!(ports, "{comma}{name}={port}");
        }
        let policy = match (self.ext_traffic_policy, self.int_traffic_policy) {
            (ext, int) if ext == int => ext.name().to_owned(),
            (ext, int) => format!("Ext={}, Int={}", ext.name(), int.name()),
        };
        vec![self.name.to_string(), self.source.to_string(), ports, policy, self.flags()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_as_the_original_fills_them() {
        let service = Service {
            session_affinity: Some(Duration::from_secs(10_800)),
            source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            ext_traffic_policy: TrafficPolicy::Local,
            port_names: [("http".into(), 80), (String::new(), 81)].into(),
            annotations: [("service.cilium.io/src-ranges-policy".into(), "Deny".into())].into(),
            ..Service::new(ServiceName::new("ns", "web"), Source::Api)
        };
        let flags = "SessionAffinity=3h0m0s, SourceRanges=10.0.0.0/8, fd00::/8, SourceRangesPolicy=deny";
        assert_eq!(service.row(), ["ns/web", "api", "=81, http=80", "Ext=Local, Int=Cluster", flags]);
    }

    #[test]
    fn json_has_the_fields_of_the_original_in_their_order() {
        let service = Service {
            labels: [("tier".into(), "web".into())].into(),
            session_affinity: Some(Duration::from_secs(45)),
            port_names: [("http".into(), 80)].into(),
            ..Service::new(ServiceName::new("fmt", "one"), Source::Kubernetes)
        };
        assert_eq!(
            serde_json::to_string(&service).unwrap(),
            r#"{"Name":"fmt/one","Source":"k8s","Labels":{"tier":{"key":"tier","value":"web","source":"k8s"}},"#
                .to_owned()
                + r#""Annotations":null,"Selector":null,"NatPolicy":"","ExtTrafficPolicy":"Cluster","#
                + r#""IntTrafficPolicy":"Cluster","ForwardingMode":"","SessionAffinity":true,"#
                + r#""SessionAffinityTimeout":45000000000,"LoadBalancerClass":null,"ProxyRedirects":null,"#
                + r#""HealthCheckNodePort":0,"LoopbackHostPort":false,"SourceRanges":null,"#
                + r#""PortNames":{"http":80},"TrafficDistribution":""}"#
        );
    }

    #[test]
    fn durations_as_go_prints_them() {
        let shown = |seconds| go_duration(Duration::from_secs(seconds));
        assert_eq!([shown(45), shown(90), shown(10_800)], ["45s", "1m30s", "3h0m0s"]);
    }
}

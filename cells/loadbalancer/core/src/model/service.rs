//! The table `services`: properties of services as a whole.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use hive::config::FlagValue;
use ipnetwork::IpNetwork;
use k8s_tables::{SmolStr, StringMap};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use statedb::{Query, TableDisplay, TableSpec};

use crate::model::annotations;
use crate::model::go_serialize::{Encoded, Encoding, Fields, GoSerialize, go_duration, yaml};
use crate::model::name::ServiceName;
use crate::model::source::Source;

/// The backends to which traffic may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// All.
    #[default]
    Cluster,
    /// Those of this node.
    Local,
}

impl TrafficPolicy {
    /// Returns the name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        }
    }
}

/// Whether addresses are translated between the families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NatPolicy {
    /// Not specified.
    #[default]
    Unset,
    /// They are not.
    None,
    /// IPv4 frontends, IPv6 backends.
    Nat46,
    /// IPv6 frontends, IPv4 backends.
    Nat64,
}

impl NatPolicy {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            NatPolicy::Unset => "",
            NatPolicy::None => "NONE",
            NatPolicy::Nat46 => "Nat46",
            NatPolicy::Nat64 => "Nat64",
        }
    }
}

/// The mode of forwarding packets to backends of other nodes, and of replies to clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwardingMode {
    /// As set by the node's options.
    #[default]
    Default,
    /// Replies are sent directly to the client.
    Dsr,
    /// Replies are sent through this node.
    Snat,
}

impl ForwardingMode {
    /// Returns the name in annotations and tables.
    pub fn name(self) -> &'static str {
        match self {
            ForwardingMode::Default => "",
            ForwardingMode::Dsr => "dsr",
            ForwardingMode::Snat => "snat",
        }
    }

    /// Returns the mode by its name.
    pub fn from_name(name: &str) -> Option<ForwardingMode> {
        [ForwardingMode::Dsr, ForwardingMode::Snat].into_iter().find(|mode| mode.name() == name)
    }
}

/// The preferred backends, if there are any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrafficDistribution {
    /// None.
    #[default]
    Default,
    /// Those meant for this node's zone.
    PreferSameZone,
    /// The former name of [`PreferSameZone`](TrafficDistribution::PreferSameZone).
    PreferClose,
    /// Those of this node.
    PreferSameNode,
}

impl TrafficDistribution {
    /// Returns the name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            TrafficDistribution::Default => "",
            TrafficDistribution::PreferSameZone => "PreferSameZone",
            TrafficDistribution::PreferClose => "PreferClose",
            TrafficDistribution::PreferSameNode => "PreferSameNode",
        }
    }

    /// Returns the preference by its name; default for unknown names.
    pub fn from_name(name: &str) -> TrafficDistribution {
        use TrafficDistribution::{Default, PreferClose, PreferSameNode, PreferSameZone};
        let known =
            [PreferSameZone, PreferClose, PreferSameNode].into_iter().find(|known| known.name() == name);
        known.unwrap_or(Default)
    }

    /// Whether it prefers by zone.
    pub(crate) fn is_by_zone(self) -> bool {
        matches!(self, TrafficDistribution::PreferSameZone | TrafficDistribution::PreferClose)
    }
}

/// The algorithm that selects the backend of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FlagValue)]
pub enum Algorithm {
    /// A random backend.
    Random,
    /// By a Maglev table, the same on all nodes.
    Maglev,
}

impl Algorithm {
    /// Returns the name in annotations, options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Random => "random",
            Algorithm::Maglev => "maglev",
        }
    }

    /// Returns the algorithm by its name.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        [Algorithm::Random, Algorithm::Maglev].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// A proxy of this node that takes connections of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRedirect {
    /// The port of the proxy.
    pub proxy_port: u16,
    /// The service's ports to redirect; empty for all.
    pub ports: Vec<u16>,
}

impl ProxyRedirect {
    /// Returns the proxy port for a port of the service: of the redirect that names the port, else of one for all
    /// ports.
    pub(crate) fn of_port(redirects: &[ProxyRedirect], port: u16) -> Option<u16> {
        let exact = redirects.iter().find(|redirect| redirect.ports.contains(&port));
        let all = || redirects.iter().find(|redirect| redirect.ports.is_empty());
        exact.or_else(all).map(|redirect| redirect.proxy_port)
    }

    fn text(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
        match ports.is_empty() {
            true => self.proxy_port.to_string(),
            false => format!("{} (ports: [{}])", self.proxy_port, ports.join(" ")),
        }
    }
}

impl GoSerialize for ProxyRedirect {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        fields.add("ProxyPort", &self.proxy_port)?;
        fields.list("Ports", &self.ports)
    }
}

/// A service. Its frontends and backends are rows of their own tables. Empty maps and lists take no memory, and those
/// of the manifest are shared with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Its source.
    pub source: Source,
    /// Labels of the manifest.
    pub labels: StringMap,
    /// Annotations of the manifest.
    pub annotations: StringMap,
    /// The labels of its pods, for readers of the table; backends come from endpoint slices.
    pub selector: StringMap,
    /// Whether addresses are translated between the families.
    pub nat_policy: NatPolicy,
    /// The policy for traffic from outside the cluster.
    pub ext_traffic_policy: TrafficPolicy,
    /// The policy for traffic from inside the cluster.
    pub int_traffic_policy: TrafficPolicy,
    /// The mode of forwarding packets to backends of other nodes.
    pub forwarding_mode: ForwardingMode,
    /// The timeout of client affinity to a backend; `None` without affinity.
    pub session_affinity: Option<Duration>,
    /// The class that manages the addresses of type LoadBalancer.
    pub load_balancer_class: Option<SmolStr>,
    /// Proxies to which its connections are redirected.
    pub proxy_redirects: Arc<[ProxyRedirect]>,
    /// The port for health checks of cloud load balancers, or 0.
    pub health_check_node_port: u16,
    /// Whether it is a host port on the host's loopback address only.
    pub loopback_host_port: bool,
    /// Clients that may use it; empty for all.
    pub source_ranges: Arc<[IpNetwork]>,
    /// Its ports by name, sorted.
    pub port_names: Arc<[(SmolStr, u16)]>,
    /// The preferred backends.
    pub traffic_distribution: TrafficDistribution,
}

impl Service {
    /// Returns a service with default properties.
    pub fn new(name: ServiceName, source: Source) -> Service {
        Service {
            name,
            source,
            labels: StringMap::default(),
            annotations: StringMap::default(),
            selector: StringMap::default(),
            nat_policy: NatPolicy::Unset,
            ext_traffic_policy: TrafficPolicy::Cluster,
            int_traffic_policy: TrafficPolicy::Cluster,
            forwarding_mode: ForwardingMode::Default,
            session_affinity: None,
            load_balancer_class: None,
            proxy_redirects: Arc::default(),
            health_check_node_port: 0,
            loopback_host_port: false,
            source_ranges: Arc::default(),
            port_names: Arc::default(),
            traffic_distribution: TrafficDistribution::Default,
        }
    }

    /// Returns a query for the service of this name.
    pub fn by_name(name: &ServiceName) -> Query<Service> {
        Query::primary(name.as_str())
    }

    /// Whether the source ranges are denied instead of allowed (annotation `service.cilium.io/src-ranges-policy`).
    pub fn denies_source_ranges(&self) -> bool {
        let policy = self.annotations.get(annotations::SOURCE_RANGES_POLICY);
        policy.is_some_and(|policy| policy.eq_ignore_ascii_case("deny"))
    }

    /// Returns the requested algorithm (annotation `service.cilium.io/lb-algorithm`).
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_name(self.annotations.get(annotations::ALGORITHM)?)
    }

    /// Whether connections to backends of this node are delegated to a proxy there (annotation
    /// `service.cilium.io/proxy-delegation`).
    pub fn delegates_if_local(&self) -> bool {
        let delegation = self.annotations.get(annotations::PROXY_DELEGATION);
        delegation.is_some_and(|value| value.eq_ignore_ascii_case("delegate-if-local"))
    }

    /// Returns the port of the proxy that takes connections to a port of the service.
    pub fn proxy_port(&self, service_port: u16) -> Option<u16> {
        ProxyRedirect::of_port(&self.proxy_redirects, service_port)
    }

    fn flags(&self) -> String {
        let mut flags = Vec::new();
        if let Some(algorithm) = self.algorithm() {
            flags.push(format!("ExplicitLBAlgorithm={}", algorithm.name()));
        }
        if self.forwarding_mode != ForwardingMode::Default {
            flags.push(format!("ForwardingMode={}", self.forwarding_mode.name()));
        }
        if self.health_check_node_port != 0 {
            flags.push(format!("HealthCheckNodePort={}", self.health_check_node_port));
        }
        if let Some(class) = &self.load_balancer_class {
            flags.push(format!("LoadBalancerClass={class}"));
        }
        if self.loopback_host_port {
            flags.push("LoopbackHostPort=true".to_owned());
        }
        match &*self.proxy_redirects {
            [] => {}
            [one] => flags.push(format!("ProxyRedirects={}", one.text())),
            several => {
                let texts: Vec<String> = several.iter().map(ProxyRedirect::text).collect();
                flags.push(format!("ProxyRedirects=[{}]", texts.join(", ")));
            }
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
        if self.traffic_distribution != TrafficDistribution::Default {
            flags.push(format!("TrafficDistribution={}", self.traffic_distribution.name()));
        }
        flags.join(", ")
    }
}

/// Labels of a manifest in Cilium's format, each with its source.
struct Labelled<'a>(&'a StringMap, Source);

#[derive(Serialize)]
struct Labelling<'a> {
    key: &'a str,
    value: &'a str,
    source: &'static str,
}

impl Serialize for Labelled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0.iter().map(|(key, value)| (key, Labelling { key, value, source: self.1.name() })),
        )
    }
}

/// Ports by their names.
struct Ports<'a>(&'a [(SmolStr, u16)]);

impl Serialize for Ports<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, port)| (name, port)))
    }
}

impl GoSerialize for Service {
    fn fields<M: SerializeMap>(&self, fields: &mut Fields<'_, M>) -> Result<(), M::Error> {
        fields.add("Name", &self.name)?;
        fields.add("Source", &self.source)?;
        let made = self.labels.is_empty() && self.name.name().contains(':');
        fields.map("Labels", &Labelled(&self.labels, self.source), made)?;
        fields.map("Annotations", &self.annotations, self.annotations.is_empty())?;
        fields.map("Selector", &self.selector, self.selector.is_empty())?;
        fields.add("NatPolicy", self.nat_policy.name())?;
        fields.add("ExtTrafficPolicy", self.ext_traffic_policy.name())?;
        fields.add("IntTrafficPolicy", self.int_traffic_policy.name())?;
        fields.add("ForwardingMode", self.forwarding_mode.name())?;
        fields.add("SessionAffinity", &self.session_affinity.is_some())?;
        fields.duration("SessionAffinityTimeout", self.session_affinity.unwrap_or_default())?;
        fields.add("LoadBalancerClass", &self.load_balancer_class)?;
        let form = fields.form;
        let redirects: Vec<_> = self.proxy_redirects.iter().map(|redirect| Encoded(redirect, form)).collect();
        fields.list("ProxyRedirects", &redirects)?;
        fields.add("HealthCheckNodePort", &self.health_check_node_port)?;
        fields.add("LoopbackHostPort", &self.loopback_host_port)?;
        fields.list("SourceRanges", &self.source_ranges)?;
        fields.map("PortNames", &Ports(&self.port_names), self.port_names.is_empty())?;
        fields.add("TrafficDistribution", self.traffic_distribution.name())
    }
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Encoded(self, Encoding::Json).serialize(serializer)
    }
}

impl TableSpec for Service {
    const NAME: &'static str = "services";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        self.name.as_str()
    }
}

impl TableDisplay for Service {
    fn columns() -> &'static [&'static str] {
        &["Name", "Source", "PortNames", "TrafficPolicy", "Flags"]
    }

    fn row(&self) -> Vec<String> {
        let mut ports = String::new();
        for (name, port) in &*self.port_names {
            let comma = if ports.is_empty() { "" } else { ", " };
            let _ = write!(ports, "{comma}{name}={port}");
        }
        let policy = match (self.ext_traffic_policy, self.int_traffic_policy) {
            (ext, int) if ext == int => ext.name().to_owned(),
            (ext, int) => format!("Ext={}, Int={}", ext.name(), int.name()),
        };
        vec![self.name.to_string(), self.source.to_string(), ports, policy, self.flags()]
    }

    fn yaml(&self) -> Option<String> {
        yaml(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_as_cilium_fills_them() {
        let redirect = |proxy_port, ports: &[u16]| ProxyRedirect { proxy_port, ports: ports.to_vec() };
        let service = Service {
            session_affinity: Some(Duration::from_secs(10_800)),
            source_ranges: ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()].into(),
            ext_traffic_policy: TrafficPolicy::Local,
            port_names: [(SmolStr::default(), 81), ("http".into(), 80)].into(),
            annotations: [
                ("service.cilium.io/src-ranges-policy", "Deny"),
                ("service.cilium.io/lb-algorithm", "maglev"),
            ]
            .into_iter()
            .collect(),
            proxy_redirects: [redirect(10_000, &[80, 81])].into(),
            traffic_distribution: TrafficDistribution::PreferClose,
            forwarding_mode: ForwardingMode::Dsr,
            ..Service::new(ServiceName::new("ns", "web"), Source::Api)
        };
        let flags = "ExplicitLBAlgorithm=maglev, ForwardingMode=dsr, ProxyRedirects=10000 (ports: [80 81]), \
                     SessionAffinity=3h0m0s, SourceRanges=10.0.0.0/8, fd00::/8, SourceRangesPolicy=deny, \
                     TrafficDistribution=PreferClose";
        assert_eq!(service.row(), ["ns/web", "api", "=81, http=80", "Ext=Local, Int=Cluster", flags]);
        let several = Service {
            proxy_redirects: [redirect(1, &[80]), redirect(2, &[])].into(),
            loopback_host_port: true,
            ..Service::new(ServiceName::new("ns", "web"), Source::Api)
        };
        assert_eq!(several.flags(), "LoopbackHostPort=true, ProxyRedirects=[1 (ports: [80]), 2]");
        assert_eq!((several.proxy_port(80), several.proxy_port(81)), (Some(1), Some(2)));
        assert_eq!(service.proxy_port(82), None);
    }

    fn one() -> Service {
        Service {
            labels: [("tier", "web")].into_iter().collect(),
            session_affinity: Some(Duration::from_secs(10_800)),
            port_names: [("http".into(), 80)].into(),
            ..Service::new(ServiceName::new("fmt", "one"), Source::Kubernetes)
        }
    }

    #[test]
    fn json_has_cilium_s_fields_in_order() {
        assert_eq!(
            serde_json::to_string(&one()).unwrap(),
            r#"{"Name":"fmt/one","Source":"k8s","Labels":{"tier":{"key":"tier","value":"web","source":"k8s"}},"#
                .to_owned()
                + r#""Annotations":null,"Selector":null,"NatPolicy":"","ExtTrafficPolicy":"Cluster","#
                + r#""IntTrafficPolicy":"Cluster","ForwardingMode":"","SessionAffinity":true,"#
                + r#""SessionAffinityTimeout":10800000000000,"LoadBalancerClass":null,"ProxyRedirects":null,"#
                + r#""HealthCheckNodePort":0,"LoopbackHostPort":false,"SourceRanges":null,"#
                + r#""PortNames":{"http":80},"TrafficDistribution":""}"#
        );
    }

    #[test]
    fn yaml_has_its_own_words() {
        assert_eq!(
            one().yaml().unwrap(),
            r#"{"name":"fmt/one","source":"k8s","labels":{"tier":{"key":"tier","value":"web","source":"k8s"}},"#
                .to_owned()
                + r#""annotations":{},"selector":{},"natpolicy":"","exttrafficpolicy":"Cluster","#
                + r#""inttrafficpolicy":"Cluster","forwardingmode":"","sessionaffinity":true,"#
                + r#""sessionaffinitytimeout":"3h0m0s","loadbalancerclass":null,"proxyredirects":[],"#
                + r#""healthchecknodeport":0,"loopbackhostport":false,"sourceranges":[],"#
                + r#""portnames":{"http":80},"trafficdistribution":""}"#
        );
    }
}

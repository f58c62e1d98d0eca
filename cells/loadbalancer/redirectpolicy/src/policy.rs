//! The table `localredirectpolicies`: parsed policies.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_tables::SmolStr;
use k8s_tables::cilium::{CiliumLocalRedirectPolicy, PortInfo};
use k8s_types::selector::{OperatorError, Test};
use k8s_types::{LabelSelector, Time};
use labels::{K8S, LabelArray};
use loadbalancer::{FrontendParams, FrontendType, LbAddress, Protocol, ServiceName};
use policy_engine::{Requirement, Selector};
use serde::{Serialize, Serializer};
use statedb::{Index, IndexDef, TableDisplay, TableSpec};

use crate::config::Ranges;
use crate::error::Malformed;

/// The suffix of the names of services that represent policies; it is not valid in Kubernetes, so they cannot conflict.
const SUFFIX: &str = ":local-redirect";

/// Whether a service represents a policy.
pub(crate) fn stands_for_policy(service: &ServiceName) -> bool {
    service.as_str().ends_with(SUFFIX)
}

/// A port of a frontend or a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The port, never 0.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name in lower case, by which ports of both sides are matched; may be empty if there is only one.
    pub name: SmolStr,
}

/// The traffic to redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// Traffic to ports of an address.
    Address(IpAddr, Vec<Port>),
    /// Traffic to a service's cluster address, to these ports or to all.
    Service(ServiceName, Vec<Port>),
}

/// A local redirect policy.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalRedirectPolicy {
    /// Namespace and name.
    pub id: ServiceName,
    /// The object's uid.
    pub uid: SmolStr,
    /// Its creation time: of two policies that request the same address the older one takes effect.
    pub created: Option<Time>,
    /// The traffic to redirect.
    pub frontend: Matched,
    /// The pods to redirect to.
    pub backend_selector: Selector,
    /// Their ports.
    pub backend_ports: Vec<Port>,
    /// Whether traffic of these pods themselves skips the redirection.
    pub skip_redirect_from_backend: bool,
}

/// The number of ports of a policy, and the kind of its frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All ports of a service.
    ServiceAll,
    /// Several ports of a service.
    ServiceNamed,
    /// One port of a service.
    ServiceSingle,
    /// One port of an address.
    AddressSingle,
    /// Several ports of an address.
    AddressNamed,
}

impl Kind {
    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ServiceAll => "all",
            Kind::ServiceNamed => "named-ports",
            Kind::ServiceSingle => "svc-single-port",
            Kind::AddressSingle => "addr-single-port",
            Kind::AddressNamed => "addr-named-ports",
        }
    }

    /// Returns the text in the REST API.
    pub fn description(self) -> &'static str {
        match self {
            Kind::ServiceAll => "clusterIP + all svc ports",
            Kind::ServiceNamed => "clusterIP + named ports",
            Kind::ServiceSingle => "clusterIP + port",
            Kind::AddressSingle => "IP + port",
            Kind::AddressNamed => "IP + named ports",
        }
    }
}

impl LocalRedirectPolicy {
    /// Parses an object. Errors name the field.
    pub fn parse(object: &CiliumLocalRedirectPolicy, ranges: &Ranges) -> Result<Self, Malformed> {
        let (meta, spec) = (&object.metadata, &object.spec);
        if meta.name.is_empty() || meta.namespace.is_empty() {
            return Err(Malformed::new("metadata", "name and namespace must not be empty"));
        }
        let frontend =
            match (&spec.redirect_frontend.address_matcher, &spec.redirect_frontend.service_matcher) {
                (None, None) => {
                    return Err(Malformed::new(
                        FRONTEND,
                        "give addressMatcher or serviceMatcher; there is neither",
                    ));
                }
                (Some(_), Some(_)) => {
                    return Err(Malformed::new(FRONTEND, "give addressMatcher or serviceMatcher, not both"));
                }
                (Some(matcher), None) => {
                    let field = format!("{FRONTEND}.addressMatcher");
                    let ip = matcher.ip.parse().map_err(|_| {
                        Malformed::new(format!("{field}.ip"), format!("'{}' is no IP address", matcher.ip))
                    })?;
                    if !ranges.allow(ip) {
                        let problem =
                            format!("{ip} is in none of the prefixes of option lrp-address-matcher-cidrs");
                        return Err(Malformed::new(format!("{field}.ip"), problem));
                    }
                    if matcher.to_ports.is_empty() {
                        return Err(Malformed::new(format!("{field}.toPorts"), "name at least one port"));
                    }
                    Matched::Address(ip, ports(&field, &matcher.to_ports, matcher.to_ports.len() > 1)?)
                }
                (None, Some(matcher)) => {
                    let field = format!("{FRONTEND}.serviceMatcher");
                    if matcher.service_name.is_empty() {
                        return Err(Malformed::new(format!("{field}.serviceName"), "must not be empty"));
                    }
                    if matcher.namespace != meta.namespace {
                        let (of_service, of_policy) = (&matcher.namespace, &meta.namespace);
                        let problem = format!("'{of_service}' is not the policy's namespace '{of_policy}'");
                        return Err(Malformed::new(format!("{field}.namespace"), problem));
                    }
                    let service = ServiceName::new(&matcher.namespace, &matcher.service_name);
                    Matched::Service(service, ports(&field, &matcher.to_ports, matcher.to_ports.len() > 1)?)
                }
            };
        let of_frontend = frontend.ports();
        let backend = &spec.redirect_backend;
        let named = of_frontend.len() > 1 || backend.to_ports.len() > 1;
        let backend_ports = ports(BACKEND, &backend.to_ports, named)?;
        let Some(first) = backend_ports.first() else {
            return Err(Malformed::new(format!("{BACKEND}.toPorts"), "name at least one port"));
        };
        if let [only] = of_frontend
            && only.protocol != first.protocol
        {
            let problem = format!("{} is not the frontend's protocol {}", first.protocol, only.protocol);
            return Err(Malformed::new(format!("{BACKEND}.toPorts[0].protocol"), problem));
        }
        Ok(LocalRedirectPolicy {
            id: ServiceName::new(&meta.namespace, &meta.name),
            uid: meta.uid.clone(),
            created: meta.creation_timestamp,
            frontend,
            backend_selector: selector(&backend.local_endpoint_selector)?,
            backend_ports,
            skip_redirect_from_backend: spec.skip_redirect_from_backend,
        })
    }

    /// Returns the service that has the pods as its backends.
    pub fn service_name(&self) -> ServiceName {
        ServiceName::new(self.id.namespace(), &format!("{}{SUFFIX}", self.id.name()))
    }

    /// Returns the kind of its frontend, by the number of ports.
    pub fn kind(&self) -> Kind {
        match &self.frontend {
            Matched::Address(_, ports) if ports.len() > 1 => Kind::AddressNamed,
            Matched::Address(..) => Kind::AddressSingle,
            Matched::Service(_, ports) => match ports.len() {
                0 => Kind::ServiceAll,
                1 => Kind::ServiceSingle,
                _ => Kind::ServiceNamed,
            },
        }
    }

    /// Whether it selects pods of its namespace with these labels.
    pub(crate) fn selects(&self, labels: &LabelArray) -> bool {
        self.backend_selector.matches(labels)
    }

    /// Returns the frontends that it creates.
    pub(crate) fn frontends(&self) -> Vec<FrontendParams> {
        let Matched::Address(ip, ports) = &self.frontend else { return Vec::new() };
        let params = |port: &Port| FrontendParams {
            address: LbAddress::new(*ip, port.port, port.protocol),
            kind: FrontendType::LocalRedirect,
            // A single port is redirected to the pods' ports regardless of names.
            port_name: if ports.len() > 1 { port.name.as_str().into() } else { "".into() },
            service_port: port.port,
        };
        let mut seen = BTreeSet::new();
        ports.iter().map(params).filter(|params| seen.insert(params.address)).collect()
    }

    /// Whether it redirects this frontend of the service that it names.
    pub(crate) fn redirects(&self, frontend: &FrontendParams) -> bool {
        let Matched::Service(_, ports) = &self.frontend else { return false };
        let address = frontend.address;
        let of_frontend = |port: &Port| port.port == address.port && port.protocol == address.protocol;
        frontend.kind == FrontendType::ClusterIP
            && (ports.is_empty() || ports.iter().any(of_frontend))
            && (self.backend_ports.len() <= 1
                || self.backend_ports.iter().any(|port| *port.name == *frontend.port_name))
    }

    /// Whether it redirects to a pod's port of this address, protocol and name.
    pub(crate) fn leads_to(&self, address: &LbAddress, name: &str) -> bool {
        let by_name = matches!(self.kind(), Kind::ServiceNamed | Kind::AddressNamed);
        let named = |port: &Port| !port.name.is_empty() && port.name == name.to_lowercase();
        self.backend_ports.iter().any(|port| port.port == address.port && port.protocol == address.protocol)
            && (!by_name || self.backend_ports.iter().any(named))
    }
}

impl Matched {
    fn ports(&self) -> &[Port] {
        match self {
            Matched::Address(_, ports) | Matched::Service(_, ports) => ports,
        }
    }

    /// Formats `IP:PORT/PROTOCOL` of each port. A service's address is not known here; Cilium prints the same
    /// placeholder.
    fn texts(&self) -> Vec<String> {
        let text = |port: &Port| match self {
            Matched::Address(ip, _) => LbAddress::new(*ip, port.port, port.protocol).to_string(),
            Matched::Service(..) => format!("invalid IP:{}/{}", port.port, port.protocol),
        };
        self.ports().iter().map(text).collect()
    }
}

const FRONTEND: &str = "spec.redirectFrontend";
const BACKEND: &str = "spec.redirectBackend";

fn ports(of: &str, ports: &[PortInfo], named: bool) -> Result<Vec<Port>, Malformed> {
    let read = |(index, info): (usize, &PortInfo)| {
        let wrong =
            |field: &str, problem: String| Malformed::new(format!("{of}.toPorts[{index}].{field}"), problem);
        let port = match info.port.parse::<u16>() {
            Ok(port) if port != 0 => port,
            _ => return Err(wrong("port", format!("'{}' is no port; give 1 to 65535", info.port))),
        };
        if named && !is_service_name(&info.name) {
            let problem = format!("'{}' is no service name, which each of several ports needs", info.name);
            return Err(wrong("name", problem));
        }
        let protocol = Protocol::from_name(&info.protocol.to_uppercase());
        let Some(protocol) = protocol.filter(|protocol| *protocol != Protocol::Any) else {
            return Err(wrong("protocol", format!("'{}' is unknown; give TCP or UDP", info.protocol)));
        };
        Ok(Port { port, protocol, name: info.name.to_lowercase().into() })
    };
    ports.iter().enumerate().map(read).collect()
}

/// Checks the syntax of RFC 6335, section 5.1.
fn is_service_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && name.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

fn selector(selector: &LabelSelector) -> Result<Selector, Malformed> {
    let mut requirements: Vec<Requirement> = Vec::new();
    for (key, value) in selector.match_labels.iter() {
        requirements.push(Requirement::equals(K8S, key, value));
    }
    requirements.sort();
    for (index, expression) in selector.match_expressions.iter().enumerate() {
        let values: Vec<String> = expression.values.iter().map(|value| value.to_string()).collect();
        let test = Test::from_operator(&expression.operator, values).map_err(|error| {
            let member = if error == OperatorError::UnknownOperator { "operator" } else { "values" };
            let field = format!("{BACKEND}.localEndpointSelector.matchExpressions[{index}].{member}");
            Malformed::new(field, format!("'{}' {error}", expression.operator))
        })?;
        requirements.push(Requirement { source: K8S.to_owned(), key: expression.key.to_string(), test });
    }
    Ok(Selector::Labels(requirements))
}

const BY_SERVICE: Index<LocalRedirectPolicy, str> = Index::new("service", |policy, keys| {
    if let Matched::Service(service, _) = &policy.frontend {
        keys.add(service.as_str());
    }
});

const BY_ADDRESS: Index<LocalRedirectPolicy, LbAddress> = Index::new("address", |policy, keys| {
    policy.frontends().iter().for_each(|frontend| keys.add(&frontend.address));
});

impl Serialize for LocalRedirectPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Shown<'p> {
            #[serde(rename = "ID")]
            id: &'p ServiceName,
            #[serde(rename = "UID")]
            uid: &'p str,
            #[serde(rename = "LRPType")]
            matcher: &'static str,
            frontend_type: &'static str,
            frontend_mappings: Vec<String>,
            #[serde(rename = "ServiceID")]
            service: Option<&'p ServiceName>,
            backend_selector: String,
            backend_ports: Vec<String>,
            skip_redirect_from_backend: bool,
        }
        let backend_port = |port: &Port| match port.name.is_empty() {
            true => format!("{}/{}", port.port, port.protocol),
            false => format!("{}/{} ({})", port.port, port.protocol, port.name),
        };
        let shown = Shown {
            id: &self.id,
            uid: &self.uid,
            matcher: self.frontend.name(),
            frontend_type: self.kind().name(),
            frontend_mappings: self.frontend.texts(),
            service: self.frontend.service(),
            backend_selector: self.backend_selector.key(),
            backend_ports: self.backend_ports.iter().map(backend_port).collect(),
            skip_redirect_from_backend: self.skip_redirect_from_backend,
        };
        shown.serialize(serializer)
    }
}

impl Matched {
    /// Returns the name in the table.
    fn name(&self) -> &'static str {
        match self {
            Matched::Address(..) => "address",
            Matched::Service(..) => "service",
        }
    }

    /// Returns the service whose traffic is redirected.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Matched::Address(..) => None,
            Matched::Service(service, _) => Some(service),
        }
    }
}

impl TableSpec for LocalRedirectPolicy {
    const NAME: &'static str = "localredirectpolicies";
    const PRIMARY: &'static str = "id";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        self.id.as_str()
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_SERVICE.def(), BY_ADDRESS.def()]
    }
}

impl TableDisplay for LocalRedirectPolicy {
    fn columns() -> &'static [&'static str] {
        &["Name", "Type", "Service", "FrontendType", "Frontends", "BackendSelector"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.frontend.name().to_owned(),
            self.frontend.service().map(ToString::to_string).unwrap_or_default(),
            self.kind().name().to_owned(),
            self.frontend.texts().join(", "),
            self.backend_selector.key(),
        ]
    }
}

//! From objects to resources: a pure function of the object, the settings and the types of messages.
//!
//! An object with one bad resource is refused as a whole: of resources that refer to each other none is applied alone.

mod fields;
mod inject;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use envoy_api::reflect::{DynamicMessage, ReflectMessage as _};
use envoy_api::{InvalidJson, Message as _, Types};
use envoy_proxy::{Kind, Value};
use k8s_types::ObjectMeta;
use k8s_types::cilium::EnvoyConfigSpec;
use k8s_types::selector::LabelRequirements;
use loadbalancer::ServiceName;
use serde_json::Value as Json;

use crate::error::Invalid;
use fields::{child, set_text, text};
use inject::Metadata;
use names::Origin;

const DEFAULT_NAMESPACE: &str = "default";
const IS_L7LB: &str = "cec.cilium.io/is-l7lb";
const INJECT_FILTERS: &str = "cec.cilium.io/inject-cilium-filters";
const ORIGINAL_SOURCE: &str = "cec.cilium.io/use-original-source-address";
/// The owners for which Envoy connects to servers with an address of its own.
const OWNERS_WITHOUT_SOURCE: [&str; 2] = ["Ingress", "Gateway"];
/// The types of resources, by the field that has their name.
const TYPES: [(&str, Kind, &str); 5] = [
    ("envoy.config.listener.v3.Listener", Kind::Listeners, "name"),
    ("envoy.config.route.v3.RouteConfiguration", Kind::Routes, "name"),
    ("envoy.config.cluster.v3.Cluster", Kind::Clusters, "name"),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", Kind::Endpoints, "cluster_name"),
    ("envoy.extensions.transport_sockets.tls.v3.Secret", Kind::Secrets, "name"),
];

/// The properties of this agent that resources are completed with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// The loopback addresses of the enabled families.
    pub(crate) addresses: Vec<&'static str>,
    pub(crate) bpf_root: String,
    /// Programs assign packets to sockets: not to one of a group with SO_REUSEPORT, which kernels before 6.6 refuse.
    pub(crate) bpf_tproxy: bool,
    /// The socket for logged requests; empty without.
    pub(crate) access_log: String,
    pub(crate) denied_403_body: String,
    /// The time in seconds for which closed connections to servers linger, for listeners of HTTP.
    pub(crate) linger: Option<u32>,
    /// The addresses from which Envoy connects to backends of redirected services, unless it uses those of clients.
    pub(crate) ingress: IngressAddresses,
}

/// The node's ingress addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IngressAddresses {
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
}

impl IngressAddresses {
    fn any(self) -> bool {
        self.ipv4.is_some() || self.ipv6.is_some()
    }
}

/// An object with its resources.
#[derive(Debug, Clone)]
pub(crate) struct Parsed {
    /// The nodes that it is for; all without a selector.
    pub(crate) selector: Option<LabelRequirements>,
    pub(crate) services: Vec<RedirectedService>,
    /// The services with backends that Envoy gets, with the ports of these; without any, all.
    pub(crate) backends: BTreeMap<ServiceName, BTreeSet<String>>,
    pub(crate) listeners: BTreeMap<Arc<str>, Listener>,
    /// The other resources, encoded.
    pub(crate) others: BTreeMap<(Kind, Arc<str>), Value>,
}

/// A service that is redirected to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectedService {
    pub(crate) service: ServiceName,
    /// The listener's qualified name; the first one of the object if it is missing.
    pub(crate) listener: Option<Arc<str>>,
    /// The ports; empty for all.
    pub(crate) ports: Vec<u16>,
}

/// A listener that gets its port later.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    message: DynamicMessage,
    /// The port of the address that the object has; `None` if the agent allocates one.
    pub(crate) fixed_port: Option<u16>,
    /// Whether the address is one that redirects can lead to.
    pub(crate) is_reachable: bool,
    metadata: Option<Metadata>,
}

/// The object, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'o> {
    pub(crate) meta: &'o ObjectMeta,
    pub(crate) spec: &'o EnvoyConfigSpec,
}

/// Returns the object's resources, or all faults of it.
pub(crate) fn parse(object: Object<'_>, settings: &Settings, types: &Types) -> Result<Parsed, Vec<Invalid>> {
    let Object { meta, spec } = object;
    let origin = Origin { namespace: &meta.namespace, name: &meta.name };
    let mut faults = Vec::new();
    let options = Options::of(meta, !spec.services.is_empty(), &mut faults);
    let selector = spec.node_selector.as_ref().map(LabelRequirements::try_from).transpose();
    let selector = selector.unwrap_or_else(|error| {
        faults.push(Invalid::new("spec.nodeSelector", error.to_string()));
        None
    });
    let mut parsed = Parsed {
        selector,
        services: Vec::new(),
        backends: BTreeMap::new(),
        listeners: BTreeMap::new(),
        others: BTreeMap::new(),
    };
    for (index, json) in spec.resources.iter().enumerate() {
        let path = format!("spec.resources[{index}]");
        if let Err(fault) = resource(&mut parsed, json, &path, origin, options, settings, types) {
            faults.push(fault);
        }
    }
    // Without all of its resources a service's listener would seem to be missing.
    if faults.is_empty() {
        services(&mut parsed, spec, origin, &mut faults);
    }
    if faults.is_empty() { Ok(parsed) } else { Err(faults) }
}

fn services(parsed: &mut Parsed, spec: &EnvoyConfigSpec, origin: Origin<'_>, faults: &mut Vec<Invalid>) {
    // Services of a namespaced object are of its namespace; those with backends only may be of any.
    let of_own = |given: &str| match (origin.namespace, given) {
        ("", "") => DEFAULT_NAMESPACE.to_owned(),
        ("", given) => given.to_owned(),
        (own, _) => own.to_owned(),
    };
    let of_any = |given: &str| match (given, origin.namespace) {
        ("", "") => DEFAULT_NAMESPACE.to_owned(),
        ("", own) => own.to_owned(),
        (given, _) => given.to_owned(),
    };
    for (index, service) in spec.services.iter().enumerate() {
        let path = format!("spec.services[{index}]");
        if !service.namespace.is_empty() && service.namespace != of_own(&service.namespace) {
            let problem = format!(
                "{:?} is another namespace than that of the object: leave it out, or use a \
                 CiliumClusterwideEnvoyConfig",
                service.namespace
            );
            faults.push(Invalid::new(format!("{path}.namespace"), problem));
        }
        let listener = (!service.listener.is_empty()).then(|| Arc::from(origin.own(&service.listener)));
        if let Some(name) = &listener
            && !parsed.listeners.contains_key(name)
        {
            let problem = format!("{:?} is no listener of spec.resources", service.listener);
            faults.push(Invalid::new(format!("{path}.listener"), problem));
        } else if parsed.target(listener.as_ref()).is_none() {
            let problem = "no listener of spec.resources has an IP socket address or none: add one";
            faults.push(Invalid::new(path, problem));
        }
        let name = ServiceName::new(&of_own(&service.namespace), &service.name);
        parsed.backends.entry(name.clone()).or_default();
        parsed.services.push(RedirectedService { service: name, listener, ports: service.ports.clone() });
    }
    for backend in &spec.backend_services {
        let name = ServiceName::new(&of_any(&backend.namespace), &backend.name);
        let is_new = !parsed.backends.contains_key(&name);
        let ports = parsed.backends.entry(name).or_default();
        // A service of which all ports are wanted already stays such a one.
        if is_new || !ports.is_empty() {
            match backend.ports.is_empty() {
                true => ports.clear(),
                false => ports.extend(backend.ports.iter().map(ToString::to_string)),
            }
        }
    }
}

fn resource(
    parsed: &mut Parsed,
    json: &Json,
    path: &str,
    origin: Origin<'_>,
    options: Options,
    settings: &Settings,
    types: &Types,
) -> Result<(), Invalid> {
    let at = |field: &str| format!("{path}.{field}");
    let mut message = types.parse(json).map_err(|InvalidJson { path: field, problem }| {
        let path = if field == "resource" { path.to_owned() } else { at(&field) };
        Invalid::new(path, problem)
    })?;
    let kind = message.descriptor().full_name().to_owned();
    let Some((_, kind, field)) = TYPES.into_iter().find(|(name, ..)| *name == kind) else {
        let known: Vec<&str> = TYPES.iter().map(|(name, ..)| *name).collect();
        let problem = format!("{kind} is no resource of xDS here: use one of {}", known.join(", "));
        return Err(Invalid::new(at("@type"), problem));
    };
    let given = text(&message, field);
    if given.is_empty() {
        return Err(Invalid::new(at(field), "is missing: resources are known by their names"));
    }
    let name: Arc<str> = match kind {
        Kind::Listeners | Kind::Routes => origin.own(&given).into(),
        _ => origin.shared(&given).into(),
    };
    set_text(&mut message, field, &*name);
    inject::complete(types, &mut message, origin);
    let twice =
        || Invalid::new(at(field), format!("{given:?} is the name of another resource of the object"));
    match kind {
        Kind::Listeners => {
            let listener = listener(types, message, options, settings);
            if parsed.listeners.insert(name, listener).is_some() {
                return Err(twice());
            }
            return Ok(());
        }
        Kind::Clusters => inject::cluster(types, &mut message, settings, options.inject),
        _ => {}
    }
    match parsed.others.insert((kind, name), message.encode_to_vec().into()) {
        Some(_) => Err(twice()),
        None => Ok(()),
    }
}

fn listener(types: &Types, mut message: DynamicMessage, options: Options, settings: &Settings) -> Listener {
    let has_address = message.has_field_by_name("address");
    let is_internal = message.has_field_by_name("internal_listener");
    let socket = child(&message, "address").and_then(|address| child(&address, "socket_address"));
    let port = socket.and_then(|socket| socket.get_field_by_name("port_value")?.as_u32());
    let fixed_port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let is_without = !has_address && !is_internal;
    let is_http = inject::filters(types, &mut message, settings, is_without || options.inject);
    let Options { is_l7lb, use_original_source, .. } = options;
    let metadata = (!is_internal && (is_without || options.inject)).then_some(Metadata {
        is_l7lb,
        use_original_source,
        is_http,
    });
    Listener { message, fixed_port, is_reachable: is_without || fixed_port.is_some(), metadata }
}

impl Listener {
    /// Whether the agent gives it a port.
    pub(crate) fn needs_port(&self) -> bool {
        self.is_reachable && self.fixed_port.is_none()
    }

    /// Returns the listener, encoded, with its port.
    pub(crate) fn encode(&self, port: Option<u16>, settings: &Settings, types: &Types) -> Value {
        let mut message = self.message.clone();
        if let Some(port) = port.filter(|_| self.fixed_port.is_none()) {
            inject::address(types, &mut message, &settings.addresses, port);
        }
        if settings.bpf_tproxy && self.is_reachable {
            inject::single_socket(&mut message);
        }
        if let Some(metadata) = self.metadata {
            let port = port.or(self.fixed_port).unwrap_or_default();
            inject::metadata(types, &mut message, settings, port, metadata);
        }
        message.encode_to_vec().into()
    }
}

impl Parsed {
    /// Returns the listener that a service is redirected to: the named one, or the first one by name.
    pub(crate) fn target(&self, listener: Option<&Arc<str>>) -> Option<&Arc<str>> {
        let found = match listener {
            Some(name) => self.listeners.get_key_value(name),
            None => self.listeners.iter().find(|(_, listener)| listener.is_reachable),
        };
        found.filter(|(_, listener)| listener.is_reachable).map(|(name, _)| name)
    }
}

/// The annotations of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Options {
    is_l7lb: bool,
    inject: bool,
    use_original_source: bool,
}

impl Options {
    fn of(meta: &ObjectMeta, has_services: bool, faults: &mut Vec<Invalid>) -> Options {
        let mut flag =
            |name: &str, default: bool| match meta.annotations.get(name).map(|value| value.as_str()) {
                None => default,
                Some("true" | "1" | "t" | "T" | "TRUE" | "True") => true,
                Some("false" | "0" | "f" | "F" | "FALSE" | "False") => false,
                Some(other) => {
                    let path = format!("metadata.annotations[{name}]");
                    faults.push(Invalid::new(path, format!("{other:?} is neither true nor false")));
                    default
                }
            };
        let is_owned =
            meta.owner_references.iter().any(|owner| OWNERS_WITHOUT_SOURCE.contains(&&*owner.kind));
        let by_label = meta.labels.get(ORIGINAL_SOURCE).is_none_or(|value| value != "false");
        Options {
            is_l7lb: flag(IS_L7LB, has_services),
            inject: flag(INJECT_FILTERS, has_services),
            use_original_source: !is_owned && flag(ORIGINAL_SOURCE, by_label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_types::cilium::CiliumEnvoyConfig;

    #[test]
    fn listeners_to_which_programs_assign_packets_have_one_socket() {
        let object = serde_json::json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumEnvoyConfig",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"resources": [
                {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "c", "enableReusePort": true},
            ]},
        });
        let object: CiliumEnvoyConfig = serde_json::from_value(object).unwrap();
        let types = Types::load().unwrap();
        for (bpf_tproxy, expected) in [(true, Some(false)), (false, Some(true))] {
            let settings = Settings { addresses: vec!["::1"], bpf_tproxy, ..Settings::default() };
            let parsed =
                parse(Object { meta: &object.metadata, spec: &object.spec }, &settings, &types).unwrap();
            let listener = parsed.listeners.values().next().unwrap().encode(Some(7), &settings, &types);
            let listener = envoy_api::listener::Listener::decode(&*listener).unwrap();
            assert_eq!(listener.enable_reuse_port, expected, "the object has another value");
        }
    }
}

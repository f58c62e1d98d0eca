//! The address request of a service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_types::{SmolStr, StringMap};

use crate::objects::LbService;
use crate::range::Family;

const IPS: [&str; 2] = ["lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"];
const SHARING_KEY: [&str; 2] = ["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"];
const SHARING_CROSS_NAMESPACE: [&str; 2] =
    ["lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"];

/// The value of `sharing-cross-namespace` for all namespaces.
const ALL_NAMESPACES: &str = "*";

/// The addresses that a service requests, and what decides who may share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) namespace: SmolStr,
    name: SmolStr,
    labels: StringMap,
    /// The time of creation, in seconds.
    pub(crate) created: i64,
    pub(crate) families: BTreeSet<Family>,
    /// The addresses to get; any if there are none.
    pub(crate) ips: Vec<IpAddr>,
    /// Requested addresses that cannot be read.
    pub(crate) invalid: Vec<String>,
    /// Services with the same key may share an address; empty for none.
    pub(crate) sharing_key: SmolStr,
    /// Namespaces of other services that may share its addresses.
    shared_namespaces: BTreeSet<SmolStr>,
    ports: BTreeSet<(u16, SmolStr)>,
    /// The selector of its pods, with `externalTrafficPolicy: Local`.
    local_selector: Option<StringMap>,
}

impl Request {
    /// Reads a service, with the families that are enabled.
    pub(crate) fn of(service: &LbService, enabled: &[Family]) -> Request {
        let LbService { metadata, spec, .. } = service;
        let annotation = |[key, alias]: [&str; 2]| service.annotation(key, alias).unwrap_or_default();
        let requested = [spec.load_balancer_ip.as_str()].into_iter().chain(annotation(IPS).split(','));
        let (mut ips, mut invalid) = (Vec::new(), Vec::new());
        for text in requested.map(str::trim).filter(|text| !text.is_empty()) {
            match text.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
                Ok(ip) if ips.contains(&ip) => {}
                Ok(ip) => ips.push(ip),
                Err(_) => invalid.push(text.to_owned()),
            }
        }
        let namespaces = annotation(SHARING_CROSS_NAMESPACE).split(',').map(str::trim);
        let port = |(number, protocol): (u16, &SmolStr)| {
            (number, if protocol.is_empty() { "TCP".into() } else { protocol.clone() })
        };
        Request {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            labels: metadata.labels.clone(),
            created: metadata.creation_timestamp.map_or(0, |time| time.seconds()),
            families: families(service, enabled),
            ips,
            invalid,
            sharing_key: annotation(SHARING_KEY).into(),
            shared_namespaces: namespaces.filter(|name| !name.is_empty()).map(SmolStr::new).collect(),
            ports: spec.ports.iter().map(|of| port((of.port, &of.protocol))).collect(),
            local_selector: (spec.external_traffic_policy == "Local").then(|| spec.selector.clone()),
        }
    }

    /// Returns a label of the service, among them those of its name.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        match key {
            "io.kubernetes.service.name" => Some(&self.name),
            "io.kubernetes.service.namespace" => Some(&self.namespace),
            _ => self.labels.get(key).map(SmolStr::as_str),
        }
    }

    /// Whether it asks for this address, or for any.
    pub(crate) fn accepts(&self, ip: IpAddr) -> bool {
        self.families.contains(&Family::of(ip)) && (self.ips.is_empty() || self.ips.contains(&ip))
    }

    /// Returns why two services cannot share an address, if they cannot.
    pub(crate) fn conflict(&self, other: &Request) -> Option<Conflict> {
        if self.sharing_key.is_empty() || other.sharing_key.is_empty() {
            return Some(Conflict::NotShared);
        }
        if self.sharing_key != other.sharing_key {
            return Some(Conflict::Incompatible("different sharing key"));
        }
        if self.namespace != other.namespace && !(self.allows(other) && other.allows(self)) {
            return Some(Conflict::Incompatible("sharing across namespaces is not allowed by both"));
        }
        if !self.ports.is_disjoint(&other.ports) {
            return Some(Conflict::Incompatible("same port and protocol"));
        }
        match (&self.local_selector, &other.local_selector) {
            (None, None) => None,
            (Some(own), Some(others)) if own == others => None,
            (Some(_), Some(_)) => {
                Some(Conflict::Incompatible("externalTrafficPolicy Local with different selectors"))
            }
            _ => Some(Conflict::Incompatible("different externalTrafficPolicy")),
        }
    }

    fn allows(&self, other: &Request) -> bool {
        self.shared_namespaces.contains(ALL_NAMESPACES) || self.shared_namespaces.contains(&other.namespace)
    }
}

/// Why two services cannot share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// One of them shares no address.
    NotShared,
    /// Both share addresses, but not with each other.
    Incompatible(&'static str),
}

/// Returns the families by the policy of the service; the API server has listed them already.
pub(crate) fn families(service: &LbService, enabled: &[Family]) -> BTreeSet<Family> {
    let spec = &service.spec;
    let listed: Vec<Family> = spec.ip_families.iter().filter_map(|name| Family::named(name)).collect();
    match spec.ip_family_policy.as_str() {
        "RequireDualStack" => enabled.iter().copied().collect(),
        "PreferDualStack" if listed.is_empty() => enabled.iter().copied().collect(),
        "PreferDualStack" => listed.into_iter().filter(|family| enabled.contains(family)).collect(),
        _ if listed.is_empty() => enabled.first().copied().into_iter().collect(),
        _ => listed.into_iter().take(1).filter(|family| enabled.contains(family)).collect(),
    }
}

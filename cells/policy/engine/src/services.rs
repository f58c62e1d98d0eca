//! Services as peers (`toServices`): entries are translated into selectors of pods, or into prefixes of backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use labels::{K8S, LabelArray, POD_NAMESPACE, POLICY_CLUSTER};

use crate::model::{Entry, Peers, Policy, World};
use crate::selector::{CidrSelector, Requirement, Selector};
use crate::settings::Settings;

/// A selector of services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSelector {
    /// The namespace; empty for services of every namespace.
    pub namespace: Arc<str>,
    /// The services of that namespace.
    pub services: ServiceMatch,
}

/// The services of a namespace that a [`ServiceSelector`] selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceMatch {
    /// That of this name.
    Name(Arc<str>),
    /// Those with these labels.
    Labels(Selector),
}

/// A service as policies see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePeers {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: LabelArray,
    /// The labels of its pods; empty if its backends are not selected by labels.
    pub selector: BTreeMap<String, String>,
    /// The addresses of its backends.
    pub backends: BTreeSet<IpAddr>,
}

impl ServiceSelector {
    /// Whether the service is selected.
    pub fn selects(&self, service: &ServicePeers) -> bool {
        (self.namespace.is_empty() || self.namespace == service.namespace)
            && match &self.services {
                ServiceMatch::Name(name) => *name == service.name,
                ServiceMatch::Labels(selector) => selector.matches(&service.labels),
            }
    }
}

impl ServicePeers {
    /// Returns the selectors of its backends: pods by their labels if it selects them so, otherwise each address.
    fn peers(&self, settings: &Settings) -> Vec<Selector> {
        if self.selector.is_empty() {
            let by_address = |ip: &IpAddr| {
                let world = World::of(*ip, settings.ipv4, settings.ipv6);
                let prefix = IpNetwork::from(*ip);
                Selector::Cidr(CidrSelector { prefix, except: [].into(), world, bare: false })
            };
            return self.backends.iter().map(by_address).collect();
        }
        let mut labels = self.selector.clone();
        labels.insert(POD_NAMESPACE.to_owned(), self.namespace.to_string());
        if settings.default_local_cluster {
            labels.entry(POLICY_CLUSTER.to_owned()).or_insert_with(|| settings.cluster.to_string());
        }
        let requirement = |(key, value): (&String, &String)| Requirement::equals(K8S, key, value);
        vec![Selector::Labels(labels.iter().map(requirement).collect())]
    }
}

impl Policy {
    /// Returns the selectors of services in its entries.
    pub fn services(&self) -> impl Iterator<Item = &ServiceSelector> {
        self.entries.iter().flat_map(|entry| &entry.services)
    }

    /// Returns the policy with its selectors of services translated: their peers are those of the selected services,
    /// none if no service is selected.
    #[must_use]
    pub fn with_services<'a>(
        mut self,
        services: impl Iterator<Item = &'a ServicePeers> + Clone,
        settings: &Settings,
    ) -> Policy {
        for entry in self.entries.iter_mut().filter(|entry| !entry.services.is_empty()) {
            let selected = services.clone().filter(|service| entry.selects(service));
            let peers: BTreeSet<Selector> = selected.flat_map(|service| service.peers(settings)).collect();
            entry.peers = match peers.is_empty() {
                true => Peers::Nothing,
                false => Peers::Of(peers.into_iter().collect()),
            };
        }
        self
    }
}

impl Entry {
    fn selects(&self, service: &ServicePeers) -> bool {
        self.services.iter().any(|selector| selector.selects(service))
    }
}

//! The services that require a server, and where, by their frontends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use loadbalancer::{Frontend, FrontendType, LbAddress, Scope, ServiceName, TrafficPolicy};
use reconciler::StatusKind;

/// The server that a service requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The port of health checks.
    pub(crate) port: u16,
    /// The load balancers' addresses.
    pub(crate) load_balancers: BTreeSet<IpAddr>,
    /// Whether all its frontends have been reconciled once: ours must get later ids.
    pub(crate) settled: bool,
    frontends: Vec<LbAddress>,
}

/// Returns the server that a service with these frontends requires; `None` if it requires none.
pub(crate) fn of<'f>(frontends: impl Iterator<Item = &'f Frontend>) -> Option<Wanted> {
    let mut wanted: Option<Wanted> = None;
    for frontend in frontends {
        let service = &frontend.service;
        let address = frontend.address();
        let kind = frontend.params.kind;
        let asks = service.health_check_node_port > 0 && service.ext_traffic_policy == TrafficPolicy::Local;
        let may = matches!(kind, FrontendType::LoadBalancer | FrontendType::NodePort);
        if !asks || !may || address.scope != Scope::External {
            continue;
        }
        let wanted = wanted.get_or_insert_with(|| Wanted {
            port: service.health_check_node_port,
            load_balancers: BTreeSet::new(),
            settled: true,
            frontends: Vec::new(),
        });
        if kind == FrontendType::LoadBalancer {
            wanted.load_balancers.insert(address.ip);
        }
        wanted.settled &= frontend.id != 0 || frontend.status.kind() != StatusKind::Pending;
        wanted.frontends.push(address);
    }
    wanted
}

/// The health check servers that services require, and the service that holds each port.
#[derive(Debug, Default)]
pub(crate) struct All {
    services: BTreeMap<ServiceName, Wanted>,
    /// The service of each frontend: a frontend that moves is reported as a change of the new service alone.
    of_address: HashMap<LbAddress, ServiceName>,
}

impl All {
    /// Iterates over the services affected by a change of a frontend.
    pub(crate) fn concerned(&self, frontend: &Frontend) -> impl Iterator<Item = ServiceName> {
        let service = &frontend.service;
        let its = service.health_check_node_port > 0 || self.services.contains_key(&service.name);
        let before = self.of_address.get(&frontend.address()).cloned();
        its.then(|| service.name.clone()).into_iter().chain(before)
    }

    pub(crate) fn get(&self, name: &ServiceName) -> Option<&Wanted> {
        self.services.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// Stores the requirement of a service; true if it has changed.
    pub(crate) fn set(&mut self, name: &ServiceName, wanted: Option<Wanted>) -> bool {
        let before = match &wanted {
            Some(wanted) => self.services.insert(name.clone(), wanted.clone()),
            None => self.services.remove(name),
        };
        let changed = before != wanted;
        for address in before.into_iter().flat_map(|before| before.frontends) {
            if self.of_address.get(&address) == Some(name) {
                self.of_address.remove(&address);
            }
        }
        for address in wanted.into_iter().flat_map(|wanted| wanted.frontends) {
            self.of_address.insert(address, name.clone());
        }
        changed
    }

    /// Assigns ports: to the present owner, else to the first service by name. Also returns the services that did not
    /// get theirs.
    pub(crate) fn ports(
        &self,
        has: impl Fn(u16) -> Option<ServiceName>,
    ) -> (BTreeMap<u16, ServiceName>, Vec<Taken>) {
        let mut owners: BTreeMap<u16, ServiceName> = BTreeMap::new();
        let mut taken = Vec::new();
        let is_owner = |(name, wanted): &(&ServiceName, &Wanted)| has(wanted.port).as_ref() == Some(*name);
        let (first, rest): (Vec<_>, Vec<_>) = self.services.iter().partition(is_owner);
        for (name, wanted) in first.into_iter().chain(rest) {
            match owners.get(&wanted.port) {
                None => drop(owners.insert(wanted.port, name.clone())),
                Some(owner) => {
                    taken.push(Taken { port: wanted.port, owner: owner.clone(), service: name.clone() });
                }
            }
        }
        (owners, taken)
    }
}

/// A port that a service requires and another one owns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) port: u16,
    pub(crate) owner: ServiceName,
    pub(crate) service: ServiceName,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { port, owner, service } = self;
        write!(f, "healthCheckNodePort {port} of service {service} is {owner}'s; give one of them another")
    }
}

//! The services `<name>:healthserver`: from a load balancer's address to the server of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::NodeAddress;
use loadbalancer::{
    Backend, FrontendParams, FrontendType, LbAddress, Protocol, Refused, Service, ServiceName, ServicesTxn,
    ServicesWriter, Source, TrafficPolicy,
};
use statedb::Table;

use crate::wanted::Wanted;

/// Maintains the redirecting services.
pub(crate) struct Redirects {
    writer: ServicesWriter,
    addresses: Option<Table<NodeAddress>>,
    /// Refused services; they are retried with the next change.
    refused: BTreeMap<ServiceName, Refused>,
    /// The written services.
    written: BTreeSet<ServiceName>,
    /// The addresses of the servers, one of each family.
    node: [IpAddr; 2],
}

impl Redirects {
    pub(crate) fn new(writer: ServicesWriter, addresses: Option<Table<NodeAddress>>) -> Redirects {
        let (refused, written) = (BTreeMap::new(), BTreeSet::new());
        Redirects { writer, addresses, refused, written, node: UNSPECIFIED }
    }

    /// Reads the node's addresses; true if those of the servers have changed.
    pub(crate) fn node_moved(&mut self) -> bool {
        let before = self.node;
        if let Some(addresses) = &self.addresses {
            let snapshot = addresses.snapshot();
            let first = |is: fn(&IpAddr) -> bool| {
                addresses.all(&snapshot).find(|row| row.node_port && is(&row.addr)).map(|row| row.addr)
            };
            self.node = [
                first(IpAddr::is_ipv4).unwrap_or(UNSPECIFIED[0]),
                first(IpAddr::is_ipv6).unwrap_or(UNSPECIFIED[1]),
            ];
        }
        self.node != before
    }

    /// Iterates over services to retry.
    pub(crate) fn again(&self) -> impl Iterator<Item = &ServiceName> {
        self.refused.keys()
    }

    /// Returns failed writes with their causes.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.iter().map(|(name, error)| format!("health checks of service {name}: {error}")).collect()
    }

    /// Writes the redirecting services of these services, in one transaction.
    pub(crate) fn write<'w>(
        &mut self,
        services: impl Iterator<Item = (&'w ServiceName, Option<&'w Wanted>)>,
    ) {
        let writer = self.writer.clone();
        let mut txn = writer.write();
        for (name, wanted) in services {
            self.refused.remove(name);
            let own = name.with_suffix(":healthserver");
            let wanted = wanted.filter(|wanted| !wanted.load_balancers.is_empty());
            let Some(wanted) = wanted else {
                self.remove(&mut txn, name, &own);
                continue;
            };
            let address = |ip: IpAddr| LbAddress::new(ip, wanted.port, Protocol::Tcp);
            let frontend = |ip: &IpAddr| FrontendParams {
                address: address(*ip),
                kind: FrontendType::LoadBalancer,
                port_name: "".into(),
                service_port: wanted.port,
            };
            let frontends = wanted.load_balancers.iter().map(frontend).collect();
            let servers: BTreeSet<IpAddr> =
                wanted.load_balancers.iter().map(|ip| self.node[usize::from(ip.is_ipv6())]).collect();
            let servers = servers.into_iter().map(|ip| Backend::new(own.clone(), address(ip), Source::Local));
            let service = Service {
                ext_traffic_policy: TrafficPolicy::Local,
                int_traffic_policy: TrafficPolicy::Local,
                ..Service::new(own.clone(), Source::Local)
            };
            match txn.upsert_service(service, frontends) {
                Ok(()) => {
                    txn.set_backends(&own, Source::Local, servers.collect());
                    self.written.insert(name.clone());
                }
                Err(error) => {
                    self.remove(&mut txn, name, &own);
                    self.refused.insert(name.clone(), error);
                }
            }
        }
        txn.commit();
    }

    fn remove(&mut self, txn: &mut ServicesTxn<'_>, name: &ServiceName, own: &ServiceName) {
        if self.written.remove(name) {
            txn.delete_service(own);
            txn.set_backends(own, Source::Local, Vec::new());
        }
    }
}

const UNSPECIFIED: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

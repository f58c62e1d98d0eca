//! The writer of all sources: services with their frontends, backends, and which frontend uses which backends.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use reconciler::Status;
use statedb::{Initializer, Obj, Query, RwTable, Table, Txn, Writer};

use crate::address::LbAddress;
use crate::backend::Backend;
use crate::convert::Families;
use crate::error::Refused;
use crate::frontend::{Frontend, FrontendParams, FrontendType};
use crate::metrics::{Action, Events};
use crate::name::ServiceName;
use crate::select::select;
use crate::service::Service;
use crate::source::Source;

/// Writes services, frontends and backends for every source. Cheap to clone.
#[derive(Clone)]
pub struct ServicesWriter {
    pub(crate) services: RwTable<Service>,
    pub(crate) frontends: RwTable<Frontend>,
    pub(crate) backends: RwTable<Backend>,
    /// The name of this node, for policies that want its backends alone.
    pub(crate) node: Arc<dyn Fn() -> String + Send + Sync>,
    pub(crate) families: Families,
    pub(crate) events: Events,
}

/// A source that has yet to say what it knows; nothing in the kernel counts as stale before all have.
#[must_use = "the tables stay uninitialised until `complete` is called"]
pub struct Initializers(Initializer<Service>, Initializer<Frontend>, Initializer<Backend>);

/// All that a source knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Services, each with its frontends.
    pub services: Vec<(Service, Vec<FrontendParams>)>,
    /// Backends of these and of other services.
    pub backends: Vec<Backend>,
}

impl ServicesWriter {
    pub(crate) fn new(
        services: RwTable<Service>,
        frontends: RwTable<Frontend>,
        backends: RwTable<Backend>,
        node: impl Fn() -> String + Send + Sync + 'static,
        families: Families,
        events: Events,
    ) -> ServicesWriter {
        ServicesWriter { services, frontends, backends, node: Arc::new(node), families, events }
    }

    /// Services, for reading.
    pub fn services(&self) -> Table<Service> {
        self.services.reader()
    }

    /// Frontends, for reading.
    pub fn frontends(&self) -> Table<Frontend> {
        self.frontends.reader()
    }

    /// Backends, for reading.
    pub fn backends(&self) -> Table<Backend> {
        self.backends.reader()
    }

    /// Registers a source. Until it calls [`complete`](Self::complete) nothing is taken from the kernel as stale.
    pub fn register(&self, name: &str) -> Initializers {
        let mut txn = self.tables();
        let (s, f, b) = txn.split();
        let initializers = Initializers(
            s.register_initializer(name),
            f.register_initializer(name),
            b.register_initializer(name),
        );
        txn.commit();
        initializers
    }

    /// Says that a source has said all it knew at first.
    pub fn complete(&self, initializers: Initializers) {
        let mut txn = self.tables();
        let (s, f, b) = txn.split();
        initializers.0.done(s);
        initializers.1.done(f);
        initializers.2.done(b);
        txn.commit();
    }

    /// A transaction on services, frontends and backends. Keep it short.
    pub fn write(&self) -> ServicesTxn<'_> {
        let mut txn = self.tables();
        let revision = txn.split().1.revision();
        ServicesTxn {
            txn,
            revision,
            node: (self.node)(),
            families: self.families,
            events: &self.events,
            touched: BTreeSet::new(),
        }
    }

    /// Makes what a source says exactly this, in one transaction; gives the services that were refused, each as a
    /// whole.
    pub fn replace(&self, source: Source, state: State) -> Vec<Refused> {
        let mut txn = self.write();
        let refused = txn.replace(source, state);
        txn.commit();
        refused
    }

    /// The node has another name: which backends are its own changes.
    pub(crate) fn node_renamed(&self) {
        let mut txn = self.write();
        let names: Vec<ServiceName> = txn.txn.split().0.all().map(|service| service.name.clone()).collect();
        txn.touched.extend(names);
        txn.commit();
    }

    /// These addresses have become the node's, or are not any more: whether a frontend's address has a row for all its
    /// ports depends on it, and where ports of the node have rows.
    pub(crate) fn node_addresses_changed(&self, addresses: &BTreeSet<IpAddr>) {
        let mut txn = self.frontends.write();
        let of_node = |kind| matches!(kind, FrontendType::NodePort | FrontendType::HostPort);
        let concerned = |frontend: &Frontend| {
            let concerned = addresses.contains(&frontend.address().ip) || of_node(frontend.params.kind);
            frontend.is_reconciled() && concerned
        };
        let again: Vec<Obj<Frontend>> = txn.all().filter(|frontend| concerned(frontend)).cloned().collect();
        for frontend in again {
            txn.insert(Frontend { status: Status::pending(), ..(*frontend).clone() });
        }
        txn.commit();
    }

    /// For the reconciler, which writes the statuses.
    pub(crate) fn frontends_for_statuses(&self) -> RwTable<Frontend> {
        self.frontends.clone()
    }

    fn tables(&self) -> Tables<'_> {
        self.services.db().write((&self.services, &self.frontends, &self.backends))
    }
}

type Tables<'a> = Txn<'a, (Writer<'a, Service>, Writer<'a, Frontend>, Writer<'a, Backend>)>;

/// Changes that become visible together. Dropped without [`commit`](ServicesTxn::commit), nothing has happened.
#[must_use = "a transaction that is not committed changes nothing"]
pub struct ServicesTxn<'a> {
    txn: Tables<'a>,
    /// Of the table of frontends, before the transaction.
    revision: u64,
    node: String,
    families: Families,
    events: &'a Events,
    /// Services whose frontends choose their backends anew at the commit.
    touched: BTreeSet<ServiceName>,
}

impl ServicesTxn<'_> {
    /// Creates or replaces a service and its set of frontends. Refused as a whole if another service has one of the
    /// addresses.
    pub fn upsert_service(
        &mut self,
        service: Service,
        frontends: Vec<FrontendParams>,
    ) -> Result<(), Refused> {
        self.check(&service, &frontends, |_| false)?;
        self.put_service(service, frontends);
        Ok(())
    }

    /// Deletes a service and its frontends; its backends stay until their source removes them.
    pub fn delete_service(&mut self, name: &ServiceName) {
        let (services, frontends, _) = self.txn.split();
        let addresses: Vec<_> = frontends.list(Frontend::by_service(name)).map(|f| f.address()).collect();
        for address in addresses {
            frontends.delete(Frontend::by_address(&address));
        }
        if services.delete(Service::by_name(name)).is_some() {
            self.events.count(Action::Delete);
        }
        self.touched.remove(name);
    }

    /// Makes the backends that a source gives to a service exactly these.
    pub fn set_backends(&mut self, service: &ServiceName, source: Source, backends: Vec<Backend>) {
        let wanted: HashSet<LbAddress> = backends.iter().map(|backend| backend.address).collect();
        let (_, _, table) = self.txn.split();
        let stale: Vec<Query<Backend>> = table
            .prefix(Backend::of_service(service))
            .filter(|row| row.source == source && !wanted.contains(&row.address))
            .map(|row| Query::of(&**row))
            .collect();
        for query in stale {
            table.delete(query);
            self.touched.insert(service.clone());
        }
        for backend in backends {
            self.put_backend(backend);
        }
    }

    /// Says that a backend of a service was found healthy or not; false if the service has no such backend.
    pub fn set_health(
        &mut self,
        service: &ServiceName,
        address: &LbAddress,
        healthy: bool,
        at: SystemTime,
    ) -> bool {
        let (_, _, table) = self.txn.split();
        let rows: Vec<Obj<Backend>> = table
            .prefix(Backend::of_service(service))
            .filter(|row| row.address == *address)
            .cloned()
            .collect();
        for row in &rows {
            if row.unhealthy == healthy || row.unhealthy_updated_at.is_none() {
                let unhealthy_updated_at = Some(at);
                table.insert(Backend { unhealthy: !healthy, unhealthy_updated_at, ..(**row).clone() });
                self.touched.insert(service.clone());
            }
        }
        !rows.is_empty()
    }

    /// Makes what a source says exactly this; gives the services that were refused, each as a whole.
    pub fn replace(&mut self, source: Source, state: State) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut accepted: BTreeMap<ServiceName, (Service, Vec<FrontendParams>)> = BTreeMap::new();
        let mut claimed: HashMap<LbAddress, ServiceName> = HashMap::new();
        for (service, frontends) in state.services {
            // Among the services of the source the earlier one has the address, whoever had it before.
            let taken = frontends.iter().find_map(|frontend| {
                let owner = claimed.get(&frontend.address).filter(|owner| **owner != service.name)?;
                Some(Refused::Owned { address: frontend.address, owner: owner.clone() })
            });
            let of_source = |owner: &Service| owner.source == source;
            match taken.map_or(Ok(()), Err).and_then(|()| self.check(&service, &frontends, of_source)) {
                Err(error) => refused.push(error),
                Ok(()) => {
                    claimed.extend(frontends.iter().map(|f| (f.address, service.name.clone())));
                    accepted.insert(service.name.clone(), (service, frontends));
                }
            }
        }
        let (services, _, backends) = self.txn.split();
        let gone: Vec<ServiceName> = services
            .all()
            .filter(|service| service.source == source && !accepted.contains_key(&service.name))
            .map(|service| service.name.clone())
            .collect();
        let mut wanted: BTreeMap<ServiceName, Vec<Backend>> = BTreeMap::new();
        for row in backends.all().filter(|row| row.source == source) {
            wanted.entry(row.service_name.clone()).or_default();
        }
        for name in gone {
            self.delete_service(&name);
        }
        for (service, frontends) in accepted.into_values() {
            self.put_service(service, frontends);
        }
        for backend in state.backends {
            wanted.entry(backend.service_name.clone()).or_default().push(backend);
        }
        for (service, backends) in wanted {
            self.set_backends(&service, source, backends);
        }
        refused
    }

    /// Makes the changes visible.
    pub fn commit(mut self) {
        for name in std::mem::take(&mut self.touched) {
            self.choose(&name);
        }
        self.txn.commit();
    }

    /// Whether the service may be written; addresses of services that `yields` is true for do not count as taken.
    fn check(
        &mut self,
        service: &Service,
        wanted: &[FrontendParams],
        yields: impl Fn(&Service) -> bool,
    ) -> Result<(), Refused> {
        let (services, frontends, _) = self.txn.split();
        if let Some(existing) = services.get(Service::by_name(&service.name))
            && existing.source < service.source
        {
            return Err(Refused::Defined { name: service.name.clone(), owner: existing.source });
        }
        for FrontendParams { address, .. } in wanted {
            if let Some(existing) = frontends.get(Frontend::by_address(address))
                && existing.service.name != service.name
                && !yields(&existing.service)
            {
                let owner = existing.service.name.clone();
                return Err(Refused::Owned { address: *address, owner });
            }
        }
        Ok(())
    }

    fn put_service(&mut self, service: Service, params: Vec<FrontendParams>) {
        let name = service.name.clone();
        let (services, frontends, _) = self.txn.split();
        let changed = match services.get(Service::by_name(&name)) {
            Some(existing) if **existing == service => false,
            existing => {
                self.events.count(if existing.is_some() { Action::Update } else { Action::Add });
                services.insert(service);
                true
            }
        };
        let Some(service) = services.get(Service::by_name(&name)).cloned() else { return };
        let wanted: HashSet<LbAddress> = params.iter().map(|params| params.address).collect();
        let stale: Vec<LbAddress> = frontends
            .list(Frontend::by_service(&name))
            .map(|frontend| frontend.address())
            .filter(|address| !wanted.contains(address))
            .collect();
        for address in stale {
            frontends.delete(Frontend::by_address(&address));
        }
        let mut params = params;
        params.sort_by_key(|params| params.address.key());
        for params in params {
            let old = frontends.get(Frontend::by_address(&params.address)).cloned();
            if old.as_ref().is_some_and(|old| old.params == params && old.service.same(&service)) {
                continue;
            }
            // Rows of a frontend that changes hands stay under their number.
            let status = status(&params, self.families);
            let frontend = match old {
                Some(old) => Frontend { params, service: service.clone(), status, ..(*old).clone() },
                None => Frontend::new(params, service.clone(), status),
            };
            frontends.insert(frontend);
            self.touched.insert(name.clone());
        }
        if changed {
            self.touched.insert(name);
        }
    }

    fn put_backend(&mut self, mut backend: Backend) {
        let (_, _, table) = self.txn.split();
        if let Some(old) = table.get(Query::of(&backend)) {
            // What was found out of a backend does not come from its source.
            backend.unhealthy = old.unhealthy;
            backend.unhealthy_updated_at = old.unhealthy_updated_at;
            if **old == backend {
                return;
            }
        }
        self.touched.insert(backend.service_name.clone());
        table.insert(backend);
    }

    /// Chooses the backends of a service's frontends; those that get others are to be reconciled.
    fn choose(&mut self, name: &ServiceName) {
        let (_, frontends, backends) = self.txn.split();
        let before = self.revision;
        let of_service: Vec<Obj<Frontend>> = frontends.list(Frontend::by_service(name)).cloned().collect();
        for frontend in of_service {
            let rows = backends.prefix(Backend::of_service(name));
            let chosen = select(&frontend.params, &frontend.service, &self.node, rows);
            let same = chosen.len() == frontend.backends.len()
                && chosen.iter().zip(&*frontend.backends).all(|(a, b)| a.same(b));
            // Those that this transaction has written come once more, all in order of their addresses: so they get their
            // numbers.
            if !same || frontend.revision() > before {
                let status = status(&frontend.params, self.families);
                let backends: Arc<[Obj<Backend>]> = chosen.into();
                let health_check_backends = backends.clone();
                let frontend = (*frontend).clone();
                frontends.insert(Frontend { backends, health_check_backends, status, ..frontend });
            }
        }
    }
}

/// The status of a frontend that was just written: to be reconciled, if its family is on.
fn status(params: &FrontendParams, families: Families) -> Status {
    let error = match params.address.ip {
        ip if families.has(&ip) => return Status::pending(),
        IpAddr::V4(_) => "IPv4 is off (option enable-ipv4)",
        IpAddr::V6(_) => "IPv6 is off (option enable-ipv6)",
    };
    Status::unset(error)
}

//! The writer of all sources: services with their frontends, backends, and the selection of backends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};

use reconciler::{Status, StatusKind};
use statedb::{Initializer, Obj, RwTable, Table, Txn, Writer};

use crate::metrics::Events;
use crate::model::backend::Backend;
use crate::model::error::Refused;
use crate::model::families::Families;
use crate::model::frontend::{Frontend, FrontendParams, FrontendType};
use crate::model::service::Service;
use crate::model::source::Source;
use crate::writer::select::Place;
use crate::writer::txn::ServicesTxn;

/// Options that apply to all services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Ports reserved for NodePort services (`node-port-range`).
    pub node_port_range: RangeInclusive<u16>,
    /// Whether NodePort services have frontends at node ports (`kube-proxy-replacement`).
    pub node_ports: bool,
    /// Whether services may prefer backends of this node or its zone (`enable-service-topology`).
    pub topology: bool,
    /// Whether services may select the forwarding mode (`bpf-lb-mode-annotation`).
    pub modes: bool,
    /// Whether frontends may have backends of the other family (`bpf-lb-nat46x64`).
    pub translation: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            node_port_range: 30_000..=32_767,
            node_ports: true,
            topology: false,
            modes: false,
            translation: false,
        }
    }
}

pub(crate) type IsChecked = dyn Fn(&Service) -> bool + Send + Sync;

/// The input of the writer in addition to the tables: the node, and the health checks of services.
#[derive(Clone)]
pub(crate) struct NodeInfo {
    /// Returns the location of this node, for policies that allow only its backends.
    pub(crate) place: Arc<dyn Fn() -> Place + Send + Sync>,
    /// Returns the addresses of the node at which node ports are served.
    pub(crate) node_port_addresses: Arc<dyn Fn() -> BTreeSet<IpAddr> + Send + Sync>,
    is_checked: Arc<RwLock<Option<Arc<IsChecked>>>>,
}

impl NodeInfo {
    pub(crate) fn new(
        place: impl Fn() -> Place + Send + Sync + 'static,
        node_port_addresses: impl Fn() -> BTreeSet<IpAddr> + Send + Sync + 'static,
    ) -> NodeInfo {
        NodeInfo {
            place: Arc::new(place),
            node_port_addresses: Arc::new(node_port_addresses),
            is_checked: Arc::default(),
        }
    }

    pub(crate) fn is_checked(&self) -> Option<Arc<IsChecked>> {
        self.is_checked.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes services, frontends and backends for every source. Cheap to clone.
#[derive(Clone)]
pub struct ServicesWriter {
    pub(crate) services: RwTable<Service>,
    pub(crate) frontends: RwTable<Frontend>,
    pub(crate) backends: RwTable<Backend>,
    pub(crate) node_info: NodeInfo,
    pub(crate) families: Families,
    pub(crate) rules: Rules,
    pub(crate) events: Events,
}

/// The registration of an incomplete source; nothing in the kernel is stale before all sources are complete.
#[must_use = "the tables stay uninitialised until `complete` is called"]
pub struct Initializers(Initializer<Service>, Initializer<Frontend>, Initializer<Backend>);

/// The whole state of a source.
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
        node_info: NodeInfo,
        families: Families,
        rules: Rules,
        events: Events,
    ) -> ServicesWriter {
        ServicesWriter { services, frontends, backends, node_info, families, rules, events }
    }

    /// Returns the services, for reading.
    pub fn services(&self) -> Table<Service> {
        self.services.reader()
    }

    /// Returns the frontends, for reading.
    pub fn frontends(&self) -> Table<Frontend> {
        self.frontends.reader()
    }

    /// Returns the backends, for reading.
    pub fn backends(&self) -> Table<Backend> {
        self.backends.reader()
    }

    /// Registers a source. Until [`complete`](Self::complete) is called for it, nothing is removed from the kernel as
    /// stale.
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

    /// Marks a source as complete.
    pub fn complete(&self, initializers: Initializers) {
        let mut txn = self.tables();
        let (s, f, b) = txn.split();
        initializers.0.done(s);
        initializers.1.done(f);
        initializers.2.done(b);
        txn.commit();
    }

    /// Begins a transaction on services, frontends and backends. It blocks other writers, so keep it short.
    pub fn write(&self) -> ServicesTxn<'_> {
        ServicesTxn::new(self, self.tables())
    }

    /// Replaces the state of a source in one transaction; returns the refused services, each refused as a whole.
    pub fn replace(&self, source: Source, state: State) -> Vec<Refused> {
        let mut txn = self.write();
        let refused = txn.replace(source, state);
        txn.commit();
        refused
    }

    /// Sets the predicate of services with health checks: their backends are selected from their first [reported
    /// health](ServicesTxn::set_health) on.
    pub fn set_is_service_health_checked(&self, is: impl Fn(&Service) -> bool + Send + Sync + 'static) {
        *self.node_info.is_checked.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(is));
        self.choose_again(|_| true);
    }

    /// Repeats the selection of backends of services, because input other than the tables has changed.
    pub(crate) fn choose_again(&self, concerned: impl Fn(&Service) -> bool) {
        let mut txn = self.write();
        txn.touch_all(concerned);
        txn.commit();
    }

    /// Processes addresses that the node has gained or lost: they determine whether a frontend's address has a wildcard
    /// entry, and where node ports have entries.
    pub(crate) fn node_addresses_changed(&self, addresses: &BTreeSet<IpAddr>) {
        let mut txn = self.frontends.write();
        let of_node = |kind| matches!(kind, FrontendType::NodePort | FrontendType::HostPort);
        // Those without an id are written as well, so that ids follow the order of arrival.
        let concerned = |frontend: &&Obj<Frontend>| {
            let new = frontend.id == 0 && frontend.status.kind() == StatusKind::Pending;
            let concerned = addresses.contains(&frontend.address().ip) || of_node(frontend.params.kind);
            frontend.is_reconciled() && (concerned || new)
        };
        let mut again: Vec<Obj<Frontend>> = txn.all().filter(concerned).cloned().collect();
        again.sort_by_key(|frontend| frontend.revision());
        for frontend in again {
            txn.insert(Frontend { status: Status::pending(), ..(*frontend).clone() });
        }
        txn.commit();
    }

    /// Returns the frontends of a service that may be served: without node ports if kube-proxy serves these, and without
    /// those addresses of load balancers that are the node's own, with a port of `node-port-range`.
    pub(super) fn allowed(
        &self,
        service: &Service,
        mut frontends: Vec<FrontendParams>,
    ) -> Vec<FrontendParams> {
        if !self.rules.node_ports {
            frontends.retain(|params| params.kind != FrontendType::NodePort);
        }
        let range = &self.rules.node_port_range;
        let may = |params: &FrontendParams| {
            matches!(params.kind, FrontendType::LoadBalancer | FrontendType::ExternalIPs)
                && range.contains(&params.address.port)
        };
        if frontends.iter().any(may) {
            let addresses = (self.node_info.node_port_addresses)();
            frontends.retain(|params| {
                let shadows = may(params) && addresses.contains(&params.address.ip);
                if shadows {
                    let (service, address) = (&service.name, params.address);
                    tracing::warn!(
                        %service, %address,
                        "Ignoring an address of the node with a port of node-port-range; give another port"
                    );
                }
                !shadows
            });
        }
        frontends
    }

    /// Returns the table of frontends for the reconciler, which writes the statuses.
    pub(crate) fn frontends_for_statuses(&self) -> RwTable<Frontend> {
        self.frontends.clone()
    }

    fn tables(&self) -> Tables<'_> {
        self.services.db().write((&self.services, &self.frontends, &self.backends))
    }
}

pub(crate) type Tables<'a> = Txn<'a, (Writer<'a, Service>, Writer<'a, Frontend>, Writer<'a, Backend>)>;

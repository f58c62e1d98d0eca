//! Changes of services, frontends and backends that become visible together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use reconciler::{Status, StatusKind};
use smallvec::SmallVec;
use statedb::{Obj, Prefix, Query};

use crate::metrics::Action;
use crate::model::address::LbAddress;
use crate::model::backend::Backend;
use crate::model::error::Refused;
use crate::model::fast_map::FastMap;
use crate::model::frontend::{Frontend, FrontendParams};
use crate::model::name::ServiceName;
use crate::model::service::{ForwardingMode, ProxyRedirect, Service};
use crate::model::source::Source;
use crate::writer::select::{Place, Selected, Selector};
use crate::writer::services_writer::{IsChecked, ServicesWriter, State, Tables};

/// Changes that become visible together. Dropped without [`commit`](ServicesTxn::commit), it has no effect.
#[must_use = "a transaction that is not committed changes nothing"]
pub struct ServicesTxn<'a> {
    txn: Tables<'a>,
    place: Place,
    is_checked: Option<Arc<IsChecked>>,
    writer: &'a ServicesWriter,
    /// Services whose backends have changed: the commit repeats the selection for their users.
    touched: Touched,
}

/// Services whose backends have changed, in the order of their last changes.
#[derive(Default)]
struct Touched {
    services: FastMap<ServiceName, (Users, usize)>,
    count: usize,
}

impl Touched {
    /// Records that the selection must be repeated for all users of a service's backends.
    fn touch(&mut self, name: &ServiceName) {
        self.count += 1;
        match self.services.get_mut(name) {
            Some(known) => *known = (Users::All, self.count),
            None => _ = self.services.insert(name.clone(), (Users::All, self.count)),
        }
    }

    /// Records that the service's own frontends were written with its current backends.
    fn written(&mut self, name: &ServiceName) {
        if let Some((users, _)) = self.services.get_mut(name) {
            *users = Users::Others;
        }
    }

    fn in_order(&self) -> Vec<(&ServiceName, Users)> {
        let mut services: Vec<_> = self.services.iter().collect();
        services.sort_unstable_by_key(|(_, (_, position))| *position);
        services.into_iter().map(|(name, (users, _))| (name, *users)).collect()
    }
}

/// The frontends for which the selection must be repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Its own, and those of other services that are redirected to it.
    All,
    /// Only those of other services; its own were written since.
    Others,
}

impl<'a> ServicesTxn<'a> {
    pub(crate) fn new(writer: &'a ServicesWriter, txn: Tables<'a>) -> ServicesTxn<'a> {
        let (place, is_checked) = ((writer.node_info.place)(), writer.node_info.is_checked());
        ServicesTxn { txn, place, is_checked, writer, touched: Touched::default() }
    }

    /// Creates or replaces a service and its set of frontends. Refused as a whole if another service owns one of the
    /// addresses.
    pub fn upsert_service(
        &mut self,
        service: Service,
        frontends: Vec<FrontendParams>,
    ) -> Result<(), Refused> {
        let frontends = self.writer.allowed(&service, frontends);
        let existing = self.check(&service, &frontends, |_| false)?;
        self.put_service(existing, service, frontends);
        Ok(())
    }

    /// Creates or replaces a service with its frontends and the backends that a source has for it. Addresses of
    /// services for which `yields` is true do not count as owned: the frontends there move and keep their ids. A
    /// refused service keeps its former backends.
    pub(crate) fn upsert_service_with_backends(
        &mut self,
        service: Service,
        frontends: Vec<FrontendParams>,
        backends: Vec<Backend>,
        yields: impl Fn(&Service) -> bool,
    ) -> Result<(), Refused> {
        let frontends = self.writer.allowed(&service, frontends);
        let existing = self.check(&service, &frontends, yields)?;
        // Backends first: frontends are written with the existing ones.
        self.set_backends(&service.name, service.source, backends);
        self.put_service(existing, service, frontends);
        Ok(())
    }

    /// Returns the service of this name.
    pub fn service(&mut self, name: &ServiceName) -> Option<Obj<Service>> {
        self.txn.split().0.get(Service::by_name(name)).cloned()
    }

    /// Returns the names of the services with this prefix, in order.
    pub fn names(&mut self, start: &str) -> Vec<ServiceName> {
        let services = self.txn.split().0.prefix(Prefix::primary(start));
        services.map(|service| service.name.clone()).collect()
    }

    /// Redirects a frontend to the backends of another service, or back to those of its own service; false if there is
    /// no such frontend.
    pub fn set_redirect_to(&mut self, address: &LbAddress, to: Option<ServiceName>) -> bool {
        let (_, frontends, _) = self.txn.split();
        let Some(frontend) = frontends.get(Frontend::by_address(address)).cloned() else { return false };
        if frontend.redirect_to != to {
            let frontend = Frontend { redirect_to: to, ..(*frontend).clone() };
            self.put_frontend(frontend);
        }
        true
    }

    /// Sets the proxies for a service's connections; they are kept when its source updates it. False if there is no
    /// such service.
    pub fn set_proxy_redirects(&mut self, name: &ServiceName, redirects: Vec<ProxyRedirect>) -> bool {
        let Some(service) = self.service(name) else { return false };
        if *service.proxy_redirects == *redirects {
            return true;
        }
        let (services, frontends, _) = self.txn.split();
        services.insert(Service { proxy_redirects: redirects.into(), ..(*service).clone() });
        let Some(service) = services.get(Service::by_name(name)).cloned() else { return false };
        let of_service: Vec<Obj<Frontend>> = frontends.list(Frontend::by_service(name)).cloned().collect();
        for frontend in of_service {
            self.put_frontend(Frontend { service: service.clone(), ..(*frontend).clone() });
        }
        true
    }

    /// Repeats the selection for the users of these services' backends.
    pub(crate) fn touch_all(&mut self, concerned: impl Fn(&Service) -> bool) {
        let services = self.txn.split().0.all().filter(|service| concerned(service));
        let mut services: Vec<&Obj<Service>> = services.collect();
        services.sort_unstable_by_key(|service| service.revision());
        services.into_iter().for_each(|service| self.touched.touch(&service.name));
    }

    /// Deletes a service and its frontends; its backends stay until their source removes them.
    pub fn delete_service(&mut self, name: &ServiceName) {
        let (services, frontends, _) = self.txn.split();
        let addresses: Vec<_> = frontends.list(Frontend::by_service(name)).map(|f| f.address()).collect();
        for address in addresses {
            frontends.delete(Frontend::by_address(&address));
        }
        if services.delete(Service::by_name(name)).is_some() {
            self.writer.events.count(Action::Delete);
        }
    }

    /// Replaces the backends that a source has for a service, in all clusters.
    pub fn set_backends(&mut self, service: &ServiceName, source: Source, backends: Vec<Backend>) {
        self.replace_backends(service, source, backends, |_| true);
    }

    /// Replaces the backends that a source has for a service in one cluster, 0 for this cluster. Those of other
    /// clusters stay.
    pub fn set_backends_of_cluster(
        &mut self,
        service: &ServiceName,
        source: Source,
        cluster_id: u32,
        backends: Vec<Backend>,
    ) {
        self.replace_backends(service, source, backends, |row| row.cluster_id == cluster_id);
    }

    /// Deletes the source's backends that are `replaced` and not in the list, and writes the list.
    fn replace_backends(
        &mut self,
        service: &ServiceName,
        source: Source,
        backends: Vec<Backend>,
        replaced: impl Fn(&Backend) -> bool,
    ) {
        let (_, _, table) = self.txn.split();
        let mut stale: Vec<Obj<Backend>> = table
            .prefix(Backend::of_service(service))
            .filter(|row| row.source == source && replaced(row))
            .cloned()
            .collect();
        if !stale.is_empty() {
            let mut wanted: Vec<LbAddress> = backends.iter().map(|backend| backend.address).collect();
            wanted.sort_unstable();
            stale.retain(|row| wanted.binary_search(&row.address).is_err());
        }
        for row in stale {
            table.delete(Query::of(&*row));
            self.touched.touch(service);
        }
        for backend in backends {
            self.put_backend(backend);
        }
    }

    /// Whether there is a row of the same service, address and source.
    pub(crate) fn has_backend(&mut self, backend: &Backend) -> bool {
        self.txn.split().2.get(Query::of(backend)).is_some()
    }

    /// Deletes some of the backends that a source has for a service, and upserts others.
    pub(crate) fn change_backends(
        &mut self,
        service: &ServiceName,
        source: Source,
        gone: &[LbAddress],
        changed: Vec<Backend>,
    ) {
        let (_, _, table) = self.txn.split();
        for address in gone {
            table.delete(Query::of(&Backend::new(service.clone(), *address, source)));
            self.touched.touch(service);
        }
        changed.into_iter().for_each(|backend| self.put_backend(backend));
    }

    /// Records the result of a health check of a backend; false if the service has no such backend.
    pub fn set_health(
        &mut self,
        service: &ServiceName,
        address: &LbAddress,
        healthy: bool,
        at: SystemTime,
    ) -> bool {
        let (_, _, table) = self.txn.split();
        let rows: Vec<Obj<Backend>> =
            table.prefix(Backend::of_service_at(service, address)).cloned().collect();
        for row in &rows {
            if row.unhealthy == healthy || row.unhealthy_updated_at.is_none() {
                let unhealthy_updated_at = Some(at);
                table.insert(Backend { unhealthy: !healthy, unhealthy_updated_at, ..(**row).clone() });
                self.touched.touch(service);
            }
        }
        !rows.is_empty()
    }

    /// Replaces the whole state of a source; returns the refused services, each refused as a whole.
    pub fn replace(&mut self, source: Source, state: State) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut accepted: Vec<(Service, Vec<FrontendParams>)> = Vec::new();
        let mut claimed: HashMap<LbAddress, ServiceName> = HashMap::new();
        for (service, frontends) in state.services {
            let frontends = self.writer.allowed(&service, frontends);
            // Of several services of the source the first one gets the address, even if another one owned it before.
            let taken = frontends.iter().find_map(|frontend| {
                let owner = claimed.get(&frontend.address).filter(|owner| **owner != service.name)?;
                Some(Refused::Owned { address: frontend.address, owner: owner.clone() })
            });
            let of_source = |owner: &Service| owner.source == source;
            match taken.map_or(Ok(()), Err).and_then(|()| self.check(&service, &frontends, of_source)) {
                Err(error) => refused.push(error),
                Ok(_) => {
                    claimed.extend(frontends.iter().map(|f| (f.address, service.name.clone())));
                    accepted.push((service, frontends));
                }
            }
        }
        let kept: HashSet<ServiceName> = accepted.iter().map(|(service, _)| service.name.clone()).collect();
        let (services, _, backends) = self.txn.split();
        let gone: Vec<ServiceName> = services
            .all()
            .filter(|service| service.source == source && !kept.contains(&service.name))
            .map(|service| service.name.clone())
            .collect();
        let mut wanted: BTreeMap<ServiceName, Vec<Backend>> = BTreeMap::new();
        for row in backends.all().filter(|row| row.source == source) {
            wanted.entry(row.service_name.clone()).or_default();
        }
        for name in gone {
            self.delete_service(&name);
        }
        // Backends first: frontends are written with the existing ones.
        for backend in state.backends {
            wanted.entry(backend.service_name.clone()).or_default().push(backend);
        }
        for (service, backends) in wanted {
            self.set_backends(&service, source, backends);
        }
        for (service, frontends) in accepted {
            let existing = self.service(&service.name);
            self.put_service(existing, service, frontends);
        }
        refused
    }

    /// Publishes the changes.
    pub fn commit(mut self) {
        let touched = std::mem::take(&mut self.touched);
        let touched = touched.in_order();
        // Frontends get their ids in the order in which they are written: that of arrival.
        for (name, _) in touched.iter().filter(|(_, users)| *users == Users::All) {
            self.reselect(Frontend::by_service(name));
        }
        if !touched.is_empty() && self.txn.split().1.prefix(Frontend::redirected()).next().is_some() {
            for (name, _) in touched {
                self.reselect(Frontend::by_redirect(name));
            }
        }
        self.txn.commit();
    }

    /// Checks whether the service may be written; returns the existing one that it replaces. Addresses of services for
    /// which `yields` is true do not count as owned.
    fn check(
        &mut self,
        service: &Service,
        wanted: &[FrontendParams],
        yields: impl Fn(&Service) -> bool,
    ) -> Result<Option<Obj<Service>>, Refused> {
        let (services, frontends, _) = self.txn.split();
        let defined = services.get(Service::by_name(&service.name)).cloned();
        if let Some(existing) = defined.as_ref().filter(|existing| existing.source < service.source) {
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
        Ok(defined)
    }

    /// Writes a service that was checked, with its frontends: changed and new ones become pending, others of the service
    /// are deleted.
    fn put_service(
        &mut self,
        existing: Option<Obj<Service>>,
        mut service: Service,
        mut params: Vec<FrontendParams>,
    ) {
        let name = service.name.clone();
        if !self.writer.rules.modes {
            service.forwarding_mode = ForwardingMode::Default;
        }
        let (services, frontends, _) = self.txn.split();
        if let Some(existing) = &existing {
            // These do not come from its source, so they are kept.
            service.proxy_redirects = existing.proxy_redirects.clone();
        }
        let changed = existing.as_ref().is_none_or(|existing| **existing != service);
        params.sort_by_key(|params| params.address);
        let mut stale: Vec<LbAddress> = Vec::new();
        if existing.is_some() {
            stale.extend(frontends.list(Frontend::by_service(&name)).map(|frontend| frontend.address()));
            stale.retain(|address| params.binary_search_by_key(address, |params| params.address).is_err());
        }
        if changed {
            self.writer.events.count(if existing.is_some() { Action::Update } else { Action::Add });
            services.insert(service);
        }
        let Some(service) = services.get(Service::by_name(&name)).cloned() else { return };
        let known = params.iter().map(|params| frontends.get(Frontend::by_address(&params.address)).cloned());
        let known: SmallVec<[Option<Obj<Frontend>>; 2]> = known.collect();
        let stays = |params: &FrontendParams, old: &Option<Obj<Frontend>>| {
            old.as_ref().is_some_and(|old| old.params == *params && old.service.same(&service))
        };
        let any = params.iter().zip(&known).any(|(params, old)| !stays(params, old));
        for (params, old) in params.into_iter().zip(known) {
            if stays(&params, &old) && !(any && old.as_ref().is_some_and(|old| waits_for_id(old))) {
                continue;
            }
            // A frontend that moves to another service keeps its id and thereby its map entries.
            self.put_frontend(match old {
                Some(old) => Frontend {
                    redirect_to: old.redirect_to.clone().filter(|_| old.service.name == name),
                    params,
                    service: service.clone(),
                    ..(*old).clone()
                },
                None => Frontend::new(params, service.clone()),
            });
        }
        if changed {
            self.touched.written(&name);
        }
        // Deleted last, so that no backend is without a user in between: it keeps its id.
        for address in stale {
            self.txn.split().1.delete(Frontend::by_address(&address));
        }
    }

    /// Writes a frontend with the existing backends, to be reconciled.
    fn put_frontend(&mut self, frontend: Frontend) {
        let (_, table, backends) = self.txn.split();
        let (topology, translation) = (self.writer.rules.topology, self.writer.rules.translation);
        let is_checked = self.is_checked.as_deref();
        let selector = Selector { place: &self.place, topology, translation, is_checked };
        let Selected { backends, to_check: health_check_backends } = selector.select(&frontend, backends);
        let status = status(&frontend.params, self.writer);
        table.insert(Frontend { backends, health_check_backends, status, ..frontend });
    }

    /// Writes a backend if its row differs, and touches its service.
    fn put_backend(&mut self, mut backend: Backend) {
        let (_, _, table) = self.txn.split();
        if let Some(old) = table.get(Query::of(&backend)) {
            // The health of a backend does not come from its source, so it is kept.
            backend.unhealthy = old.unhealthy;
            backend.unhealthy_updated_at = old.unhealthy_updated_at;
            if **old == backend {
                return;
            }
        }
        self.touched.touch(&backend.service_name);
        table.insert(backend);
    }

    /// Repeats the selection of backends for frontends; those whose backends have changed become pending.
    fn reselect(&mut self, frontends: Query<Frontend>) {
        let (_, table, backends) = self.txn.split();
        let (topology, translation) = (self.writer.rules.topology, self.writer.rules.translation);
        let is_checked = self.is_checked.as_deref();
        let selector = Selector { place: &self.place, topology, translation, is_checked };
        let frontends: SmallVec<[Obj<Frontend>; 2]> = table.list(frontends).cloned().collect();
        let select = |frontend: Obj<Frontend>| {
            let selected = selector.select(&frontend, backends);
            let both = |a: &Arc<[Obj<Backend>]>, b| Arc::ptr_eq(a, b);
            let one = both(&selected.backends, &selected.to_check)
                && both(&frontend.backends, &frontend.health_check_backends);
            let changed = !same(&selected.backends, &frontend.backends)
                || !one && !same(&selected.to_check, &frontend.health_check_backends);
            (frontend, selected, changed)
        };
        let selected: SmallVec<[(Obj<Frontend>, Selected, bool); 2]> =
            frontends.into_iter().map(select).collect();
        let any = selected.iter().any(|(.., changed)| *changed);
        for (frontend, selected, changed) in selected {
            if changed || (any && waits_for_id(&frontend)) {
                let status = status(&frontend.params, self.writer);
                let Selected { backends, to_check: health_check_backends } = selected;
                table.insert(Frontend { backends, health_check_backends, status, ..(*frontend).clone() });
            }
        }
    }
}

/// Whether the frontend waits for its id. Such frontends are written again together with others of their service, all
/// in order of their addresses: thereby ids follow the order of addresses, independent of the number of transactions
/// that wrote the service.
fn waits_for_id(frontend: &Frontend) -> bool {
    frontend.id == 0 && frontend.status.kind() == StatusKind::Pending
}

fn same(a: &[Obj<Backend>], b: &[Obj<Backend>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
}

/// Returns the status of a frontend that was just written: pending, if its family is enabled.
fn status(params: &FrontendParams, writer: &ServicesWriter) -> Status {
    let error = match params.address.ip {
        ip if writer.families.has(&ip) => return Status::pending(),
        IpAddr::V4(_) => "IPv4 is off (option enable-ipv4)",
        IpAddr::V6(_) => "IPv6 is off (option enable-ipv6)",
    };
    Status::unset(error)
}

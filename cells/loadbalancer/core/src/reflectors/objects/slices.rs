//! The slices of each service, and the effect of a change of one of them.

use std::hash::{Hash, Hasher};

use k8s_tables::Row;
use k8s_tables::core::EndpointSlice;
use smallvec::SmallVec;
use statedb::Obj;

use crate::model::address::LbAddress;
use crate::model::backend::Backend;
use crate::model::families::Families;
use crate::model::fast_map::{FastMap, FastSet};
use crate::model::name::ServiceName;
use crate::model::shared::Names;
use crate::model::source::Source;
use crate::reflectors::convert;
use crate::writer::txn::ServicesTxn;

type Slice = Obj<Row<EndpointSlice>>;

/// The slices of all services, as of the last round.
pub(super) struct Slices {
    families: Families,
    names: Names,
    /// The slices that belong to services.
    known: FastSet<ByName>,
    of_service: FastMap<ServiceName, Group>,
}

/// A slice, in sets by its name.
struct ByName(Slice);

impl ByName {
    fn name(&self) -> (&str, &str) {
        (&self.0.metadata.namespace, &self.0.metadata.name)
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ByName {}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// The slices of a service.
#[derive(Default)]
struct Group {
    /// In order of their names, so that the result does not depend on their order of arrival.
    slices: SmallVec<[Slice; 2]>,
    /// Whether a backend is, or was, in several of them.
    overlaps: bool,
}

/// The services whose backends must be computed again, in the order of their first changed slices.
#[derive(Default)]
pub(super) struct Affected {
    positions: FastMap<ServiceName, usize>,
    services: Vec<(ServiceName, Scope)>,
}

/// The backends of a service to compute again.
enum Scope {
    /// Those of all its slices.
    All,
    /// Those of one slice, which was replaced.
    Part(Slice, Slice),
}

impl Affected {
    /// Adds a service; one that is there already is computed as a whole.
    fn add(&mut self, service: ServiceName, scope: Scope) {
        match self.positions.get(&service) {
            Some(position) => self.services[*position].1 = Scope::All,
            None => {
                self.positions.insert(service.clone(), self.services.len());
                self.services.push((service, scope));
            }
        }
    }
}

impl Slices {
    pub(super) fn new(families: Families) -> Slices {
        Slices {
            families,
            names: Names::default(),
            known: FastSet::default(),
            of_service: FastMap::default(),
        }
    }

    /// Returns the name of a service, shared with its slices to save memory.
    pub(super) fn same_name(&self, name: ServiceName) -> ServiceName {
        self.of_service.get_key_value(&name).map(|(known, _)| known.clone()).unwrap_or(name)
    }

    /// Stores a slice by its service, if it has one; adds the services whose backends have changed. `service_of`
    /// returns the service of the slice's previous version.
    pub(super) fn take(
        &mut self,
        slice: &Slice,
        service: Option<ServiceName>,
        service_of: impl FnOnce(&EndpointSlice) -> Option<ServiceName>,
        affected: &mut Affected,
    ) {
        let before = match service {
            Some(_) => self.known.replace(ByName(slice.clone())),
            None => self.known.take(&ByName(slice.clone())),
        };
        let before = before.and_then(|before| service_of(&before.0));
        if let Some(before) = before.filter(|before| service.as_ref() != Some(before)) {
            if let Some(group) = self.of_service.get_mut(&before) {
                group.slices.retain(|other| other.metadata.name != slice.metadata.name);
                if group.slices.is_empty() {
                    self.of_service.remove(&before);
                }
            }
            affected.add(before, Scope::All);
        }
        let Some(service) = service else { return };
        let service = self.same_name(service);
        let group = self.of_service.entry(service.clone()).or_default();
        let name = &slice.metadata.name;
        match group.slices.binary_search_by(|other| other.metadata.name.cmp(name)) {
            Ok(at) => {
                let before = std::mem::replace(&mut group.slices[at], slice.clone());
                affected.add(service, Scope::Part(before, slice.clone()));
            }
            Err(at) => {
                group.slices.insert(at, slice.clone());
                affected.add(service, Scope::All);
            }
        }
    }

    /// Writes the backends of the affected services.
    pub(super) fn write(&mut self, affected: Affected, txn: &mut ServicesTxn<'_>) {
        for (name, scope) in affected.services {
            let done = match scope {
                Scope::All => false,
                Scope::Part(before, now) => self.write_part(&name, &before, &now, txn),
            };
            if !done {
                self.write_all(&name, txn);
            }
        }
    }

    /// Writes the backends of all slices of a service, merged.
    fn write_all(&mut self, name: &ServiceName, txn: &mut ServicesTxn<'_>) {
        let mut backends = Vec::new();
        if let Some(group) = self.of_service.get_mut(name) {
            for slice in &group.slices {
                let (families, names) = (self.families, &mut self.names);
                convert::add_backends(slice, name, Source::Kubernetes, families, names, &mut backends);
            }
            let count = backends.len();
            backends = convert::merge(backends);
            group.overlaps = backends.len() < count;
        }
        txn.set_backends(name, Source::Kubernetes, backends);
    }

    /// Writes only the difference of one slice, if no other slice shares its backends; false if the service must be
    /// written as a whole.
    fn write_part(
        &mut self,
        name: &ServiceName,
        before: &Slice,
        now: &Slice,
        txn: &mut ServicesTxn<'_>,
    ) -> bool {
        if self.of_service.get(name).is_none_or(|group| group.overlaps || group.slices.len() < 2) {
            return false;
        }
        let mut of = |slice: &Slice| {
            let mut backends = Vec::new();
            let (families, names) = (self.families, &mut self.names);
            convert::add_backends(slice, name, Source::Kubernetes, families, names, &mut backends);
            convert::merge(backends)
        };
        let (before, mut now) = (of(before), of(now));
        let find = |backends: &[Backend], address: &LbAddress| {
            backends.binary_search_by_key(address, |backend| backend.address).ok()
        };
        let gone: Vec<LbAddress> = before
            .iter()
            .map(|backend| backend.address)
            .filter(|address| find(&now, address).is_none())
            .collect();
        now.retain(|backend| find(&before, &backend.address).is_none_or(|at| before[at] != *backend));
        let mut new = now.iter().filter(|backend| find(&before, &backend.address).is_none());
        if new.any(|backend| txn.has_backend(backend)) {
            return false;
        }
        txn.change_backends(name, Source::Kubernetes, &gone, now);
        true
    }
}

#[cfg(test)]
impl Slices {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.of_service.is_empty()
    }
}

//! Selection of the backends of a frontend among those of its service.

use std::sync::Arc;

use k8s_tables::SmolStr;
use smallvec::SmallVec;
use statedb::Obj;

use crate::model::address::Scope;
use crate::model::backend::{Backend, BackendState};
use crate::model::frontend::{Frontend, FrontendParams, FrontendType};
use crate::model::service::{Service, TrafficDistribution, TrafficPolicy};
use crate::writer::mesh::{is_global, prefer_cluster};
use crate::writer::services_writer::IsChecked;

/// The location of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its name.
    pub(crate) node: String,
    /// Its zone, if its labels name one.
    pub(crate) zone: Option<SmolStr>,
    /// The id of its cluster, 0 for none.
    pub(crate) cluster_id: u32,
}

impl Place {
    /// Whether a backend is of another cluster.
    pub(crate) fn is_remote(&self, row: &Backend) -> bool {
        row.cluster_id != 0 && row.cluster_id != self.cluster_id
    }
}

/// Selects the backends of frontends.
pub(crate) struct Selector<'s> {
    pub(crate) place: &'s Place,
    /// Whether backends may be preferred by topology.
    pub(crate) topology: bool,
    /// Whether backends may be of the other family.
    pub(crate) translation: bool,
    /// Whether a service's backends are health-checked.
    pub(crate) is_checked: Option<&'s IsChecked>,
}

/// The input of the selection for one frontend.
struct Selection<'s> {
    frontend: &'s Frontend,
    place: &'s Place,
    topology: bool,
    is_checked: bool,
    /// The family of the backends.
    is_ipv4: bool,
}

/// Backends by address, one row each.
pub(crate) struct Selected {
    pub(crate) backends: Arc<[Obj<Backend>]>,
    /// The backends to health-check.
    pub(crate) to_check: Arc<[Obj<Backend>]>,
}

pub(crate) type Fitting = SmallVec<[Obj<Backend>; 2]>;

fn shared(fitting: Fitting) -> Arc<[Obj<Backend>]> {
    match fitting.spilled() {
        true => fitting.into_vec().into(),
        false => fitting.as_slice().into(),
    }
}

impl Selector<'_> {
    /// Selects the backends of a frontend among those of its service, or of the service that it is redirected to.
    pub(crate) fn select(&self, frontend: &Frontend, backends: &statedb::Writer<'_, Backend>) -> Selected {
        let from = frontend.redirect_to.as_ref().unwrap_or(&frontend.service.name);
        let is_checked = self.is_checked.is_some_and(|is| is(&frontend.service));
        let is_ipv4 = frontend.params.address.ip.is_ipv4();
        let mut selection =
            Selection { frontend, place: self.place, topology: self.topology, is_checked, is_ipv4 };
        // The number of backends rarely changes.
        let mut fitting = Fitting::with_capacity(frontend.backends.len());
        let fit = |selection: &Selection<'_>, fitting: &mut Fitting| {
            let (mut last, mut any_remote) = (None, false);
            // By address, the source of highest precedence first.
            for row in backends.prefix(Backend::of_service(from)) {
                // Of one address only the first row takes effect, whether it is selected or not.
                if last.replace(row.address) != Some(row.address) && selection.fits(row) {
                    any_remote |= self.place.is_remote(row);
                    fitting.push(row.clone());
                }
            }
            any_remote
        };
        let mut any_remote = fit(&selection, &mut fitting);
        if fitting.is_empty() && self.translation && is_for_outside(frontend) {
            selection.is_ipv4 = !is_ipv4;
            any_remote = fit(&selection, &mut fitting);
        }
        if !is_checked {
            selection.prefer(&mut fitting);
            if any_remote {
                prefer_cluster(&frontend.service, self.place, &mut fitting);
            }
            let backends = shared(fitting);
            return Selected { to_check: backends.clone(), backends };
        }
        let to_check: Arc<[Obj<Backend>]> = fitting.as_slice().into();
        selection.prefer(&mut fitting);
        fitting.retain(|row| row.state != BackendState::Active || row.unhealthy_updated_at.is_some());
        if any_remote {
            prefer_cluster(&frontend.service, self.place, &mut fitting);
        }
        Selected { backends: shared(fitting), to_check }
    }
}

impl Selection<'_> {
    fn fits(&self, row: &Backend) -> bool {
        let FrontendParams { address, port_name, .. } = &self.frontend.params;
        row.address.protocol == address.protocol
            && row.address.ip.is_ipv4() == self.is_ipv4
            && row.serves(port_name)
            && (!self.place.is_remote(row) || is_global(&self.frontend.service))
            && (!local_only(&self.frontend.params, &self.frontend.service)
                || row.node_name.is_empty()
                || row.node_name == self.place.node)
    }

    /// Keeps only preferred backends, if any of these may take connections.
    fn prefer(&self, rows: &mut Fitting) {
        if !self.topology || self.frontend.redirect_to.is_some() {
            return;
        }
        let candidates = || {
            rows.iter().filter(|row| {
                !matches!(row.state, BackendState::Terminating | BackendState::TerminatingNotServing)
                    && !(self.is_checked && (row.unhealthy || row.unhealthy_updated_at.is_none()))
            })
        };
        match self.frontend.service.traffic_distribution {
            TrafficDistribution::Default => {}
            TrafficDistribution::PreferSameNode => {
                let here = |row: &Obj<Backend>| row.node_name == self.place.node;
                if candidates().any(here) {
                    rows.retain(|row| here(row));
                }
            }
            TrafficDistribution::PreferSameZone | TrafficDistribution::PreferClose => {
                let Some(zone) = &self.place.zone else { return };
                let hints =
                    |row: &Obj<Backend>| row.zone.as_ref().is_some_and(|zone| !zone.for_zones.is_empty());
                let ours = |row: &Obj<Backend>| {
                    row.zone.as_ref().is_some_and(|place| place.for_zones.contains(zone))
                };
                if candidates().any(ours) && candidates().all(hints) {
                    rows.retain(|row| ours(row));
                }
            }
        }
    }
}

/// Whether devices serve a frontend, which translate between the families; pods and sockets do not.
fn is_for_outside(frontend: &Frontend) -> bool {
    let kind = frontend.params.kind;
    let is_served =
        matches!(kind, FrontendType::NodePort | FrontendType::ExternalIPs | FrontendType::LoadBalancer);
    is_served && frontend.redirect_to.is_none()
}

/// Whether only backends of this node are eligible. A ClusterIP frontend has only the external scope and obeys the
/// internal policy.
fn local_only(frontend: &FrontendParams, service: &Service) -> bool {
    let policy = match (frontend.kind, frontend.address.scope) {
        (FrontendType::HostPort | FrontendType::LocalRedirect, _) => return false,
        (FrontendType::ClusterIP, _) | (_, Scope::Internal) => service.int_traffic_policy,
        (_, Scope::External) => service.ext_traffic_policy,
    };
    policy == TrafficPolicy::Local
}

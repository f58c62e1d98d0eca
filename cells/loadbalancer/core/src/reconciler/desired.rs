//! The desired map entries of a frontend: order and counts of its slots, flags, timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::{LbService, lb_flag, lb_flag2};
use ipnetwork::IpNetwork;
use smallvec::SmallVec;

use crate::config::ServicesConfig;
use crate::lbmap::maglev::Maglev;
use crate::lbmap::rows::{Key, Value};
use crate::model::address::{LbAddress, Protocol, Scope};
use crate::model::annotations;
use crate::model::backend::{Backend, BackendState};
use crate::model::frontend::{Frontend, FrontendType};
use crate::model::service::{Algorithm, ForwardingMode, NatPolicy, TrafficPolicy};
use crate::option_values::{LbMode, ServiceIpam};
use crate::reconciler::translation::{is_translated, mapped, mapped_range};

/// The maximum affinity timeout: the field has 24 bits.
const MAX_TIMEOUT: u64 = (1 << 24) - 1;

/// Classes of load balancers whose addresses this agent announces.
const OWN_CLASSES: [&str; 2] = ["io.cilium/bgp-control-plane", "io.cilium/l2-announcer"];

/// The fields flags and flags2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8, pub(crate) u8);

/// An entry for all ports of an address, by the type of the frontend that desires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wildcard {
    ClusterIp,
    LoadBalancer,
}

impl Wildcard {
    pub(crate) fn flags(self) -> Flags {
        let kind = match self {
            Wildcard::ClusterIp => FrontendType::ClusterIP,
            Wildcard::LoadBalancer => FrontendType::LoadBalancer,
        };
        Flags(type_flag(kind), 0)
    }
}

/// Backends with their states.
type StatedBackends = SmallVec<[(LbAddress, BackendState); 1]>;

/// The desired map entries of a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    pub(crate) address: LbAddress,
    pub(crate) flags: Flags,
    /// The affinity timeout in seconds; 0 for no affinity.
    pub(crate) affinity: u32,
    /// The number of slots that take new connections.
    pub(crate) active: u16,
    /// The backends in slots 1, 2, ..., usable ones first.
    pub(crate) slots: StatedBackends,
    /// Backends with an entry but without a slot.
    pub(crate) without_slot: StatedBackends,
    /// The number of slots that clients may have affinity to.
    pub(crate) matches: u16,
    pub(crate) ranges: Vec<IpNetwork>,
    /// The entry for all ports of its address, if it is desired.
    pub(crate) wildcard: Option<Wildcard>,
    /// The port of the proxy to which its connections are redirected.
    pub(crate) proxy: Option<u16>,
    /// The frontend of internal scope that this one forwards clients inside the cluster to.
    pub(crate) needs: Option<LbAddress>,
    /// The algorithm that the service itself requests.
    pub(crate) algorithm: Option<Algorithm>,
    /// The parameters of its Maglev table, if it has one, and the weights of the backends that take new connections.
    pub(crate) table: Option<(Maglev, Vec<u16>)>,
}

/// Values that all frontends share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Whether this agent announces addresses of services without a class.
    pub(crate) owns_classless: bool,
    /// Whether Maglev is the default algorithm.
    pub(crate) maglev: bool,
    /// Whether services may select the algorithm.
    pub(crate) algorithm_annotation: bool,
    /// The parameters of Maglev tables.
    pub(crate) tables: Maglev,
    /// Whether ClusterIP frontends serve clients from outside.
    pub(crate) external_cluster_ip: bool,
    /// Whether source ranges apply to all types.
    pub(crate) ranges_of_all_types: bool,
    /// Whether frontends may have backends of the other family.
    pub(crate) translation: bool,
    /// The mode of replies from backends on other nodes.
    pub(crate) mode: LbMode,
    /// Whether services may select the mode.
    pub(crate) mode_annotation: bool,
    /// Ids of zones.
    pub(crate) zones: Arc<BTreeMap<String, u8>>,
    /// The node's own addresses.
    pub(crate) node_addresses: Vec<IpAddr>,
    /// Those of them on which node ports are served.
    pub(crate) node_port_addresses: BTreeSet<IpAddr>,
}

impl Settings {
    /// Returns the values of the options; addresses of the node are added for each batch.
    pub(crate) fn from_config(config: &ServicesConfig) -> Settings {
        Settings {
            owns_classless: config.enable_lb_ipam && config.default_lb_service_ipam == ServiceIpam::LbIpam,
            maglev: config.bpf_lb_algorithm == Algorithm::Maglev,
            algorithm_annotation: config.bpf_lb_algorithm_annotation,
            tables: Maglev::new(config.bpf_lb_maglev_table_size, config.bpf_lb_maglev_hash_seed),
            external_cluster_ip: config.bpf_lb_external_clusterip,
            ranges_of_all_types: config.bpf_lb_source_range_all_types,
            translation: config.translates(),
            mode: config.bpf_lb_mode,
            mode_annotation: config.bpf_lb_mode_annotation,
            zones: config.fixed_zone_mapping.ids().clone().into(),
            node_addresses: Vec::new(),
            node_port_addresses: BTreeSet::new(),
        }
    }
}

/// The reason why a frontend can have no map entries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Impossible {
    #[error("{0} backends are more than the {max} that a frontend can have", max = u16::MAX)]
    TooMany(usize),
    #[error("connections go to a proxy and stay with a backend: give up session affinity or the redirection")]
    ProxyWithAffinity,
    #[error(
        "a host port of the loopback device cannot be left to a proxy: give up {}",
        annotations::PROXY_DELEGATION
    )]
    DelegatedLoopback,
}

impl Desired {
    /// Computes the entries of a frontend at its own address, or at an address of the node that it expands to. Backends
    /// in `quarantined` were found unhealthy in the previous run, and no health check has reported on them since.
    pub(crate) fn new(
        frontend: &Frontend,
        address: LbAddress,
        settings: &Settings,
        quarantined: &BTreeSet<LbAddress>,
    ) -> Result<Desired, Impossible> {
        let is_translated = is_translated(frontend);
        // An IPv4 frontend of IPv6 backends has them at its twin.
        let frontend_backends: &[_] = match is_translated && address.ip.is_ipv4() {
            true => &[],
            false => &frontend.backends,
        };
        let count = frontend_backends.len();
        if count > usize::from(u16::MAX) {
            return Err(Impossible::TooMany(count));
        }
        let service = &frontend.service;
        let proxy = service.proxy_port(frontend.params.service_port);
        if !service.proxy_redirects.is_empty() && service.session_affinity.is_some() {
            return Err(Impossible::ProxyWithAffinity);
        }
        if service.loopback_host_port && service.delegates_if_local() {
            return Err(Impossible::DelegatedLoopback);
        }
        let unhealthy = |backend: &Backend| {
            backend.unhealthy || !quarantined.is_empty() && quarantined.contains(&backend.address)
        };
        debug_assert!(frontend.backends.is_sorted_by_key(|backend| backend.address));
        let mut backends: SmallVec<[((bool, BackendState), &Backend); 2]> = (frontend_backends.iter())
            .map(|backend| ((unhealthy(backend), backend.state), &**backend))
            .collect();
        // The sort is stable: backends of the same use stay in order of their addresses.
        backends.sort_by_key(|(by_use, _)| *by_use);
        let of_state = |state| backends.iter().filter(|(by_use, _)| *by_use == (false, state)).count() as u16;
        let healthy = of_state(BackendState::Active);
        // Terminating backends are the last resort, used if there is no active one.
        let active = if healthy == 0 { of_state(BackendState::Terminating) } else { healthy };
        let (mut slots, mut without_slot) = (StatedBackends::with_capacity(count), StatedBackends::new());
        for ((_, state), backend) in &backends {
            let pairs = match state {
                BackendState::Maintenance => &mut without_slot,
                _ => &mut slots,
            };
            pairs.push((if is_translated { mapped(backend.address) } else { backend.address }, *state));
        }
        let affinity = service.session_affinity.map_or(0, |timeout| timeout.as_secs().clamp(1, MAX_TIMEOUT));
        let flags = flags(frontend, &address, proxy, settings);
        let is_twin = frontend.address().ip.is_ipv4() != address.ip.is_ipv4();
        let family = |range: &IpNetwork| range.is_ipv4() == address.ip.is_ipv4();
        let mut ranges: Vec<IpNetwork> = match is_twin {
            true => service.source_ranges.iter().copied().filter_map(mapped_range).collect(),
            false => service.source_ranges.iter().copied().filter(family).collect(),
        };
        ranges.sort();
        ranges.dedup();
        let algorithm = settings.algorithm_annotation.then(|| service.algorithm()).flatten();
        let table = has_table(frontend, &address, algorithm, settings) && active > 0;
        let weights = || backends.iter().take(active.into()).map(|(_, backend)| backend.weight).collect();
        Ok(Desired {
            address,
            flags,
            affinity: affinity as u32,
            active,
            slots,
            without_slot,
            matches: if affinity == 0 { 0 } else { healthy },
            ranges,
            wildcard: wildcard(frontend, &address, settings).filter(|_| !is_twin),
            algorithm,
            proxy,
            needs: None,
            table: table.then(|| (settings.tables, weights())),
        })
    }

    /// Returns the entry of slot 0.
    pub(crate) fn master(&self, id: u16) -> (Key, Value) {
        let algorithm = match self.algorithm {
            None => 0,
            Some(Algorithm::Random) => 1,
            Some(Algorithm::Maglev) => 2,
        };
        let value = LbService {
            backend_id: match self.proxy {
                Some(port) => port.to_be().into(),
                None => self.affinity | algorithm << 24,
            },
            count: self.active,
            qcount: self.slots.len() as u16 - self.active,
            ..self.row(id)
        };
        (Key::master(self.address), Value::Service(value))
    }

    /// Returns the entry of a slot.
    pub(crate) fn slot(&self, id: u16, backend: u32) -> LbService {
        LbService { backend_id: backend, ..self.row(id) }
    }

    fn row(&self, id: u16) -> LbService {
        let Flags(flags, flags2) = self.flags;
        LbService { rev_nat_index: id.to_be(), flags, flags2, ..LbService::default() }
    }
}

/// Whether it has a table. Tables cost memory: unless a service requests one, only addresses for external clients have
/// them.
fn has_table(
    frontend: &Frontend,
    address: &LbAddress,
    chosen: Option<Algorithm>,
    settings: &Settings,
) -> bool {
    let outside = match frontend.params.kind {
        FrontendType::ClusterIP => settings.external_cluster_ip,
        FrontendType::LocalRedirect => false,
        _ => true,
    };
    let wanted = chosen.map_or(settings.maglev && outside, |chosen| chosen == Algorithm::Maglev);
    wanted && !address.ip.is_unspecified()
}

fn flags(frontend: &Frontend, address: &LbAddress, proxy: Option<u16>, settings: &Settings) -> Flags {
    let service = &frontend.service;
    let kind = match frontend.redirect_to {
        Some(_) => FrontendType::LocalRedirect,
        None => frontend.params.kind,
    };
    let mut flags = type_flag(kind);
    let mut flags2 = match kind {
        FrontendType::LocalRedirect => lb_flag2::LOCAL_REDIRECT,
        _ => 0,
    };
    let inside = kind == FrontendType::ClusterIP;
    if !address.ip.is_unspecified() && (!inside || settings.external_cluster_ip) {
        flags |= lb_flag::ROUTABLE;
    }
    if service.ext_traffic_policy == TrafficPolicy::Local {
        flags |= lb_flag::EXT_LOCAL_SCOPE;
    }
    if service.int_traffic_policy == TrafficPolicy::Local {
        flags2 |= lb_flag2::INT_LOCAL_SCOPE;
    }
    if service.ext_traffic_policy != service.int_traffic_policy && !inside {
        flags2 |= lb_flag2::TWO_SCOPES;
    }
    let ranged = matches!(kind, FrontendType::LoadBalancer | FrontendType::ExternalIPs);
    if !service.source_ranges.is_empty() && (ranged || settings.ranges_of_all_types) {
        flags |= lb_flag::SOURCE_RANGE;
        if service.denies_source_ranges() {
            flags2 |= lb_flag2::QUARANTINED_OR_DENY;
        }
    }
    if service.session_affinity.is_some() {
        flags |= lb_flag::SESSION_AFFINITY;
    }
    let is_translated = is_translated(frontend);
    if is_translated || matches!(service.nat_policy, NatPolicy::Nat46 | NatPolicy::Nat64) {
        flags2 |= lb_flag2::NAT_46X64;
    }
    if proxy.is_some() {
        flags2 |= lb_flag2::L7_LOAD_BALANCER;
    }
    if service.loopback_host_port || service.delegates_if_local() {
        flags2 |= lb_flag2::LOOPBACK;
    }
    // A backend cannot reply to a client of another family.
    if !is_translated && is_dsr(service.forwarding_mode, address, settings) {
        flags2 |= lb_flag2::FORWARDING_DSR;
    }
    Flags(flags, flags2)
}

fn is_dsr(asked: ForwardingMode, address: &LbAddress, settings: &Settings) -> bool {
    match asked {
        ForwardingMode::Dsr if settings.mode_annotation => true,
        ForwardingMode::Snat if settings.mode_annotation => false,
        _ => match settings.mode {
            LbMode::Snat => false,
            LbMode::Hybrid => address.protocol == Protocol::Tcp,
            LbMode::Dsr => true,
        },
    }
}

fn type_flag(kind: FrontendType) -> u8 {
    match kind {
        FrontendType::ClusterIP => 0,
        FrontendType::NodePort => lb_flag::NODE_PORT,
        FrontendType::ExternalIPs => lb_flag::EXTERNAL_IP,
        FrontendType::LoadBalancer => lb_flag::LOAD_BALANCER,
        FrontendType::HostPort => lb_flag::HOST_PORT,
        // It is a bit of the other flags.
        FrontendType::LocalRedirect => 0,
    }
}

/// Returns the entry for all ports of an address, if the agent knows all its ports: with it the datapath recognizes
/// packets to ports without a service.
fn wildcard(frontend: &Frontend, address: &LbAddress, settings: &Settings) -> Option<Wildcard> {
    let wildcard = match frontend.params.kind {
        FrontendType::ClusterIP => Wildcard::ClusterIp,
        FrontendType::LoadBalancer => Wildcard::LoadBalancer,
        _ => return None,
    };
    let own = match frontend.service.load_balancer_class.as_deref() {
        None => settings.owns_classless,
        Some(class) => OWN_CLASSES.contains(&class),
    };
    let wanted = address.scope == Scope::External && own && !settings.node_addresses.contains(&address.ip);
    wanted.then_some(wildcard)
}

/// Returns the entry for all ports of an address.
pub(crate) fn wildcard_row(ip: IpAddr, Flags(flags, flags2): Flags) -> (Key, Value) {
    (Key::wildcard(ip), Value::Service(LbService { flags, flags2, ..LbService::default() }))
}

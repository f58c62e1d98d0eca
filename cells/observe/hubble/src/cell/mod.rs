//! The wiring: options, the observer with its ring, the job that fills it, the socket, the TCP listener, the status.

use std::sync::Arc;
use std::time::Duration;

use api::{Operation, Route, StatusSource};
use datapath_api::SocketLb;
use devices::Device;
use endpoints::Endpoint;
use fqdn_names::DnsNames;
use grpc::{Reflection, ReflectionError};
use hive::job::Backoff;
use hive::prelude::*;
use identity::Identity;
use ipcache::Entry;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use loadbalancer::Frontend;
use local_node::LocalNode;
use monitor::Monitor;
use node_manager::Node;
use policy::{Policies, PolicyLog};
use server_tls::{CurrentTls, follow_certificates};
use statedb::{Db, Table};

use crate::config::{Error, HubbleConfig, RedactConfig};
use crate::feed::{Consumer, Feed, HubbleRegistry};
use crate::kinds::Kinds;
use crate::listen::{Listen, ListenConfig, ListenError};
use crate::names::Tables;
use crate::observer::{Observer, Worker};
use crate::peers::Naming;
use crate::redact::Redaction;
use crate::server::Services;
use crate::service::Service;
use crate::{cgroups, socket, status, tcp};

/// The backoff for a socket or an address that cannot be bound.
const SOCKET_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of Hubble.
pub fn cell() -> Cell {
    let cells = [
        config::<HubbleConfig>(),
        config::<ListenConfig>(),
        config::<RedactConfig>(),
        provide_private(new_redaction),
        provide_private(new_observer),
        provide_private(new_listener),
        provide(new_feed),
        provide(HubbleRegistry::new),
        provide(new_status),
        provide(cgroup_metadata),
        invoke(start),
    ];
    module("hubble", "Flows of the node's packets", cells)
}

/// The observer; none with Hubble off.
struct Observing(Option<Arc<Observer>>);

fn new_observer(config: Config<HubbleConfig>) -> Result<Arc<Observing>, Error> {
    if !config.enable_hubble {
        return Ok(Arc::new(Observing(None)));
    }
    config.check()?;
    let observer = Observer::new(config.hubble_event_buffer_capacity as usize);
    Ok(Arc::new(Observing(Some(Arc::new(observer)))))
}

fn new_redaction(
    hubble: Config<HubbleConfig>,
    config: Config<RedactConfig>,
) -> Result<Arc<Redaction>, Error> {
    let redaction = if hubble.enable_hubble { Redaction::new(&config)? } else { Redaction::default() };
    Ok(Arc::new(redaction))
}

/// The TCP listener; none with Hubble off, and without an address.
struct Listening {
    listen: Option<Listen>,
    /// The configuration of TLS.
    certificates: Arc<CurrentTls>,
}

fn new_listener(
    hubble: Config<HubbleConfig>,
    config: Config<ListenConfig>,
) -> Result<Arc<Listening>, ListenError> {
    let listen = if hubble.enable_hubble { config.listen()? } else { None };
    Ok(Arc::new(Listening { listen, certificates: Arc::default() }))
}

fn new_feed(observing: Arc<Observing>) -> Arc<Feed> {
    Arc::new(Feed(observing.0.as_ref().map(|observer| observer.ring.clone())))
}

fn new_status(observing: Arc<Observing>, listening: Arc<Listening>) -> Member<StatusSource> {
    let needs_certificates = listening.listen.as_ref().is_some_and(|listen| listen.tls.is_some());
    let is_starting = move || needs_certificates && listening.certificates.borrow().is_none();
    Member(status::source(observing.0.clone(), is_starting))
}

fn cgroup_metadata(socket_lb: Option<Arc<SocketLb>>, pods: Option<Arc<Table<Row<Pod>>>>) -> Member<Route> {
    Member(Route::new(Operation::GetCgroupDumpMetadata, move |_| {
        cgroups::metadata(socket_lb.clone(), pods.clone())
    }))
}

#[derive(Params)]
struct Needs {
    config: Config<HubbleConfig>,
    observing: Arc<Observing>,
    redaction: Arc<Redaction>,
    listen_config: Config<ListenConfig>,
    listening: Arc<Listening>,
    nodes: Arc<Table<Node>>,
    monitor: Arc<Monitor>,
    db: Arc<Db>,
    node: Arc<Table<LocalNode>>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<Table<Entry>>,
    identities: Arc<Table<Identity>>,
    frontends: Arc<Table<Frontend>>,
    devices: Arc<Table<Device>>,
    policies: Option<Arc<Policies>>,
    policy_logs: Option<Arc<Table<PolicyLog>>>,
    pods: Option<Arc<Table<Row<Pod>>>>,
    dns: Option<Arc<DnsNames>>,
    socket_lb: Option<Arc<SocketLb>>,
    consumers: Group<Consumer>,
    jobs: JobGroup,
}

fn start(p: Needs) -> Result<(), ReflectionError> {
    let Some(observer) = p.observing.0.clone() else { return Ok(()) };
    let policies = p.policies.filter(|_| p.config.hubble_network_policy_correlation_enabled);
    if let Some(policies) = &policies {
        policies.keep_decisions();
    }
    let lost_event_interval = p.config.hubble_lost_event_send_interval;
    let worker = Worker {
        observer: observer.clone(),
        monitor: p.monitor,
        queue_size: monitor::queue_size(p.config.hubble_event_queue_size, bpf::possible_cpus()),
        lost_event_interval,
        db: p.db.clone(),
        tables: Tables {
            endpoints: (*p.endpoints).clone(),
            ipcache: (*p.ipcache).clone(),
            identities: (*p.identities).clone(),
            frontends: (*p.frontends).clone(),
            devices: (*p.devices).clone(),
            pods: p.pods.map(|pods| (*pods).clone()),
            dns: p.dns,
            policy_logs: policies.as_ref().and(p.policy_logs).map(|logs| (*logs).clone()),
            policies: policies.map(|policies| policies.table()),
        },
        node: (*p.node).clone(),
        redaction: (*p.redaction).clone(),
        socket_lb: p.socket_lb,
        skip_unknown_cgroups: p.config.hubble_skip_unknown_cgroup_ids,
        kinds: kinds(&p.config),
        consumers: p.consumers.to_vec(),
    };
    p.jobs.one_shot("observer", move |cx: JobCx| worker.run(cx)).add();
    let naming = Naming {
        port: p.listening.listen.as_ref().map(|listen| listen.port),
        has_tls: p.listening.listen.as_ref().is_some_and(|listen| listen.tls.is_some()),
        prefer_ipv6: p.listen_config.hubble_prefer_ipv6,
    };
    let (node, nodes) = ((*p.node).clone(), (*p.nodes).clone());
    let service = Service { observer, db: p.db, node, nodes, naming, lost_event_interval };
    let services = Services { service, reflection: Reflection::new(hubble_api::DESCRIPTORS)? };
    let path = p.config.hubble_socket_path.clone();
    let backoff = || Backoff::exponential(SOCKET_RETRY.0, SOCKET_RETRY.1);
    let of_socket = services.clone();
    p.jobs
        .one_shot_with_retry("socket", backoff(), move |cx: JobCx| {
            socket::serve(path.clone(), of_socket.clone(), cx)
        })
        .add();
    let Some(listen) = p.listening.listen.clone() else { return Ok(()) };
    let certificates = p.listening.certificates.clone();
    if let Some(files) = listen.tls.clone() {
        let certificates = certificates.clone();
        p.jobs
            .one_shot_with_retry("certificates", backoff(), move |cx: JobCx| {
                follow_certificates(files.clone(), certificates.clone(), cx)
            })
            .add();
    }
    p.jobs
        .one_shot_with_retry("tcp", backoff(), move |cx: JobCx| {
            tcp::serve(listen.clone(), certificates.clone(), services.clone(), cx)
        })
        .add();
    Ok(())
}

fn kinds(config: &HubbleConfig) -> Kinds {
    Kinds::of(&config.hubble_monitor_events).unwrap_or_else(|word| {
        tracing::warn!(kind = word, "hubble-monitor-events: no kind of events has this name; all are kept");
        Kinds::default()
    })
}

#[cfg(test)]
mod tests;

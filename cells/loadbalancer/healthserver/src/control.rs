//! The control loop: changes of frontends, services that redirect to the servers, the servers themselves.

use hive::health::{SHOWN, summarize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use devices::NodeAddress;
use futures::future::OptionFuture;
use hive::JobHandle;
use hive::prelude::*;
use loadbalancer::{Frontend, Initializers, ServiceName, ServicesWriter};
use statedb::{Changes, Snapshot, Table, Watch};

use crate::listener::Server;
use crate::redirect::Redirects;
use crate::wanted::{self, All};

/// The least time between two rounds, and between a change and its round.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of changes in a round.
const MAX_CHANGES: usize = 1000;

/// The initializer's name, on which readers of the tables of services wait.
const INITIALIZER: &str = "healthserver";

/// Keeps a server for each service that requires one.
pub(crate) struct Control {
    frontends: Table<Frontend>,
    changes: Changes<Frontend>,
    all: All,
    redirects: Option<Redirects>,
    addresses: Option<Table<NodeAddress>>,
    /// Held until all other sources are complete and the services that redirect to the servers are written.
    initializers: Option<(ServicesWriter, Initializers)>,
    servers: Servers,
    health: Health,
}

/// The running servers.
pub(crate) struct Servers {
    pub(crate) server: Server,
    pub(crate) jobs: JobGroup,
    pub(crate) health: Health,
    pub(crate) running: BTreeMap<u16, (ServiceName, JobHandle)>,
}

/// The next event to wait for after a round.
struct Waits {
    /// Whether more changes are pending.
    more: bool,
    frontends: Watch,
    addresses: Option<Watch>,
}

impl Control {
    /// `redirects`: whether load balancer addresses are redirected to the servers, too.
    pub(crate) fn new(
        writer: &ServicesWriter,
        addresses: Option<Table<NodeAddress>>,
        redirects: bool,
        servers: Servers,
    ) -> Control {
        let frontends = writer.frontends();
        let of_redirects = addresses.clone().filter(|_| redirects);
        Control {
            changes: frontends.changes().named("loadbalancer-healthserver").limit(MAX_CHANGES),
            frontends,
            all: All::default(),
            redirects: redirects.then(|| Redirects::new(writer.clone(), of_redirects.clone())),
            addresses: of_redirects,
            initializers: redirects.then(|| (writer.clone(), writer.register(INITIALIZER))),
            health: servers.health.clone(),
            servers,
        }
    }

    /// Follows the frontends until the agent stops.
    pub(crate) async fn follow(mut self, cx: JobCx) -> anyhow::Result<()> {
        loop {
            let round = hive::blocking(move || {
                let waits = self.round();
                (self, waits)
            });
            let (this, waits) = round.await;
            self = this;
            self.serve().await;
            cx.health.ok(format!("{} health servers running", self.servers.running.len()));
            if !waits.more && self.initializers.is_none() {
                tokio::select! {
                    () = waits.frontends.changed() => {}
                    Some(()) = OptionFuture::from(waits.addresses.as_ref().map(Watch::changed)) => {}
                    () = cx.cancelled() => return Ok(()),
                }
            }
            // Related changes are coalesced: a service and its slices arrive one after the other.
            let rest = tokio::time::sleep(MIN_ROUND_INTERVAL);
            if cx.token().run_until_cancelled(rest).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Processes the changes since the last round.
    fn round(&mut self) -> Waits {
        let snapshot = self.frontends.snapshot();
        let addresses = self.addresses.as_ref().map(|addresses| addresses.watch(&snapshot));
        let (changes, frontends) = self.changes.read(&snapshot, MAX_CHANGES);
        let mut concerned = BTreeSet::new();
        for change in &changes {
            concerned.extend(self.all.concerned(&change.object));
        }
        let mut changed = BTreeSet::new();
        for name in concerned {
            let rows = self.frontends.list(&snapshot, Frontend::by_service(&name));
            if self.all.set(&name, wanted::of(rows.map(|row| &**row))) {
                changed.insert(name);
            }
        }
        self.redirect(changed, &snapshot);
        let more = changes.len() == MAX_CHANGES;
        let others_complete = || {
            let pending = self.frontends.pending_initializers(&snapshot);
            pending.iter().all(|name| **name == *INITIALIZER)
        };
        if !more
            && others_complete()
            && let Some((writer, initializers)) = self.initializers.take()
        {
            writer.complete(initializers);
        }
        Waits { more, frontends, addresses }
    }

    /// Redirects load balancer addresses of these services to their servers.
    fn redirect(&mut self, mut changed: BTreeSet<ServiceName>, snapshot: &Snapshot) {
        let Some(redirects) = &mut self.redirects else { return };
        if redirects.node_moved() {
            changed.extend(self.all.names().cloned());
        }
        if !changed.is_empty() {
            changed.extend(redirects.again().cloned());
        }
        // Ids follow the order of writing: the service's own frontends must be first.
        let at_once = !self.frontends.initialized(snapshot);
        let all = &self.all;
        let services = changed.iter().map(|name| (name, all.get(name)));
        let mut ready =
            services.filter(|(_, wanted)| wanted.is_none_or(|wanted| at_once || wanted.settled)).peekable();
        if ready.peek().is_some() {
            redirects.write(ready);
        }
        let row = self.health.child("load-balancer-addresses");
        let refused = redirects.refused();
        if refused.is_empty() {
            row.close();
        } else {
            let error = summarize(refused, SHOWN, "\n");
            if row.degraded_anew("Health checks at load balancer addresses have no answer", &error) {
                tracing::error!(error, "Health checks at load balancer addresses have no answer");
            }
        }
    }

    /// Starts and stops servers.
    async fn serve(&mut self) {
        let running = &self.servers.running;
        let has = |port: u16| running.get(&port).map(|(service, _)| service.clone());
        let (owners, taken) = self.all.ports(has);
        let row = self.health.child("ports");
        if taken.is_empty() {
            row.close();
        } else {
            let error = summarize(&taken, SHOWN, "\n");
            if row.degraded_anew("Services have the same healthCheckNodePort", &error) {
                tracing::error!(error, "Services have the same healthCheckNodePort");
            }
        }
        self.servers.keep(owners).await;
    }
}

impl Servers {
    /// Starts and stops servers until they are those of these services, by port.
    async fn keep(&mut self, wanted: BTreeMap<u16, ServiceName>) {
        let gone: Vec<u16> = self
            .running
            .iter()
            .filter(|(port, (service, _))| wanted.get(port) != Some(service))
            .map(|(port, _)| *port)
            .collect();
        for port in gone {
            let Some((_, job)) = self.running.remove(&port) else { continue };
            // The port must be free before another server can listen on it.
            job.stop().await;
            self.health.child(&format!("job-{}", name(port))).close();
        }
        for (port, service) in wanted {
            if !self.running.contains_key(&port) {
                let (server, of) = (self.server.clone(), service.clone());
                let job = self.jobs.one_shot(name(port), move |cx: JobCx| server.serve(port, of, cx)).add();
                self.running.insert(port, (service, job));
            }
        }
    }
}

/// Returns the name of the job that serves a port.
fn name(port: u16) -> String {
    format!("listener-{port}")
}

//! The agent's wiring: snapshots of tables, the listener.

use std::sync::Arc;
use std::time::Duration;

use dns_proxy::{Directory, Observer};
use endpoints::Endpoint;
use hive::job::Backoff;
use hive::prelude::*;
use identity::Prefixes;
use ipcache::Entry;
use policy::PeerSelector;
use proxy_ports::Proxies;
use statedb::Table;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::proto::PolicyState;
use crate::server;
use crate::service::Service;
use crate::snapshot::Tables;

/// The interval between snapshots, each of which is linear in the tables: so long that they take 5 % of the time of a
/// thread, and within these limits. Cilium's is the upper one; new workloads should not wait that long.
const SNAPSHOT_SHARE: u32 = 20;
const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);
const MAX_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// Delays between attempts to bind the port.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Serves standalone DNS proxies, if the agent has none of its own.
pub fn cell() -> Cell {
    module("standalone-dns-proxy", "Service for a standalone DNS proxy", [invoke(start)])
}

#[derive(Params)]
struct StartParams {
    proxies: Arc<Proxies>,
    prefixes: Arc<Prefixes>,
    endpoints: Arc<Table<Endpoint>>,
    selectors: Arc<Table<PeerSelector>>,
    ipcache: Arc<Table<Entry>>,
    directory: Arc<dyn Directory>,
    observer: Arc<Observer>,
    jobs: JobGroup,
}

fn start(p: StartParams) {
    let options = p.proxies.config();
    if !options.enable_standalone_dns_proxy {
        return;
    }
    let port = options.standalone_dns_proxy_server_port;
    let redirects = p.proxies.redirects();
    let tables = Tables { endpoints: p.endpoints, redirects, selectors: p.selectors, ipcache: p.ipcache };
    let (prefixes, directory, observer) = (p.prefixes, p.directory, p.observer);
    p.jobs
        .one_shot("serve", move |cx: JobCx| async move {
            // Proxies keep the snapshot of the previous run until this one is complete.
            let complete = async {
                prefixes.policy_in_force().await;
                tables.endpoints.wait_initialized().await;
                tables.ipcache.wait_initialized().await;
            };
            if cx.token().run_until_cancelled(complete).await.is_none() {
                return Ok(());
            }
            let names = tables.clone();
            let (sender, states) = watch::channel(Arc::new(tables.state().0));
            let service = Service {
                states,
                directory,
                names: Arc::new(move |endpoint, name| names.allow_name(endpoint, name)),
                observer: Arc::new(move |client, observation| observer.observe(client, observation)),
            };
            let Some(listener) = cx.token().run_until_cancelled(bind(&cx, port)).await else {
                return Ok(());
            };
            cx.health.ok(format_args!("Serving {}", server::address(port)));
            let serve = server::serve(listener, service, cx.token().clone());
            tokio::join!(serve, cx.token().run_until_cancelled(publish(tables, sender)));
            Ok(())
        })
        .add();
}

/// Publishes the state of the tables after changes.
async fn publish(tables: Tables, sender: watch::Sender<Arc<PolicyState>>) {
    loop {
        let started = Instant::now();
        let (state, watches) = tables.state();
        sender.send_if_modified(|current| {
            let is_changed = **current != state;
            if is_changed {
                *current = Arc::new(state);
            }
            is_changed
        });
        let interval = started.elapsed() * SNAPSHOT_SHARE;
        watches.changed().await;
        let interval = interval.clamp(MIN_SNAPSHOT_INTERVAL, MAX_SNAPSHOT_INTERVAL);
        tokio::time::sleep_until(started + interval).await;
    }
}

/// Binds the port, again and again: a process that has taken it must not stop the agent.
async fn bind(cx: &JobCx, port: u16) -> TcpListener {
    let mut backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    loop {
        let address = server::address(port);
        let error = match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => error,
        };
        let error = anyhow::Error::new(error).context(format!(
            "unable to bind {address} for the standalone DNS proxy; set standalone-dns-proxy-server-port to a free port"
        ));
        if backoff.attempts() == 0 {
            tracing::warn!(error = format!("{error:#}"), "DNS proxies get no policies, trying again");
        }
        cx.health.degraded("Standalone DNS proxies cannot connect", &*error);
        tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL)).await;
    }
}

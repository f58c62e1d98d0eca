//! The wiring: options, the observer with its ring, the job that fills it, the socket, the status.

use std::sync::Arc;
use std::time::Duration;

use api::StatusSource;
use devices::Device;
use endpoints::Endpoint;
use hive::job::Backoff;
use hive::prelude::*;
use identity::Identity;
use ipcache::Entry;
use loadbalancer::Frontend;
use local_node::LocalNode;
use monitor::Monitor;
use statedb::{Db, Table};

use crate::config::{Error, HubbleConfig};
use crate::names::Tables;
use crate::observer::{Observer, Worker};
use crate::service::Service;
use crate::{server, status};

/// The backoff for a socket that cannot be made.
const SOCKET_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of Hubble.
pub fn cell() -> Cell {
    let cells = [config::<HubbleConfig>(), provide_private(new_observer), provide(new_status), invoke(start)];
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

fn new_status(observing: Arc<Observing>) -> Member<StatusSource> {
    Member(status::source(observing.0.clone()))
}

#[derive(Params)]
struct Needs {
    config: Config<HubbleConfig>,
    observing: Arc<Observing>,
    monitor: Arc<Monitor>,
    db: Arc<Db>,
    node: Arc<Table<LocalNode>>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<Table<Entry>>,
    identities: Arc<Table<Identity>>,
    frontends: Arc<Table<Frontend>>,
    devices: Arc<Table<Device>>,
    jobs: JobGroup,
}

fn start(p: Needs) {
    let Some(observer) = p.observing.0.clone() else { return };
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
        },
        node: (*p.node).clone(),
    };
    p.jobs.one_shot("observer", move |cx: JobCx| worker.run(cx)).add();
    let service = Service { observer, db: p.db, node: (*p.node).clone(), lost_event_interval };
    let path = p.config.hubble_socket_path.clone();
    let backoff = Backoff::exponential(SOCKET_RETRY.0, SOCKET_RETRY.1);
    p.jobs
        .one_shot_with_retry("socket", backoff, move |cx: JobCx| {
            server::serve(path.clone(), service.clone(), cx)
        })
        .add();
}

#[cfg(test)]
mod tests;

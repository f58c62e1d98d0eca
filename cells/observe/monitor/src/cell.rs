//! The wiring: options, the monitor, its jobs, the status.

use std::sync::Arc;
use std::time::Duration;

use api::StatusSource;
use hive::job::Backoff;
use hive::prelude::*;
use local_node::StateConfig;
use maps::Maps;

use crate::config::MonitorConfig;
use crate::hub::Monitor;
use crate::{ring, socket, status};

/// The backoff for a socket that cannot be made.
const SOCKET_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Returns the cell of the monitor.
pub fn cell() -> Cell {
    let cells = [config::<MonitorConfig>(), provide(new_monitor), provide(new_status), invoke(start)];
    module("monitor-agent", "Events of the datapath and of the agent for monitors", cells)
}

fn new_monitor(config: Config<MonitorConfig>) -> Arc<Monitor> {
    // The chart joins its lists by blanks.
    let labels = config.agent_labels.iter().flat_map(|labels| labels.split_whitespace());
    let labels = labels.map(str::to_owned).collect();
    Arc::new(Monitor::new(config.queue_size(bpf::possible_cpus())).with_labels(labels))
}

fn new_status(monitor: Arc<Monitor>) -> Member<StatusSource> {
    Member(status::source(monitor))
}

#[derive(Params)]
struct Needs {
    config: Config<MonitorConfig>,
    state: Config<StateConfig>,
    maps: Arc<Maps>,
    monitor: Arc<Monitor>,
    jobs: JobGroup,
}

fn start(p: Needs) {
    let (maps, monitor) = (p.maps, p.monitor.clone());
    p.jobs.one_shot("rings", move |cx: JobCx| ring::run(maps, monitor, cx)).add();
    if !p.config.enable_monitor {
        return;
    }
    let (path, monitor) = (p.state.run().join(socket::SOCKET), p.monitor);
    let backoff = Backoff::exponential(SOCKET_RETRY.0, SOCKET_RETRY.1);
    p.jobs
        .one_shot_with_retry("socket", backoff, move |cx: JobCx| {
            socket::serve(path.clone(), monitor.clone(), cx)
        })
        .add();
}

//! The wiring.

use std::sync::Arc;
use std::time::SystemTime;

use endpoints::Endpoint;
use hive::prelude::*;
use ipcache::Entry;
use monitor::Monitor;
use policy::{Policies, PolicyStatus};
use statedb::Table;

use crate::follow::{Follower, publish};
use crate::messages;

/// Publishes notifications to the monitor.
pub fn cell() -> Cell {
    module("agent-notifications", "Notifications of the agent for monitors", [invoke(start)])
}

#[derive(Params)]
struct StartParams {
    monitor: Arc<Monitor>,
    endpoints: Arc<Table<Endpoint>>,
    ipcache: Arc<Table<Entry>>,
    statuses: Arc<Table<PolicyStatus>>,
    policies: Arc<Policies>,
    jobs: JobGroup,
}

fn start(p: StartParams) {
    let (monitor, endpoints) = (p.monitor.clone(), p.endpoints.clone());
    p.jobs
        .one_shot("report-start", move |cx: JobCx| async move {
            tokio::select! {
                () = cx.cancelled() => {}
                () = endpoints.wait_initialized() => publish(&monitor, messages::started(SystemTime::now())),
            }
            Ok(())
        })
        .add();
    let follower = Follower {
        monitor: p.monitor,
        endpoints: p.endpoints,
        ipcache: p.ipcache,
        statuses: p.statuses,
        policies: p.policies,
    };
    p.jobs
        .one_shot("follow-tables", move |cx: JobCx| async move {
            follower.run(cx).await;
            Ok(())
        })
        .add();
}

//! The wiring.

use std::sync::Arc;

use endpoints::Endpoint;
use hive::prelude::*;
use iptables::NoTrackRules;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use statedb::Table;

use crate::follow::Follower;

/// Keeps table `no-track` equal to the annotations of this node's pods.
pub fn cell() -> Cell {
    module("no-track", "Traffic of pods that is not tracked", [invoke(follow)])
}

fn follow(
    endpoints: Arc<Table<Endpoint>>,
    pods: Arc<Table<Row<Pod>>>,
    rules: Arc<NoTrackRules>,
    jobs: JobGroup,
) {
    let follower = Follower::new(endpoints, pods, rules);
    jobs.one_shot("annotations", move |cx: JobCx| follower.run(cx)).add();
}

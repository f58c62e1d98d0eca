//! Wiring.

use std::sync::Arc;

use hive::prelude::*;
use hive_command::Command;
use k8s_types::{Api, Source};
use statedb::RwTable;

use crate::commands::commands;
use crate::object::Object;
use crate::tracker::Tracker;

/// Provides the [`Tracker`], as itself, as [`Api`] and as one of the sources, and the commands `k8s/*`.
pub fn cell() -> Cell {
    module(
        "k8s-tracker",
        "Cluster objects of scripts and tests",
        [
            statedb::table::<Object>(),
            provide(new_tracker),
            provide(api),
            provide(source),
            provide(|tracker: Arc<Tracker>| Members::<Command>(commands(&tracker))),
        ],
    )
}

fn new_tracker(objects: Arc<RwTable<Object>>) -> Arc<Tracker> {
    Arc::new(Tracker::new(&objects))
}

fn api(tracker: Arc<Tracker>) -> Arc<dyn Api> {
    tracker
}

fn source(tracker: Arc<Tracker>) -> Member<Arc<dyn Source>> {
    Member(tracker)
}

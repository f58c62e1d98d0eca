//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use maps::Maps;

use crate::handle::Signals;
use crate::reader;

/// Provides `Arc<Signals>`.
pub fn cell() -> Cell {
    module("signals", "Requests of the datapath", [provide(start)])
}

fn start(maps: Arc<Maps>, jobs: JobGroup) -> Arc<Signals> {
    let signals = Arc::new(Signals::default());
    let read = signals.clone();
    jobs.one_shot("signals", move |cx: JobCx| reader::read(maps, read, cx)).add();
    signals
}

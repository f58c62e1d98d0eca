//! The objects that have configuration, from the tracker.

use hive::prelude::*;

pub(super) fn cells() -> Vec<Cell> {
    vec![k8s_tracker::cell(), config_sources::cell()]
}

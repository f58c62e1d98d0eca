//! The objects that have configuration, from the tracker.

use hive::prelude::*;

pub(super) fn cells() -> Vec<Cell> {
    vec![k8s_fake_apiserver::cell(), config_sources::cell()]
}

//! Hybrid routing: subnets of an option and of objects from the tracker, in a map of the kernel.

use std::time::Duration;

use hive::prelude::*;
use hive_script::Retry;

/// The mode that has subnets, and maps within the memory of a test.
pub(super) const DEFAULTS: &[&str] =
    &["--routing-mode=hybrid", "--bpf-map-dynamic-size-ratio=0", "--preallocate-bpf-maps=false"];

pub(super) const RETRY: Retry = Retry { first: Duration::from_secs(1), most: Duration::from_secs(30) };

pub(super) fn cells() -> Vec<Cell> {
    vec![
        k8s_fake_apiserver::cell(),
        config_sources::cell(),
        ::metrics::cell(),
        maps::cell(),
        tunnel::cell(),
        ::subnet::cell(),
        module("health", "The table", status::table()),
    ]
}

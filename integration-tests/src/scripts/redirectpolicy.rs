//! Local redirect policies beside the load balancer: objects from the tracker, real maps as root and otherwise maps in memory.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive_script::Retry;
use loadbalancer_redirectpolicy::testing::FakeSkipMaps;
use loadbalancer_redirectpolicy::{KernelSkipMaps, SkipMapsProvider};
use maps::{FamilyConfig, MapsConfig, Specs};

use super::loadbalancer::{self, FaultConfig};

/// Nothing fails on purpose.
pub(super) const DEFAULTS: &[&str] = &[
    "--enable-local-redirect-policy",
    "--kube-proxy-replacement=true",
    "--lb-test-fault-probability=0",
    // Objects of one command are taken together, also on a busy machine.
    "--lb-reflector-wait-time=20ms",
];

/// One operation of ten fails.
pub(super) const FAKE_DEFAULTS: &[&str] = &[
    "--enable-local-redirect-policy",
    "--kube-proxy-replacement=true",
    "--lb-retry-backoff-min=10ms",
    "--lb-retry-backoff-max=10ms",
    "--lb-reflector-wait-time=20ms",
];

pub(super) const RETRY: Retry = Retry { first: Duration::from_millis(10), most: Duration::from_millis(500) };

/// Maps of the kernel if they can be had.
pub(super) fn cells() -> Vec<Cell> {
    if rustix::process::geteuid().is_root() {
        of(loadbalancer::kernel_maps(), kernel_maps())
    } else {
        fake_cells()
    }
}

/// Maps in memory; needs no root.
pub(super) fn fake_cells() -> Vec<Cell> {
    of(loadbalancer::fake_maps(), fake_maps())
}

fn of(lb_maps: Cell, skip_maps: Cell) -> Vec<Cell> {
    let mut cells = loadbalancer::balancer(lb_maps);
    cells.extend([loadbalancer_redirectpolicy::control_plane(), skip_maps]);
    cells
}

/// Maps without other owners.
fn kernel_maps() -> Cell {
    let provider = |config: Config<MapsConfig>, families: Config<FamilyConfig>| {
        let families = (*families).clone();
        let specs = Specs::new((*config).clone(), families.clone());
        let open = move || Ok(Arc::new(KernelSkipMaps::unpinned(&specs, &families)?) as Arc<_>);
        Arc::new(SkipMapsProvider::new(open))
    };
    module("loadbalancer-skip-maps", "Skip maps of the kernel", [provide(provider)])
}

/// Maps in memory.
fn fake_maps() -> Cell {
    let provider = |faults: Config<FaultConfig>| {
        let maps = Arc::new(FakeSkipMaps::new(faults.lb_test_fault_probability));
        Arc::new(SkipMapsProvider::new(move || Ok(maps.clone())))
    };
    module("loadbalancer-skip-maps", "Skip maps in memory that fail", [provide(provider)])
}

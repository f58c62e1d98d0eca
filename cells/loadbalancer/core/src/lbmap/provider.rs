//! The source of the load balancer maps: pinned ones in the agent, others in tests.

use std::fmt;
use std::sync::Arc;

use hive::prelude::*;
use maps::{DriftChecks, FamilyConfig, Maps};
use metrics::Metrics;

use crate::lbmap::kernel::KernelMaps;
use crate::lbmap::rows::{LbMaps, MapError};
use crate::metrics::MapOperations;

type Open = dyn Fn() -> Result<Arc<dyn LbMaps>, MapError> + Send + Sync;

/// Opens the load balancer maps, and reports drift checks of them.
pub struct LbMapsProvider {
    open: Box<Open>,
    pub(crate) comparisons: Arc<DriftChecks>,
}

impl LbMapsProvider {
    /// Returns a provider with a function that opens the maps when the agent starts; it is called again after a
    /// failure.
    pub fn new(
        open: impl Fn() -> Result<Arc<dyn LbMaps>, MapError> + Send + Sync + 'static,
    ) -> LbMapsProvider {
        LbMapsProvider { open: Box::new(open), comparisons: Arc::default() }
    }

    /// Returns a provider of the node's pinned maps.
    pub fn pinned(maps: Arc<Maps>, families: FamilyConfig) -> LbMapsProvider {
        LbMapsProvider::counting(maps, families, MapOperations::default())
    }

    fn counting(maps: Arc<Maps>, families: FamilyConfig, operations: MapOperations) -> LbMapsProvider {
        let comparisons = maps.comparisons().clone();
        let open = move || {
            let opened = KernelMaps::open(&maps, &families)?.with_operations(operations.clone());
            Ok(Arc::new(opened) as Arc<dyn LbMaps>)
        };
        LbMapsProvider { open: Box::new(open), comparisons }
    }

    pub(crate) fn open(&self) -> Result<Arc<dyn LbMaps>, MapError> {
        (self.open)()
    }
}

impl fmt::Debug for LbMapsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LbMapsProvider")
    }
}

/// Provides the pinned maps to the reconciler.
pub(crate) fn pinned() -> Cell {
    let provider = |maps: Arc<Maps>, families: Config<FamilyConfig>, metrics: Option<Arc<Metrics>>| {
        let operations = MapOperations::default();
        if let Some(metrics) = metrics {
            operations.register(&metrics);
        }
        Arc::new(LbMapsProvider::counting(maps, (*families).clone(), operations))
    };
    module("loadbalancer-maps", "The pinned maps of the load balancer", [provide(provider)])
}

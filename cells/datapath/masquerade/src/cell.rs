//! The wiring: the options, checked with those of routing, and whether the programs masquerade.

use std::sync::Arc;

use hive::prelude::*;
use maps::FamilyConfig;
use tunnel::Tunnel;

use crate::{BpfMasquerading, Error, MasqueradeConfig, check};

/// Provides the options of masquerading, and [`BpfMasquerading`].
pub fn cell() -> Cell {
    module(
        "masquerade",
        "Addresses of packets that leave the cluster",
        [config::<MasqueradeConfig>(), provide(new_masquerading)],
    )
}

fn new_masquerading(
    config: Config<MasqueradeConfig>,
    families: Config<FamilyConfig>,
    tunnel: Arc<Tunnel>,
) -> Result<Arc<BpfMasquerading>, Error> {
    check(&config, &families, &tunnel)?;
    Ok(Arc::default())
}

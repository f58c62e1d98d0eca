//! The wiring: the options, as one value.

use std::sync::Arc;

use hive::prelude::*;
use maps::FamilyConfig;

use crate::{EndpointRoutesConfig, Error, MtuConfig, Tunnel, TunnelConfig};

/// Provides [`Tunnel`].
pub fn cell() -> Cell {
    module(
        "tunnel",
        "Routing between nodes",
        [
            config::<TunnelConfig>(),
            config::<MtuConfig>(),
            config::<EndpointRoutesConfig>(),
            provide(new_tunnel),
        ],
    )
}

fn new_tunnel(
    config: Config<TunnelConfig>,
    mtu: Config<MtuConfig>,
    families: Config<FamilyConfig>,
) -> Result<Arc<Tunnel>, Error> {
    let tunnel = Tunnel::new(&config, &families)?;
    mtu.check(&tunnel)?;
    Ok(Arc::new(tunnel))
}

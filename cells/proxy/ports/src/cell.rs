//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use statedb::RwTable;

use crate::config::ProxyConfig;
use crate::handle::Proxies;
use crate::port::ProxyPort;
use crate::redirect::EndpointRedirect;

/// Provides `Arc<Proxies>` and the tables `proxy-ports` and `proxy-redirects`.
pub fn cell() -> Cell {
    module(
        "proxy-ports",
        "Ports of proxies",
        [
            config::<ProxyConfig>(),
            statedb::table::<ProxyPort>(),
            statedb::table::<EndpointRedirect>(),
            provide(proxies),
        ],
    )
}

fn proxies(
    config: Config<ProxyConfig>,
    ports: Arc<RwTable<ProxyPort>>,
    redirects: Arc<RwTable<EndpointRedirect>>,
) -> Arc<Proxies> {
    Arc::new(Proxies::new((*ports).clone(), (*redirects).clone(), (*config).clone()))
}

//! Senders of which XDP drops all packets, as `GET|PATCH|DELETE /prefilter` have them; the maps are their only place.
//!
//! Sibling folders that it uses: none.

mod rest;
mod senders;

use std::sync::Arc;

use api::Route;
use hive::Settings;
use hive::prelude::*;
use maps::{FamilyConfig, Maps};

use crate::prefilter::senders::Senders;

/// Options of the prefilter.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
pub struct PrefilterConfig {
    /// Drop packets of senders that the API lists (/prefilter), by XDP: needs bpf-lb-acceleration
    #[flag(default = false)]
    pub enable_xdp_prefilter: bool,
}

/// Creates the operations, if the prefilter is on.
pub(crate) fn new_routes(
    config: Config<PrefilterConfig>,
    families: Config<FamilyConfig>,
    settings: Arc<Settings>,
    maps: Arc<Maps>,
) -> Members<Route> {
    if !config.enable_xdp_prefilter {
        return Members(Vec::new());
    }
    let mode = settings.get("bpf-lb-acceleration").map_or("", |setting| setting.value.as_str());
    if matches!(mode, "" | "disabled") {
        tracing::warn!(
            "enable-xdp-prefilter has no effect without XDP on devices: set bpf-lb-acceleration to best-effort or native"
        );
    }
    Members(rest::routes(Arc::new(Senders::new(maps, &families))))
}

//! The datapath's part of the daemon status.

use std::sync::{Arc, OnceLock};

use api::StatusSource;
use devices::Device;
use hive::prelude::*;
use maps::{ClockConfig, Maps};
use statedb::Table;
use tunnel::Tunnel;

use crate::config::LoaderConfig;

/// Creates the datapath's part of `GET /healthz`.
pub(crate) fn new_status(
    config: Config<LoaderConfig>,
    clock: Config<ClockConfig>,
    maps: Arc<Maps>,
    devices: Arc<Table<Device>>,
    tunnel: Arc<Tunnel>,
) -> Member<StatusSource> {
    let probed = OnceLock::new();
    let source = move |status: &mut api_models::StatusResponse| {
        if let bpf::Clock::Jiffies { hz, .. } = probed.get_or_init(|| clock.clock()) {
            let (mode, hertz) = ("jiffies".to_owned(), i64::from(*hz));
            status.clock_source = Some(api_models::ClockSource { mode, hertz });
        }
        let tcx = config.enable_tcx && maps.features().tcx;
        status.attach_mode = if tcx { "tcx" } else { "tc" }.to_owned();
        if let Some(routing) = &mut status.routing {
            routing.intra_host_routing_mode = config.host_routing().word().to_owned();
            if tunnel.is_tunnel() {
                routing.inter_host_routing_mode = "Tunnel".to_owned();
                routing.tunnel_protocol = tunnel.protocol.as_str().to_owned();
            }
        }
        if let Some(firewall) = &mut status.host_firewall {
            let snapshot = devices.snapshot();
            let names = devices.list(&snapshot, Device::by_selected(true)).map(|device| device.name.clone());
            firewall.devices = names.collect::<Vec<_>>().into();
        }
    };
    Member(StatusSource::new("datapath", source))
}

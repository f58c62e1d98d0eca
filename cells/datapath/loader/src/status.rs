//! The datapath's part of the daemon status.

use std::sync::{Arc, OnceLock};

use api::StatusSource;
use api_models::ServedDevice;
use devices::Device;
use hive::prelude::*;
use maps::{ClockConfig, Maps};
use statedb::Table;
use tunnel::Tunnel;

use crate::config::LoaderConfig;
use crate::programs::host_routing::HostRouting;

/// Creates the datapath's part of `GET /healthz`.
pub(crate) fn new_status(
    config: Config<LoaderConfig>,
    clock: Config<ClockConfig>,
    maps: Arc<Maps>,
    devices: Arc<Table<Device>>,
    tunnel: Arc<Tunnel>,
    host_routing: Arc<HostRouting>,
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
            routing.intra_host_routing_mode = host_routing.word().to_owned();
            if tunnel.is_tunnel() {
                routing.inter_host_routing_mode = "Tunnel".to_owned();
                routing.tunnel_protocol = tunnel.protocol.as_str().to_owned();
            }
        }
        if let Some(firewall) = &mut status.host_firewall {
            let snapshot = devices.snapshot();
            let names = devices.list(&snapshot, Device::by_selected(true)).map(|device| device.name.clone());
            firewall.mode = if config.enable_host_firewall { "Enabled" } else { "Disabled" }.to_owned();
            firewall.devices = names.collect::<Vec<_>>().into();
        }
        let snapshot = devices.snapshot();
        let served = devices.list(&snapshot, Device::by_selected(true)).map(|device| served(device));
        let served: Vec<ServedDevice> = served.collect();
        let replacement = status.kube_proxy_replacement.get_or_insert_default();
        replacement.devices = served.iter().map(|device| device.name.clone()).collect::<Vec<_>>().into();
        replacement.device_list = served.into();
    };
    Member(StatusSource::new("datapath", source))
}

/// Returns a device that faces the network with its addresses, other than those of the host alone.
fn served(device: &Device) -> ServedDevice {
    const SCOPE_HOST: u8 = 254;
    let ips = device.addrs.iter().filter(|address| address.scope < SCOPE_HOST);
    let ips: Vec<String> = ips.map(|address| address.addr.to_string()).collect();
    ServedDevice { ip: ips.into(), name: device.name.clone() }
}

#[cfg(test)]
mod tests {
    use devices::{DeviceAddress, Link};

    use super::*;

    #[test]
    fn devices_are_reported_with_their_addresses() {
        let address = |addr: &str, scope| DeviceAddress {
            addr: addr.parse().unwrap(),
            secondary: false,
            scope,
            prefix_len: 24,
        };
        let device = Device {
            link: Link { name: "eth0".to_owned(), ..Link::default() },
            addrs: vec![address("192.0.2.1", 0), address("fe80::1", 253), address("127.0.0.1", 254)],
            ..Device::default()
        };
        let served = served(&device);
        assert_eq!(served.name, "eth0");
        assert_eq!(*served.ip, ["192.0.2.1", "fe80::1"]);
    }
}

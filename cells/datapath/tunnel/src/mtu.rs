//! The MTU of devices and of routes between pods.

use devices::Device;

use crate::Tunnel;

/// The MTU of a node without external devices.
const DEFAULT_MTU: u32 = 1500;

/// The MTU of pods. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Pods and CNI")]
pub struct MtuConfig {
    /// MTU of pods' devices, 0 for that of the node's devices
    #[flag(default = 0, unit = "bytes")]
    pub mtu: u32,
}

impl MtuConfig {
    /// Returns the MTU of pods' devices and of the agent's: the option, or else the smallest MTU of the external devices.
    pub fn device_mtu<'a>(&self, devices: impl Iterator<Item = &'a Device>) -> u32 {
        if self.mtu > 0 {
            return self.mtu;
        }
        let smallest =
            devices.filter(|device| device.selected).map(|device| device.mtu).filter(|mtu| *mtu > 0).min();
        smallest.unwrap_or(DEFAULT_MTU)
    }
}

impl Tunnel {
    /// Returns the MTU of routes to other nodes' pods: the devices' without the headers of the tunnel.
    #[must_use]
    pub fn route_mtu(&self, device_mtu: u32) -> u32 {
        match device_mtu.saturating_sub(self.overhead()) {
            0 => DEFAULT_MTU - self.overhead(),
            mtu => mtu,
        }
    }
}

#[cfg(test)]
mod tests {
    use devices::Link;

    use super::*;
    use crate::{Family, Protocol, RoutingMode};

    fn device(mtu: u32, selected: bool) -> Device {
        Device { link: Link { mtu, ..Link::default() }, selected, ..Device::default() }
    }

    #[test]
    fn the_smallest_external_device_decides() {
        let devices = [device(1400, false), device(9000, true), device(1450, true), device(0, true)];
        assert_eq!(MtuConfig { mtu: 0 }.device_mtu(devices.iter()), 1450);
        assert_eq!(MtuConfig { mtu: 1300 }.device_mtu(devices.iter()), 1300);
        assert_eq!(MtuConfig { mtu: 0 }.device_mtu(devices[..1].iter()), 1500);
    }

    #[test]
    fn routes_leave_room_for_the_headers() {
        let tunnel = |mode, underlay| Tunnel {
            mode,
            protocol: Protocol::Vxlan,
            port: 8472,
            source_ports: (0, 0),
            underlay,
        };
        assert_eq!(tunnel(RoutingMode::Tunnel, Family::Ipv4).route_mtu(1500), 1450);
        assert_eq!(tunnel(RoutingMode::Tunnel, Family::Ipv6).route_mtu(9000), 8930);
        assert_eq!(tunnel(RoutingMode::Native, Family::Ipv6).route_mtu(9000), 9000);
        assert_eq!(tunnel(RoutingMode::Tunnel, Family::Ipv4).route_mtu(40), 1450);
    }
}

//! The MTU of devices and of routes between pods.

use std::ops::RangeInclusive;

use devices::Device;

use crate::{Error, Tunnel};

/// The MTU of a node without external devices.
const DEFAULT_MTU: u32 = 1500;
/// The least MTU of IPv4 (RFC 791, section 3.2), which the kernel's Ethernet devices take as well (`ETH_MIN_MTU`).
const MIN_MTU_V4: u32 = 68;
/// The least MTU of IPv6 (RFC 8200, section 5): the kernel removes IPv6 from a device with a smaller one.
const MIN_MTU_V6: u32 = 1280;
/// The largest MTU of the kernel's virtual devices (`ETH_MAX_MTU`), and the largest packet of IPv4.
const MAX_MTU: u32 = 65_535;

/// The MTU of pods. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Pods and CNI")]
pub struct MtuConfig {
    /// MTU of pods' devices, 0 for that of the node's devices
    #[flag(default = 0, unit = "bytes")]
    pub mtu: u32,
}

impl MtuConfig {
    /// Returns the MTU of pods' devices and of the agent's: the option, or else the smallest MTU of the external devices,
    /// within the [bounds](Tunnel::mtu_bounds).
    pub fn device_mtu<'a>(&self, tunnel: &Tunnel, devices: impl Iterator<Item = &'a Device>) -> u32 {
        if self.mtu > 0 {
            return self.mtu;
        }
        let smallest = external(devices).map(|device| device.mtu).min();
        let bounds = tunnel.mtu_bounds();
        smallest.unwrap_or(DEFAULT_MTU).clamp(*bounds.start(), *bounds.end())
    }

    /// Checks the option alone.
    ///
    /// # Errors
    /// It is outside of the [bounds](Tunnel::mtu_bounds).
    pub fn check(&self, tunnel: &Tunnel) -> Result<(), Error> {
        let (mtu, bounds) = (self.mtu, tunnel.mtu_bounds());
        let (bound, reason) = (*bounds.start(), tunnel.reason());
        match mtu {
            0 => Ok(()),
            _ if mtu < bound => Err(Error::SmallMtu { mtu, bound, reason }),
            _ if mtu > *bounds.end() => Err(Error::LargeMtu { mtu, bound: *bounds.end() }),
            _ => Ok(()),
        }
    }

    /// Returns the external devices that packets of the size of [`device_mtu`](Self::device_mtu) do not fit into, with the
    /// reason and the remedy: those with an MTU below the bounds; all of them if the option is larger than each.
    pub fn unfit_devices<'a>(
        &self,
        tunnel: &Tunnel,
        devices: impl Iterator<Item = &'a Device>,
    ) -> Vec<UnfitDevice> {
        let (bound, reason) = (*tunnel.mtu_bounds().start(), tunnel.reason());
        let devices: Vec<&Device> = external(devices).collect();
        let is_too_large = self.mtu > 0 && devices.iter().all(|device| device.mtu < self.mtu);
        let unfit = |device: &&Device| {
            let (name, mtu) = (device.name.clone(), device.mtu);
            match mtu < bound {
                true => Some(UnfitDevice::BelowBound { name, mtu, bound, reason }),
                false if is_too_large => Some(UnfitDevice::BelowOption { name, mtu, option: self.mtu }),
                false => None,
            }
        };
        devices.iter().filter_map(unfit).collect()
    }
}

/// A device of the network that packets of pods do not fit into.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitDevice {
    /// The MTU is too small for what has to pass.
    #[error(
        "device {name}: an MTU of {mtu} is less than {bound}, {reason}; pods have {bound}; set the device's MTU to {bound} \
         or more, or leave the device out of option devices"
    )]
    BelowBound {
        /// The device.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The least possible MTU.
        bound: u32,
        /// The reason for the bound.
        reason: &'static str,
    },
    /// The option is larger than the MTU of all devices.
    #[error(
        "device {name}: an MTU of {mtu} is less than option mtu: {option}, which no device of the network has; set the \
         device's MTU to {option}, or the option to {mtu} or 0"
    )]
    BelowOption {
        /// The device.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The option.
        option: u32,
    },
}

/// The devices that face the network, but those that have no MTU.
fn external<'a>(devices: impl Iterator<Item = &'a Device>) -> impl Iterator<Item = &'a Device> {
    devices.filter(|device| device.selected && device.mtu > 0)
}

impl Tunnel {
    /// Returns the MTUs that devices of pods may have: the least of IPv6 if pods have such addresses, else the least of IPv4
    /// behind the headers of the tunnel; at most what the kernel's devices can, which are the headers smaller with a tunnel.
    #[must_use]
    pub fn mtu_bounds(&self) -> RangeInclusive<u32> {
        let least = if self.is_ipv6_enabled { MIN_MTU_V6 } else { MIN_MTU_V4 + self.overhead() };
        least..=MAX_MTU - self.overhead()
    }

    /// Returns the reason for the lower bound.
    fn reason(&self) -> &'static str {
        match (self.is_ipv6_enabled, self.is_tunnel()) {
            (true, _) => "the minimum of IPv6 (enable-ipv6)",
            (false, true) => "the minimum of IPv4 and the headers of the tunnel",
            (false, false) => "the minimum of IPv4",
        }
    }

    /// Returns the MTU of routes to other nodes' pods: the devices' without the headers of the tunnel.
    #[must_use]
    pub fn route_mtu(&self, device_mtu: u32) -> u32 {
        device_mtu.saturating_sub(self.overhead()).max(MIN_MTU_V4)
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

    fn tunnel(mode: RoutingMode, underlay: Family, is_ipv6_enabled: bool) -> Tunnel {
        let protocol = Protocol::Vxlan;
        Tunnel { mode, protocol, port: 8472, source_ports: (0, 0), underlay, is_ipv6_enabled }
    }

    const TUNNEL: RoutingMode = RoutingMode::Tunnel;
    const NATIVE: RoutingMode = RoutingMode::Native;

    #[test]
    fn the_smallest_external_device_decides() {
        let devices = [device(1400, false), device(9000, true), device(1450, true), device(0, true)];
        let tunnel = tunnel(TUNNEL, Family::Ipv4, true);
        assert_eq!(MtuConfig { mtu: 0 }.device_mtu(&tunnel, devices.iter()), 1450);
        assert_eq!(MtuConfig { mtu: 1300 }.device_mtu(&tunnel, devices.iter()), 1300);
        assert_eq!(MtuConfig { mtu: 0 }.device_mtu(&tunnel, devices[..1].iter()), 1500);
    }

    #[test]
    fn routes_leave_room_for_the_headers() {
        assert_eq!(tunnel(TUNNEL, Family::Ipv4, true).route_mtu(1500), 1450);
        assert_eq!(tunnel(TUNNEL, Family::Ipv6, true).route_mtu(9000), 8930);
        assert_eq!(tunnel(NATIVE, Family::Ipv6, true).route_mtu(9000), 9000);
        assert_eq!(tunnel(TUNNEL, Family::Ipv4, false).route_mtu(40), 68);
    }

    #[test]
    fn an_option_outside_of_the_bounds_is_refused_with_the_nearest_good_value() {
        let refused = |mtu: u32, tunnel: &Tunnel| MtuConfig { mtu }.check(tunnel).map_err(|e| e.to_string());
        let [dual, single] = [true, false].map(|is_ipv6| tunnel(TUNNEL, Family::Ipv4, is_ipv6));
        let [native, single_native] = [true, false].map(|is_ipv6| tunnel(NATIVE, Family::Ipv4, is_ipv6));
        for (mtu, tunnel) in [
            (0, &dual),
            (1280, &dual),
            (65_485, &dual),
            (118, &single),
            (1280, &native),
            (65_535, &native),
            (68, &single_native),
        ] {
            assert_eq!(refused(mtu, tunnel), Ok(()), "{mtu} {tunnel:?}");
        }
        for (mtu, tunnel, words) in [
            (1279, &dual, ["1279 is less than 1280", "IPv6 (enable-ipv6)", "set 1280 or more"]),
            (1, &native, ["1 is less than 1280", "IPv6", "set 1280 or more"]),
            (50, &single, ["50 is less than 118", "headers of the tunnel", "set 118 or more"]),
            (67, &single_native, ["67 is less than 68", "the minimum of IPv4", "set 68 or more"]),
            (
                65_486,
                &dual,
                ["65486 is more than 65485", "the kernel's virtual devices", "set 65485 or less"],
            ),
            (u32::MAX, &native, ["4294967295 is more than 65535", "devices", "set 65535 or less"]),
        ] {
            let error = refused(mtu, tunnel).unwrap_err();
            assert!(error.starts_with("option mtu: "), "{error}");
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
            assert!(error.contains("or 0 for that of the node's devices"), "{error}");
        }
    }

    #[test]
    fn devices_outside_of_the_bounds_are_named_and_pods_stay_within() {
        let [dual, single] = [true, false].map(|is_ipv6| tunnel(TUNNEL, Family::Ipv4, is_ipv6));
        let named = |mtu: u32, name: &str, selected: bool| {
            let link = Link { mtu, name: name.to_owned(), ..Link::default() };
            Device { link, selected, ..Device::default() }
        };
        let devices = [named(1279, "eth0", true), named(9000, "eth1", true), named(70, "other", false)];
        let automatic = MtuConfig { mtu: 0 };
        let unfit = |config: MtuConfig, tunnel: &Tunnel, devices: &[Device]| {
            let unfit = config.unfit_devices(tunnel, devices.iter());
            unfit.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let expected = "device eth0: an MTU of 1279 is less than 1280, the minimum of IPv6 (enable-ipv6); pods have 1280; set \
                        the device's MTU to 1280 or more, or leave the device out of option devices";
        assert_eq!(unfit(automatic, &dual, &devices), [expected]);
        assert_eq!(automatic.device_mtu(&dual, devices.iter()), 1280);
        assert_eq!(unfit(automatic, &single, &devices), [] as [&str; 0], "IPv4 passes");
        assert_eq!(automatic.device_mtu(&single, devices.iter()), 1279);
        let tiny = [named(68, "eth0", true)];
        assert!(unfit(automatic, &single, &tiny)[0].contains("68 is less than 118, the minimum of IPv4 and"));
        assert_eq!(automatic.device_mtu(&single, tiny.iter()), 118);
        let huge = [named(100_000, "dummy0", true)];
        assert_eq!(
            (automatic.device_mtu(&dual, huge.iter()), unfit(automatic, &dual, &huge).len()),
            (65_485, 0)
        );

        // The option may be that of one network among several, but not larger than each of them.
        assert_eq!(unfit(MtuConfig { mtu: 9000 }, &single, &devices), [] as [&str; 0]);
        let larger = unfit(MtuConfig { mtu: 9001 }, &single, &devices);
        assert_eq!(larger.len(), 2, "{larger:?}");
        assert!(
            larger[1].contains("device eth1: an MTU of 9000 is less than option mtu: 9001"),
            "{larger:?}"
        );
    }
}

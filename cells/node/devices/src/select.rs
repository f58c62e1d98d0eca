//! The selection of devices that face the network: those of the options, or detected by rules.

use std::net::IpAddr;

use crate::{Device, Route, device};

/// Prefixes of devices of Cilium and of other tools, which detection never selects.
const EXCLUDED_PREFIXES: [&str; 5] = ["cilium_", "lo", "lxc", "cni", "docker"];
const EXCLUDED_FLAGS: u32 = device::IFF_SLAVE | device::IFF_LOOPBACK;

/// Facts about the routes of one device, for the rules.
pub trait DeviceRoutes {
    /// Whether a default route of the main table uses it.
    fn has_default(&self) -> bool;
    /// Whether a route to a global unicast destination uses it.
    fn has_global_unicast(&self) -> bool;
}

impl DeviceRoutes for &[Route] {
    fn has_default(&self) -> bool {
        self.iter().any(Route::is_default)
    }

    fn has_global_unicast(&self) -> bool {
        self.iter().any(|route| is_global_unicast(route.key.dst.ip()))
    }
}

/// Options `devices` and `force-device-detection` as rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names; a trailing `+` matches any suffix. Empty: detect.
    pub filter: Vec<String>,
    /// Detect devices also when names are configured.
    pub force_detection: bool,
}

impl Selection {
    /// Whether a name is listed.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.filter.iter().any(|entry| match entry.strip_suffix('+') {
            Some(prefix) => name.starts_with(prefix),
            None => name == entry,
        })
    }

    /// Checks whether `device` is selected; the error is the reason why not, in Cilium's wording. `routes` is read only
    /// if the rules need it.
    pub fn check(&self, device: &Device, routes: &impl DeviceRoutes) -> Result<(), String> {
        if device.name.is_empty() {
            return Err("link not seen yet".to_owned());
        }
        if device.addrs.is_empty() {
            return Err("device has no addresses".to_owned());
        }
        if !device.is_up() {
            return Err(format!(
                "missing required flag (mask=0x{:x}, flags=0x{:x})",
                device::IFF_UP,
                device.raw_flags
            ));
        }
        if !self.filter.is_empty() {
            if self.matches(&device.name) {
                return Ok(());
            }
            if !self.force_detection {
                let list = self.filter.join(" ");
                return Err(format!("not matching user filter [{list}]"));
            }
        }
        self.detect(device, routes)
    }

    fn detect(&self, device: &Device, routes: &impl DeviceRoutes) -> Result<(), String> {
        if device.raw_flags & EXCLUDED_FLAGS != 0 {
            return Err(format!(
                "excluded flag set (mask=0x{EXCLUDED_FLAGS:x}, flags=0x{:x})",
                device.raw_flags
            ));
        }
        if device.master != 0 {
            return Err(format!("bridged or bonded to ifindex {}", device.master));
        }
        let prefix = EXCLUDED_PREFIXES.iter().find(|p| device.name.starts_with(**p));
        if let Some(prefix) = prefix {
            return Err(format!("excluded prefix \"{prefix}\""));
        }
        if matches!(device.kind.as_str(), "bridge" | "openvswitch") {
            return Err("bridge-like device, use --devices to override".to_owned());
        }
        // A veth belongs to a pod of another plugin, unless this node is a container itself (kind).
        if device.kind == "veth" && self.filter.is_empty() && !routes.has_default() {
            return Err("veth without default route".to_owned());
        }
        if !routes.has_global_unicast() {
            return Err("no global unicast routes".to_owned());
        }
        Ok(())
    }
}

/// Whether an address is neither unspecified, loopback, multicast, link-local nor broadcast (Go's `IsGlobalUnicast`).
pub(crate) fn is_global_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified()
                || v4.is_loopback()
                || v4.is_multicast()
                || v4.is_link_local()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceAddress, Link, RouteKey};

    fn device(name: &str, kind: &str) -> Device {
        Device {
            link: Link {
                index: 2,
                name: name.into(),
                kind: kind.into(),
                raw_flags: device::IFF_UP,
                ..Link::default()
            },
            addrs: vec![DeviceAddress {
                addr: [10, 0, 0, 1].into(),
                secondary: false,
                scope: 0,
                prefix_len: 24,
            }],
            ..Device::default()
        }
    }

    fn route(dst: &str) -> Route {
        Route {
            key: RouteKey { table: crate::TABLE_MAIN, link_index: 2, dst: dst.parse().unwrap(), priority: 0 },
            kind: 1,
            scope: 0,
            src: None,
            gateway: None,
            mtu: 0,
        }
    }

    fn detect(device: &Device, routes: &[Route]) -> String {
        let result = Selection::default().check(device, &routes);
        result.err().unwrap_or_default()
    }

    #[test]
    fn rules_of_detection() {
        let subnet = [route("10.0.0.0/24")];
        let both = [route("0.0.0.0/0"), route("10.0.0.0/24")];
        assert_eq!(detect(&device("eth0", "device"), &subnet), "");
        assert_eq!(detect(&device("eth0", "veth"), &both), "");
        assert_eq!(detect(&device("eth0", "veth"), &subnet), "veth without default route");
        assert_eq!(detect(&device("eth0", "device"), &[route("fe80::/64")]), "no global unicast routes");
        assert_eq!(detect(&device("lxc12", "veth"), &both), "excluded prefix \"lxc\"");
        assert_eq!(detect(&device("br0", "bridge"), &both), "bridge-like device, use --devices to override");
        let mut slave = device("eth0", "device");
        slave.link.master = 7;
        assert_eq!(detect(&slave, &both), "bridged or bonded to ifindex 7");
        let mut down = device("eth0", "device");
        down.link.raw_flags = 0x1002;
        assert_eq!(detect(&down, &both), "missing required flag (mask=0x1, flags=0x1002)");
        let mut bare = device("eth0", "device");
        bare.addrs.clear();
        assert_eq!(detect(&bare, &both), "device has no addresses");
        let mut lo = device("lo", "device");
        lo.link.raw_flags = 0x49;
        assert_eq!(detect(&lo, &both), "excluded flag set (mask=0x808, flags=0x49)");
    }

    #[test]
    fn configured_names_override_detection() {
        let selection = Selection { filter: vec!["eth+".into(), "br0".into()], force_detection: false };
        assert!(selection.check(&device("eth7", "veth"), &[].as_slice()).is_ok());
        assert!(selection.check(&device("br0", "bridge"), &[].as_slice()).is_ok());
        assert_eq!(
            selection.check(&device("ens1", "device"), &[].as_slice()),
            Err("not matching user filter [eth+ br0]".into())
        );
        let forced = Selection { force_detection: true, ..selection };
        let routes = [route("10.0.0.0/24")];
        assert!(forced.check(&device("ens1", "device"), &routes.as_slice()).is_ok());
    }
}

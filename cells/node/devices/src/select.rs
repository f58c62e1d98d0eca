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

/// Kind of devices for routing domains, whose members are devices of their own.
const KIND_VRF: &str = "vrf";

impl DeviceRoutes for &[Route] {
    fn has_default(&self) -> bool {
        self.iter().any(Route::is_default)
    }

    fn has_global_unicast(&self) -> bool {
        self.iter().any(|route| is_global_unicast(route.key.dst.ip()))
    }
}

/// Returns the name of a device and its alternative ones.
fn names(device: &Device) -> impl Iterator<Item = &str> + Clone {
    std::iter::once(&*device.name).chain(device.alt_names.iter().map(|name| &**name))
}

/// Options `devices` and `force-device-detection` as rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names or alternative names; a trailing `+` matches any suffix, a leading `!` excludes. The first entry that matches
    /// decides. Empty: detect.
    pub filter: Vec<String>,
    /// Detect devices also when names are configured.
    pub force_detection: bool,
}

impl Selection {
    /// Whether a device of this name is listed.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.verdict(std::iter::once(name)) == Some(true)
    }

    /// Whether a device is listed, by its name or an alternative one.
    #[must_use]
    pub fn lists(&self, device: &Device) -> bool {
        self.verdict(names(device)) == Some(true)
    }

    /// Whether a device with these names is listed or excluded, by the first entry that matches one of them; `None` if
    /// there is no such entry.
    fn verdict<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Option<bool> {
        self.filter.iter().find_map(|entry| {
            let (pattern, is_listed) = match entry.strip_prefix('!') {
                Some(pattern) => (pattern, false),
                None => (&**entry, true),
            };
            let is_match = |name: &str| match pattern.strip_suffix('+') {
                Some(prefix) => name.starts_with(prefix),
                None => name == pattern,
            };
            names.clone().any(is_match).then_some(is_listed)
        })
    }

    /// Checks whether `device` is selected; the error is the reason why not, in Cilium's wording. `routes` is read only
    /// if the rules need it, as is `master`, the kind of the device that it is enslaved to.
    pub fn check(
        &self,
        device: &Device,
        routes: &impl DeviceRoutes,
        master: impl FnOnce() -> Option<String>,
    ) -> Result<(), String> {
        if device.name.is_empty() {
            return Err("link not seen yet".to_owned());
        }
        if !self.filter.is_empty() {
            let unmatched = || Err(format!("not matching user filter [{}]", self.filter.join(" ")));
            match self.verdict(names(device)) {
                // Whatever it is: the kernel's state may follow later.
                Some(true) => return Ok(()),
                Some(false) => return unmatched(),
                None if !self.force_detection => return unmatched(),
                None => {}
            }
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
        self.detect(device, routes, master)
    }

    fn detect(
        &self,
        device: &Device,
        routes: &impl DeviceRoutes,
        master: impl FnOnce() -> Option<String>,
    ) -> Result<(), String> {
        if device.raw_flags & EXCLUDED_FLAGS != 0 {
            return Err(format!(
                "excluded flag set (mask=0x{EXCLUDED_FLAGS:x}, flags=0x{:x})",
                device.raw_flags
            ));
        }
        if device.master != 0 && master().as_deref() != Some(KIND_VRF) {
            return Err(format!("bridged or bonded to ifindex {}", device.master));
        }
        let prefix = EXCLUDED_PREFIXES.iter().find(|p| device.name.starts_with(**p));
        if let Some(prefix) = prefix {
            return Err(format!("excluded prefix \"{prefix}\""));
        }
        if matches!(device.kind.as_str(), "bridge" | "openvswitch") {
            return Err("bridge-like device, use --devices to override".to_owned());
        }
        if device.kind == "ipoib" {
            return Err("IPoIB device, use --devices to override".to_owned());
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
        let result = Selection::default().check(device, &routes, || Some("bridge".to_owned()));
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
        assert_eq!(detect(&device("ib0", "ipoib"), &both), "IPoIB device, use --devices to override");
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
    fn members_of_a_vrf_are_devices_of_their_own() {
        let mut member = device("eth0", "device");
        member.link.master = 7;
        let routes = [route("10.0.0.0/24")];
        let check = |master: Option<&str>| {
            Selection::default().check(&member, &routes.as_slice(), || master.map(str::to_owned)).is_ok()
        };
        assert!(check(Some("vrf")));
        assert!(!check(Some("bond")) && !check(None));
    }

    #[test]
    fn configured_names_override_detection() {
        let of = |filter: &[&str], force_detection| Selection {
            filter: filter.iter().map(|entry| (*entry).to_owned()).collect(),
            force_detection,
        };
        let none: &[Route] = &[];
        let check = |selection: &Selection, device: &Device, routes: &[Route]| {
            selection.check(device, &routes, || None).err().unwrap_or_default()
        };
        let selection = of(&["eth+", "br0", "uplink"], false);
        assert_eq!(check(&selection, &device("eth7", "veth"), none), "");
        assert_eq!(check(&selection, &device("br0", "bridge"), none), "");
        let mut bare = device("eth1", "device");
        bare.addrs.clear();
        bare.link.raw_flags = 0x1002;
        assert_eq!(check(&selection, &bare, none), "", "down and without addresses");
        let other = device("ens1", "device");
        assert_eq!(check(&selection, &other, none), "not matching user filter [eth+ br0 uplink]");
        let mut named = other.clone();
        named.link.alt_names = vec!["enp0s1".to_owned(), "uplink".to_owned()];
        assert_eq!(check(&selection, &named, none), "");
        let routes = [route("10.0.0.0/24")];
        assert_eq!(check(&of(&["eth+"], true), &other, &routes), "");

        // The first entry that matches decides.
        let excluding = of(&["!eth2", "eth+", "!ens+"], true);
        assert_eq!(check(&excluding, &device("eth1", "device"), none), "");
        let text = "not matching user filter [!eth2 eth+ !ens+]";
        assert_eq!(check(&excluding, &device("eth2", "device"), &routes), text);
        assert_eq!(check(&excluding, &other, &routes), text);
        assert_eq!(check(&of(&["eth+", "!eth2"], false), &device("eth2", "device"), none), "");
        assert!(excluding.matches("eth1") && !excluding.matches("eth2") && !excluding.matches("br0"));
    }
}

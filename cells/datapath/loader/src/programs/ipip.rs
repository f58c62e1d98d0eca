//! Outer IP headers: which packets get one, and which ones lose it.

use std::net::IpAddr;

use datapath_abi::{NodeConfig, before_services, ipv4_word, ipv6_words};
use hive::Settings;
use ipnetwork::IpNetwork;
use maps::FamilyConfig;

use crate::programs::direct_return::DirectReturn;

/// The desired devices that add outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpipSettings {
    /// IPv4 has one.
    pub(crate) ipv4: bool,
    /// IPv6 has one.
    pub(crate) ipv6: bool,
    /// The MTU of the devices below.
    pub(crate) mtu: u32,
}

impl IpipSettings {
    /// Returns whether each family has a device.
    pub(crate) fn families(&self) -> [bool; 2] {
        [self.ipv4, self.ipv6]
    }
}

/// How the node handles outer headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ipip {
    /// Packets leave in outer headers (`bpf-lb-dsr-dispatch=ipip`).
    sends: bool,
    /// Outer headers are removed from packets to the node (`enable-ipip-termination`); a node that sends receives, too.
    terminates: bool,
    /// Packets of health probes leave in outer headers, too (`bpf-lb-ipip-sock-mark`).
    probes: bool,
    /// The range of their sources, if programs of XDP write them (`bpf-lb-rss-ipv4-src-cidr`).
    sources_ipv4: Option<IpNetwork>,
    /// The same for IPv6 (`bpf-lb-rss-ipv6-src-cidr`).
    sources_ipv6: Option<IpNetwork>,
}

impl Ipip {
    /// Reads the options, which the load balancer has checked.
    pub(crate) fn new(settings: &Settings, terminates: bool, direct_return: &DirectReturn) -> Self {
        let range = |option: &str| settings.get(option).and_then(|setting| setting.value.parse().ok());
        let sends = direct_return.is_by_ipip();
        let probes = settings.get("bpf-lb-ipip-sock-mark").is_some_and(|setting| setting.value == "true");
        Self {
            sends,
            probes: sends && probes,
            terminates: terminates || sends,
            sources_ipv4: range("bpf-lb-rss-ipv4-src-cidr"),
            sources_ipv6: range("bpf-lb-rss-ipv6-src-cidr"),
        }
    }

    /// Writes the options into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        if self.terminates {
            constants.before_services |= before_services::IPIP;
        }
        if !self.sends {
            return;
        }
        constants.probes = self.probes.into();
        if let Some(range) = self.sources_ipv4
            && let (IpAddr::V4(first), IpAddr::V4(mask)) = (range.network(), range.mask())
        {
            (constants.rss_ipv4, constants.rss_host_ipv4) = (ipv4_word(first), !ipv4_word(mask));
        }
        if let Some(range) = self.sources_ipv6
            && let (IpAddr::V6(first), IpAddr::V6(mask)) = (range.network(), range.mask())
        {
            constants.rss_ipv6 = ipv6_words(first);
            constants.rss_host_ipv6 = ipv6_words(mask).map(|word| !word);
        }
    }

    /// Whether there are devices that add outer headers.
    pub(crate) fn has_devices(&self) -> bool {
        self.sends
    }

    /// Returns the devices that add outer headers, above devices with an MTU; `None` if there are to be none.
    pub(crate) fn devices(&self, families: &FamilyConfig, mtu: u32) -> Option<IpipSettings> {
        let (ipv4, ipv6) = (families.enable_ipv4, families.enable_ipv6);
        self.sends.then_some(IpipSettings { ipv4, ipv6, mtu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_a_prefix_and_the_bits_behind_it() {
        let ipip = Ipip {
            sends: true,
            terminates: true,
            probes: true,
            sources_ipv4: Some("10.200.3.9/22".parse().unwrap()),
            sources_ipv6: Some("2001:db8::/36".parse().unwrap()),
        };
        let mut constants = NodeConfig::default();
        ipip.apply(&mut constants);
        assert_eq!(constants.rss_ipv4.to_ne_bytes(), [10, 200, 0, 0]);
        assert_eq!(constants.rss_host_ipv4.to_ne_bytes(), [0, 0, 3, 255]);
        assert_eq!(constants.rss_ipv6[0].to_ne_bytes(), [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(constants.rss_host_ipv6.map(u32::from_be), [0, 0x0fff_ffff, u32::MAX, u32::MAX]);
        assert_eq!((constants.before_services, constants.probes), (before_services::IPIP, 1));
        let families = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        let devices = Some(IpipSettings { ipv4: true, ipv6: false, mtu: 1400 });
        assert_eq!(ipip.devices(&families, 1400), devices);
        // A node that only receives has no device, and no sources.
        let receives = Ipip { sends: false, ..ipip };
        let mut constants = NodeConfig { before_services: before_services::XDP, ..NodeConfig::default() };
        receives.apply(&mut constants);
        assert_eq!(constants.before_services, before_services::XDP | before_services::IPIP);
        assert_eq!((constants.rss_ipv4, constants.probes), (0, 0));
        assert_eq!((constants.rss_ipv4, receives.devices(&families, 1400)), (0, None));
    }
}

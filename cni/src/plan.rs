//! The plan of an ADD, computed before any change.

use crate::agent::{AgentConfig, HostAddressing, HostFamily, IpamAnswer};
use crate::error::Error;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl Mac {
    /// Returns a locally administered unicast address from six random bytes.
    pub(crate) fn local(mut bytes: [u8; 6]) -> Self {
        bytes[0] = (bytes[0] & 0xfe) | 0x02;
        Self(bytes)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            *byte = parts
                .next()
                .filter(|part| part.len() == 2)
                .and_then(|part| u8::from_str_radix(part, 16).ok())?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// One address of the pod with its routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressPlan {
    pub(crate) ip: IpAddr,
    /// The node's own address of the family, the default gateway of the pod.
    pub(crate) gateway: IpAddr,
    /// In the order of creation: the route to the gateway first, because the others need it.
    pub(crate) routes: Vec<RoutePlan>,
}

impl AddressPlan {
    fn new(ip: IpAddr, gateway: IpAddr, mtu: Option<u32>) -> Self {
        let (any, bits): (IpAddr, u8) = match gateway {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), 32),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), 128),
        };
        let routes = vec![
            RoutePlan { destination: gateway, prefix_length: bits, gateway: None, mtu: None },
            RoutePlan { destination: any, prefix_length: 0, gateway: Some(gateway), mtu },
        ];
        Self { ip, gateway, routes }
    }

    /// Returns the prefix length of a pod's address, the only one in its prefix.
    pub(crate) fn prefix_length(&self) -> u8 {
        if self.ip.is_ipv4() { 32 } else { 128 }
    }

    pub(crate) fn cidr(&self) -> String {
        format!("{}/{}", self.ip, self.prefix_length())
    }
}

/// A route in the pod's namespace; without a gateway it is on-link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutePlan {
    pub(crate) destination: IpAddr,
    pub(crate) prefix_length: u8,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) mtu: Option<u32>,
}

/// Returns the name of the host's end: `lxc` and the first 12 hex digits of the attachment's SHA-256.
pub(crate) fn host_interface(attachment: &str) -> String {
    let digest = Sha256::digest(attachment.as_bytes());
    digest.iter().take(6).fold(String::from("lxc"), |name, byte| format!("{name}{byte:02x}"))
}

/// Returns the pod's addresses, IPv6 first: those that the agent allocated, of the families that the node has enabled.
pub(crate) fn addresses(config: &AgentConfig, ipam: &IpamAnswer) -> Result<Vec<AddressPlan>, Error> {
    let mtu = u32::try_from(config.route_mtu).ok().filter(|mtu| *mtu > 0);
    let HostAddressing { ipv4: host4, ipv6: host6 } = &ipam.host_addressing;
    let mut plans = Vec::new();
    for (address, host) in [(&ipam.address.ipv6, host6), (&ipam.address.ipv4, host4)] {
        let Some(HostFamily { enabled: true, ip: gateway, .. }) = host else { continue };
        if address.is_empty() {
            continue;
        }
        let ip = parse(address, "the IPAM answer")?;
        let gateway = parse(gateway, "the host addressing of the IPAM answer")?;
        plans.push(AddressPlan::new(ip, gateway, mtu));
    }
    if plans.is_empty() { Err(Error::NoAddress) } else { Ok(plans) }
}

/// Parses an address with or without a prefix length, as delegated plugins return it.
pub(crate) fn parse(text: &str, place: &'static str) -> Result<IpAddr, Error> {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse().map_err(|_| Error::InvalidAddress { found: text.into(), place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::AddResult;
    use crate::version::CniVersion;
    use std::path::Path;

    fn both() -> Vec<AddressPlan> {
        let config: AgentConfig = serde_json::from_str(r#"{"routeMTU":1450}"#).unwrap();
        let ipam = r#"{"address":{"ipv4":"10.244.183.160","ipv6":"fd00::5"},"host-addressing":{
            "ipv4":{"enabled":true,"ip":"10.244.71.14"},"ipv6":{"enabled":true,"ip":"fd00::1"}}}"#;
        addresses(&config, &serde_json::from_str(ipam).unwrap()).unwrap()
    }

    #[test]
    fn host_name_of_a_live_agent() {
        assert_eq!(host_interface("cid-p1:eth0"), "lxc66da2a01a005");
    }

    #[test]
    fn macs() {
        assert_eq!(Mac::local([0xff; 6]).to_string(), "fe:ff:ff:ff:ff:ff");
        assert_eq!(Mac::local([0; 6]).to_string(), "02:00:00:00:00:00");
        assert_eq!(Mac::parse("6e:a7:d1:db:66:a5"), Some(Mac([0x6e, 0xa7, 0xd1, 0xdb, 0x66, 0xa5])));
        for bad in ["", "6e:a7:d1:db:66", "6e:a7:d1:db:66:a5:00", "6e:a7:d1:db:66:g5", "6:a7:d1:db:66:a5"] {
            assert_eq!(Mac::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_disabled_family_gets_nothing() {
        let config: AgentConfig = serde_json::from_str("{}").unwrap();
        let ipam = r#"{"address":{"ipv4":"10.0.0.5","ipv6":"fd00::5"},"host-addressing":{
            "ipv4":{"ip":"10.0.0.1"},"ipv6":{"enabled":true,"ip":"fd00::1"}}}"#;
        let plans = addresses(&config, &serde_json::from_str(ipam).unwrap()).unwrap();
        assert_eq!(plans.iter().map(AddressPlan::cidr).collect::<Vec<_>>(), ["fd00::5/128"]);
        assert_eq!(plans[0].routes[1].mtu, None);
        let none = r#"{"address":{"ipv4":"10.0.0.5"},"host-addressing":{"ipv4":{"ip":"10.0.0.1"}}}"#;
        let error = addresses(&config, &serde_json::from_str(none).unwrap()).unwrap_err();
        insta::assert_snapshot!(error, @"IPAM provided neither an IPv4 nor an IPv6 address that the node has enabled");
        let bad =
            r#"{"address":{"ipv4":"10.0.0"},"host-addressing":{"ipv4":{"enabled":true,"ip":"10.0.0.1"}}}"#;
        let error = addresses(&config, &serde_json::from_str(bad).unwrap()).unwrap_err();
        insta::assert_snapshot!(error, @r#"invalid address "10.0.0" in the IPAM answer"#);
    }

    #[test]
    fn result_in_every_shape() {
        let addresses = both();
        let result = AddResult {
            host_interface: "lxc66da2a01a005",
            host_mac: "be:5e:28:23:ab:a6",
            interface: "eth0",
            mac: "6e:a7:d1:db:66:a5",
            sandbox: Path::new("/var/run/netns/p1"),
            addresses: &addresses,
        };
        insta::assert_snapshot!("result-0.2.0", result.to_json(CniVersion::V0_2_0));
        insta::assert_snapshot!("result-0.4.0", result.to_json(CniVersion::V0_4_0));
        insta::assert_snapshot!("result-1.1.0", result.to_json(CniVersion::V1_1_0));
    }
}

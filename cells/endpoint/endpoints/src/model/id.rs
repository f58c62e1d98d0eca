//! The ways an endpoint can be named in a request: an id, an address, a pod, a container.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::model::error::BadId;

/// The id of an endpoint on this node, 1..=65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u16);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request's `{id}`, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// `785` or `cilium-local:785`
    Local(EndpointId),
    /// `cni-attachment-id:CID[:IFNAME]`
    CniAttachment(String),
    /// `container-id:CID` (only endpoints with legacy identifiers)
    Container(String),
    /// `pod-name:NS/NAME` (only endpoints with legacy identifiers)
    Pod(String),
    /// `cep-name:NS/NAME`
    CiliumEndpoint(String),
    /// `ipv4:ADDRESS`
    Ipv4(Option<Ipv4Addr>),
    /// `ipv6:ADDRESS`
    Ipv6(Option<Ipv6Addr>),
    /// A known prefix of which this agent never has endpoints.
    Nothing,
}

impl std::str::FromStr for Name {
    type Err = BadId;

    fn from_str(id: &str) -> Result<Name, BadId> {
        let (prefix, rest) = id.split_once(':').unwrap_or(("cilium-local", id));
        Ok(match prefix {
            "cilium-local" => Name::Local(local(rest)?),
            "cilium-global" => return Err(BadId::Unsupported),
            "cni-attachment-id" => Name::CniAttachment(rest.to_owned()),
            "container-id" => Name::Container(rest.to_owned()),
            "pod-name" => Name::Pod(rest.to_owned()),
            "cep-name" => Name::CiliumEndpoint(rest.to_owned()),
            "ipv4" => Name::Ipv4(rest.parse().ok()),
            "ipv6" => Name::Ipv6(rest.parse().ok()),
            "container-name" | "docker-endpoint" => Name::Nothing,
            unknown => return Err(BadId::UnknownPrefix(unknown.to_owned())),
        })
    }
}

/// Parses the plain id of a deletion queue file or path: decimal, or with a 0x, 0o, 0b or 0 prefix.
fn local(text: &str) -> Result<EndpointId, BadId> {
    let syntax = || BadId::NotANumber { text: text.to_owned(), reason: "invalid syntax" };
    let digits = text.replace('_', "");
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if body.is_empty() || !body.chars().all(|c| c.is_digit(radix)) {
        return Err(syntax());
    }
    let number = i64::from_str_radix(body, radix)
        .map_err(|_| BadId::NotANumber { text: text.to_owned(), reason: "value out of range" })?;
    u16::try_from(number).map(EndpointId).map_err(|_| BadId::TooLarge(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(id: &str) -> String {
        id.parse::<Name>().unwrap_err().to_string()
    }

    #[test]
    fn every_prefix_is_known() {
        assert_eq!("785".parse(), Ok(Name::Local(EndpointId(785))));
        assert_eq!("cilium-local:0x10".parse(), Ok(Name::Local(EndpointId(16))));
        assert_eq!("cni-attachment-id:c:eth0".parse(), Ok(Name::CniAttachment("c:eth0".into())));
        assert_eq!("container-id:c".parse(), Ok(Name::Container("c".into())));
        assert_eq!("pod-name:a/b".parse(), Ok(Name::Pod("a/b".into())));
        assert_eq!("cep-name:a/b".parse(), Ok(Name::CiliumEndpoint("a/b".into())));
        assert_eq!("ipv4:10.0.0.1".parse(), Ok(Name::Ipv4(Some([10, 0, 0, 1].into()))));
        assert_eq!("ipv6:fd00::1".parse(), Ok(Name::Ipv6(Some("fd00::1".parse().unwrap()))));
        assert_eq!("ipv4:nonsense".parse(), Ok(Name::Ipv4(None)));
    }

    #[test]
    fn error_texts() {
        assert_eq!(error("abc:def"), "unknown endpoint ID prefix \"abc\"");
        assert_eq!(error("9999999"), "endpoint id too large: 9999999");
        assert_eq!(
            error("abc"),
            "invalid numeric cilium id: strconv.ParseInt: parsing \"abc\": invalid syntax"
        );
        assert_eq!(
            error("99999999999999999999"),
            "invalid numeric cilium id: strconv.ParseInt: parsing \"99999999999999999999\": value out of range"
        );
        assert_eq!(error("cilium-global:c:n:1"), "unsupported endpoint identifier");
        assert_eq!(error(""), "invalid numeric cilium id: strconv.ParseInt: parsing \"\": invalid syntax");
        assert_eq!(
            error("-3"),
            "invalid numeric cilium id: strconv.ParseInt: parsing \"-3\": invalid syntax"
        );
    }
}

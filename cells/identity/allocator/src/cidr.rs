//! The labels of a prefix.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use labels::{CIDR, LabelArray, LabelRef, RESERVED};

/// Returns the labels of all addresses in a prefix: its own, and the world's of its family. If both families are
/// enabled, each has a separate world. A prefix of length zero has only the label of the world.
///
/// ```
/// let labels = |prefix: &str, v4, v6| identity::cidr_labels(prefix.parse().unwrap(), v4, v6).texts();
/// assert_eq!(labels("192.0.2.0/24", true, false), ["cidr:192.0.2.0/24", "reserved:world"]);
/// assert_eq!(labels("fd00::/8", true, true), ["cidr:fd00--0/8", "reserved:world-ipv6"]);
/// assert_eq!(labels("0.0.0.0/0", true, true), ["reserved:world-ipv4"]);
/// ```
pub fn cidr_labels(prefix: IpNetwork, ipv4_enabled: bool, ipv6_enabled: bool) -> LabelArray {
    let world = match (prefix, ipv4_enabled, ipv6_enabled) {
        (IpNetwork::V4(_), _, true) => "world-ipv4",
        (IpNetwork::V6(_), true, _) => "world-ipv6",
        _ => "world",
    };
    let key = key(prefix);
    let own = (prefix.prefix() > 0).then_some(LabelRef { key: &key, value: "", source: CIDR });
    own.into_iter().chain([LabelRef { key: world, value: "", source: RESERVED }]).collect()
}

/// Returns the prefix as a label key, which must have no colon and must neither begin nor end with a dash.
pub(crate) fn key(prefix: IpNetwork) -> String {
    match prefix.network() {
        IpAddr::V4(ip) => format!("{ip}/{}", prefix.prefix()),
        IpAddr::V6(ip) => {
            let text = ip.to_string().replace(':', "-");
            let before = if text.starts_with('-') { "0" } else { "" };
            let after = if text.ends_with('-') { "0" } else { "" };
            format!("{before}{text}{after}/{}", prefix.prefix())
        }
    }
}

/// Returns the prefix of a label set; `None` if the labels are not those of a prefix alone: an address of a DNS name inside
/// a prefix, or of a node, has others beside them.
pub(crate) fn prefix(labels: &LabelArray) -> Option<IpNetwork> {
    let is_of_prefix = |label: &LabelRef<'_>| {
        label.source == CIDR || label.source == RESERVED && label.key.starts_with("world")
    };
    if !labels.iter().all(|label| is_of_prefix(&label)) {
        return None;
    }
    let mut own = labels.iter().filter(|label| label.source == CIDR);
    let label = own.next()?;
    let text = match label.key.contains('.') && !label.key.contains('-') {
        true => label.key.to_owned(),
        false => label.key.replace('-', ":"),
    };
    let (ip, bits) = text.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    IpNetwork::new(ip, bits.parse().ok()?).ok().filter(|_| own.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_originals() {
        for (text, expected) in [
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("fd00:1::5/128", "fd00-1--5/128"),
            ("::1/128", "0--1/128"),
            ("2001:db8::/32", "2001-db8--0/32"),
            ("::ffff:10.0.0.1/128", "0--ffff-10.0.0.1/128"),
        ] {
            let network: IpNetwork = text.parse().unwrap();
            assert_eq!(key(network), expected);
            let plain = IpNetwork::new(network.network(), network.prefix()).unwrap();
            assert_eq!(prefix(&cidr_labels(network, true, true)), Some(plain));
        }
        assert_eq!(prefix(&cidr_labels("::/0".parse().unwrap(), true, true)), None);
        let named = ["cidr:192.0.2.0/24", "fqdn:a.io", "reserved:world"];
        assert_eq!(prefix(&LabelArray::from(&labels::Labels::parse(named))), None);
    }
}

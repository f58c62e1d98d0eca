//! The addresses on which the responder listens.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use local_node::LocalNode;
use maps::FamilyConfig;

/// Returns the node's own address of each enabled family; the unspecified one, which stands for all addresses of both
/// families, as long as one is unknown.
pub(crate) fn addresses(node: Option<&LocalNode>, families: &FamilyConfig) -> BTreeSet<IpAddr> {
    let own = [
        (families.enable_ipv4, node.and_then(|node| node.ipv4).map(IpAddr::V4)),
        (families.enable_ipv6, node.and_then(|node| node.ipv6).map(IpAddr::V6)),
    ];
    let enabled = own.into_iter().filter(|(enabled, _)| *enabled).map(|(_, ip)| ip);
    enabled.collect::<Option<_>>().unwrap_or_else(|| [IpAddr::V6(Ipv6Addr::UNSPECIFIED)].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_or_all() {
        let families = |enable_ipv4, enable_ipv6| FamilyConfig { enable_ipv4, enable_ipv6 };
        let v4: IpAddr = [192, 0, 2, 1].into();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let mut node = LocalNode { ipv4: Some([192, 0, 2, 1].into()), ..LocalNode::default() };
        assert_eq!(addresses(Some(&node), &families(true, false)), [v4].into());
        assert_eq!(addresses(Some(&node), &families(true, true)), all.into());
        assert_eq!(addresses(None, &families(true, false)), all.into());
        node.ipv6 = Some("2001:db8::1".parse().unwrap());
        assert_eq!(addresses(Some(&node), &families(true, true)), [v4, v6].into());
        assert_eq!(addresses(Some(&node), &families(false, true)), [v6].into());
    }
}

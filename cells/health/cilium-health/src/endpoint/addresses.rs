//! The addresses of the health endpoint.

use std::net::IpAddr;

use ipam::{Family, Ipam};
use local_node::LocalNode;
use maps::FamilyConfig;

/// The owner of the addresses in the allocator, as in Cilium.
pub(crate) const OWNER: &str = "health";

/// Returns the router's address of each enabled family; `None` as long as one is unknown: the endpoint's routes lead to it.
pub(crate) fn routers(node: Option<&LocalNode>, families: &FamilyConfig) -> Option<Vec<IpAddr>> {
    let node = node?;
    let routers = [
        (families.enable_ipv4, node.router_ipv4.map(IpAddr::V4)),
        (families.enable_ipv6, node.router_ipv6.map(IpAddr::V6)),
    ];
    routers.into_iter().filter(|(enabled, _)| *enabled).map(|(_, router)| router).collect()
}

/// Allocates an address of each router's family, all or none; those of `before` that are free stay. Returns each with its
/// router.
pub(crate) fn allocate(
    ipam: &Ipam,
    routers: &[IpAddr],
    before: &[IpAddr],
) -> Result<Vec<(IpAddr, IpAddr)>, ipam::Error> {
    let mut allocated = Vec::new();
    for router in routers {
        let before = before.iter().copied().find(|address| address.is_ipv4() == router.is_ipv4());
        match ipam.allocate_own(OWNER, Family::of(*router), before) {
            Ok(address) => allocated.push((address, *router)),
            Err(error) => {
                for (address, _) in allocated {
                    // Just allocated, so that nothing holds it.
                    let _ = ipam.release(address, ipam::DEFAULT_POOL);
                }
                return Err(error);
            }
        }
    }
    Ok(allocated)
}

#[cfg(test)]
mod tests {
    use ipam::{Address, Node};
    use statedb::Db;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ipam(ipv4: &str, ipv6: &str) -> Ipam {
        let node = Node::with_ranges(Some(ipv4.parse().unwrap()), Some(ipv6.parse().unwrap()));
        Ipam::new(Db::new().table::<Address>().unwrap(), move || node.clone())
    }

    #[test]
    fn routers_of_all_enabled_families_are_needed() {
        let families = |enable_ipv4, enable_ipv6| FamilyConfig { enable_ipv4, enable_ipv6 };
        let mut node = LocalNode { router_ipv4: Some([10, 0, 0, 1].into()), ..LocalNode::default() };
        assert_eq!(routers(None, &families(true, false)), None);
        assert_eq!(routers(Some(&node), &families(true, true)), None);
        assert_eq!(routers(Some(&node), &families(true, false)), Some(vec![ip("10.0.0.1")]));
        node.router_ipv6 = Some("fd00::1".parse().unwrap());
        assert_eq!(routers(Some(&node), &families(true, true)), Some(vec![ip("10.0.0.1"), ip("fd00::1")]));
        assert_eq!(routers(Some(&node), &families(false, true)), Some(vec![ip("fd00::1")]));
    }

    #[test]
    fn addresses_of_the_previous_run_stay_if_they_are_free_and_of_the_range() {
        let routers = [ip("10.0.0.1"), ip("fd00::1")];
        let ipam = ipam("10.0.0.0/28", "fd00::/120");
        let before = [ip("fd00::9"), ip("10.0.0.9")];
        let given = allocate(&ipam, &routers, &before).unwrap();
        assert_eq!(given, [(ip("10.0.0.9"), ip("10.0.0.1")), (ip("fd00::9"), ip("fd00::1"))]);
        assert_eq!(ipam.status(true).allocations["10.0.0.9"], OWNER);
        let given = allocate(&ipam, &routers, &before).unwrap();
        assert!(!given.iter().any(|(address, _)| before.contains(address)), "others have them: {given:?}");
        let given = allocate(&ipam, &routers[..1], &[ip("192.0.2.9")]).unwrap();
        assert!(given[0].0.to_string().starts_with("10.0.0."), "another range: {given:?}");
    }

    #[test]
    fn a_family_without_addresses_leaves_none_of_the_other() {
        let ipam = ipam("10.0.0.0/28", "fd00::/126");
        while ipam.allocate("default/p", Some(Family::V6), false).is_ok() {}
        let before = ipam.count(Family::V4);
        let error = allocate(&ipam, &[ip("10.0.0.1"), ip("fd00::1")], &[]).unwrap_err();
        assert!(error.to_string().contains("default"), "{error}");
        assert_eq!(ipam.count(Family::V4), before);
        ipam.allocate("default/p", Some(Family::V4), false).unwrap();
    }
}

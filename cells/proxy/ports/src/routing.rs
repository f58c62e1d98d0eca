//! The rules and routes by which the kernel delivers redirected packets to sockets of the host.

use std::net::{Ipv4Addr, Ipv6Addr};

use datapath_abi::mark;
use devices::rtnetlink::Rule;
use devices::{Netlink, NetlinkError, SCOPE_HOST, TABLE_LOCAL};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use routes::DesiredRoute;

/// The owner of the routes.
pub(crate) const OWNER: &str = "proxy";

/// The table of packets to proxies: all destinations are local.
const TO_PROXY_TABLE: u32 = 2004;
/// The table of packets from proxies, which Envoy configurations and encryption need.
const FROM_PROXY_TABLE: u32 = 2005;
const TO_PROXY_PRIORITY: u32 = 9;
/// Where the kernel's rule of the local table goes, so that the one of proxies precedes it.
const LOCAL_PRIORITY: u32 = 100;
/// `RTN_LOCAL`.
const LOCAL: u8 = libc::RTN_LOCAL;
const LOOPBACK: &str = "lo";

/// Returns the route by which packets to proxies are local, whatever their destination.
pub(crate) fn route(ipv6: bool) -> DesiredRoute {
    let all = match ipv6 {
        false => Ipv4Network::new(Ipv4Addr::UNSPECIFIED, 0).map(IpNetwork::V4),
        true => Ipv6Network::new(Ipv6Addr::UNSPECIFIED, 0).map(IpNetwork::V6),
    };
    // A prefix of no bits is valid.
    let all = all.unwrap_or_else(|_| unreachable!());
    DesiredRoute::new(all).table(TO_PROXY_TABLE).device(LOOPBACK).kind(LOCAL).scope(SCOPE_HOST)
}

fn to_proxy(ipv6: bool) -> Rule {
    let (priority, table) = (TO_PROXY_PRIORITY, TO_PROXY_TABLE);
    Rule { ipv6, priority, mark: mark::TO_PROXY, mask: mark::MAGIC_MASK, table }
}

fn local(ipv6: bool, priority: u32) -> Rule {
    Rule { ipv6, priority, table: TABLE_LOCAL, ..Rule::default() }
}

/// Adds the rules of these families, and deletes those of others and of features that are off. Blocks.
pub(crate) fn apply(families: &[bool]) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open()?;
    let found = netlink.rules()?;
    let add = |netlink: &mut Netlink, rule: Rule| match netlink.add_rule(&rule) {
        Err(error) if !error.is_exists() => Err(error),
        _ => Ok(()),
    };
    for ipv6 in [false, true] {
        let is_desired = families.contains(&ipv6);
        for rule in found.iter().filter(|rule| rule.ipv6 == ipv6) {
            let stale = rule.table == FROM_PROXY_TABLE || !is_desired && *rule == to_proxy(ipv6);
            if stale {
                delete(&mut netlink, rule)?;
            }
        }
        if !is_desired {
            continue;
        }
        // The rule of the local table at its new place comes first: without one this node would be unreachable.
        for rule in [local(ipv6, LOCAL_PRIORITY), to_proxy(ipv6)] {
            if !found.contains(&rule) {
                add(&mut netlink, rule)?;
            }
        }
        if found.contains(&local(ipv6, 0)) {
            delete(&mut netlink, &local(ipv6, 0))?;
        }
    }
    Ok(())
}

fn delete(netlink: &mut Netlink, rule: &Rule) -> Result<(), NetlinkError> {
    match netlink.delete_rule(rule) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use test_kit::Sandbox;

    use super::*;

    #[test]
    fn rules_come_and_go_and_the_local_table_always_has_one() {
        test_kit::require_root!();
        let sandbox = Sandbox::new().unwrap();
        let host = sandbox.host();
        let rules = |family: &str| host.exec(&format!("ip -{family} rule")).unwrap();
        host.exec("ip rule add prio 10 fwmark 0xa00/0xf00 table 2005").unwrap();
        host.run(|| apply(&[false])).unwrap();
        let expected = "9:\tfrom all fwmark 0x200/0xf00 lookup 2004\n100:\tfrom all lookup local\n";
        assert!(rules("4").starts_with(expected), "{}", rules("4"));
        assert!(!rules("4").contains("2005"), "of a feature that is off");
        assert!(rules("6").starts_with("0:\tfrom all lookup local\n"), "a family that is off");
        host.run(|| apply(&[false, true])).unwrap();
        host.run(|| apply(&[false, true])).unwrap();
        assert!(rules("6").starts_with(expected), "{}", rules("6"));
        assert_eq!(rules("4").matches("lookup local").count(), 1);
        host.run(|| apply(&[])).unwrap();
        assert!(!rules("4").contains("2004") && rules("4").contains("lookup local"), "{}", rules("4"));
    }
}

//! The rules and routes by which the kernel delivers redirected packets to sockets of the host.

use std::net::{Ipv4Addr, Ipv6Addr};

use datapath_abi::mark;
use devices::rtnetlink::Rule;
use devices::{SCOPE_HOST, TABLE_LOCAL};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use routes::{DesiredRoute, DesiredRule, Rules};

/// The owner of the routes and rules.
pub(crate) const OWNER: &str = "proxy";

/// The table of packets to proxies: all destinations are local.
const TO_PROXY_TABLE: u32 = 2004;
/// The table of packets from proxies, which Envoy configurations and encryption need.
pub const FROM_PROXY_TABLE: u32 = 2005;
const TO_PROXY_PRIORITY: u32 = 9;
const FROM_PROXY_PRIORITY: u32 = 10;
/// The priority of the kernel's rule of the local table.
const FIRST_PRIORITY: u32 = 0;
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

/// Returns the rules of these families. Those of the local table come first: without one this node would be unreachable.
pub(crate) fn rules(families: &[bool]) -> Vec<DesiredRule> {
    let of_family = |ipv6: bool| {
        let local = Rule { ipv6, priority: LOCAL_PRIORITY, table: TABLE_LOCAL, ..Rule::default() };
        let (priority, table) = (TO_PROXY_PRIORITY, TO_PROXY_TABLE);
        let to_proxy =
            Rule { ipv6, priority, mark: mark::TO_PROXY, mask: mark::MAGIC_MASK, table, ..Rule::default() };
        [DesiredRule::new(local).replaces(FIRST_PRIORITY), DesiredRule::new(to_proxy)]
    };
    families.iter().flat_map(|ipv6| of_family(*ipv6)).collect()
}

/// Returns the rule that leads packets of proxies in front of pods (`mark` of the abi) to [`FROM_PROXY_TABLE`].
#[must_use]
pub fn from_ingress_proxy(ipv6: bool) -> DesiredRule {
    let (priority, table) = (FROM_PROXY_PRIORITY, FROM_PROXY_TABLE);
    let (mark, mask) = (mark::PROXY_INGRESS, mark::MAGIC_MASK);
    DesiredRule::new(Rule { ipv6, priority, mark, mask, table, ..Rule::default() })
}

/// Declares that agents alone make the rules that lead to the tables of proxies, so that those of features that are off are deleted.
pub(crate) fn claim(rules: &Rules) {
    rules.claim(TO_PROXY_PRIORITY, TO_PROXY_TABLE);
    rules.claim(FROM_PROXY_PRIORITY, FROM_PROXY_TABLE);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::prelude::*;
    use test_kit::{Sandbox, require_root};

    use super::*;

    #[test]
    fn rules_of_families_and_features_that_are_off_are_removed() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let host = sandbox.host();
        let text = |family: &str| host.exec(&format!("ip -{family} rule")).unwrap();
        let expected = "9:\tfrom all fwmark 0x200/0xf00 lookup 2004\n100:\tfrom all lookup local\n";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for families in [&[false, true][..], &[false], &[]] {
                host.exec("ip rule add prio 10 fwmark 0xa00/0xf00 table 2005").unwrap();
                let desire = move |desired: Arc<Rules>| {
                    claim(&desired);
                    desired.replace(OWNER, rules(families));
                };
                let state = config::<local_node::StateConfig>();
                let cells = [statedb::cell(), devices::cell(), state, routes::cell(), invoke(desire)];
                let mut hive =
                    TestHive::needing::<Rules>(cells).set("state-dir", sandbox.state_dir().display());
                hive.start().await;
                hive.get::<Rules>().wait(OWNER).await.unwrap();
                hive.until("the prune", || !text("4").contains("2005")).await;
                for (ipv6, family) in [(false, "4"), (true, "6")] {
                    let has = families.contains(&ipv6);
                    hive.until("the rules", || text(family).starts_with(expected) == has).await;
                    assert_eq!(text(family).contains("2004"), has, "{}", text(family));
                    assert_eq!(text(family).matches("lookup local").count(), 1, "{}", text(family));
                }
                hive.stop().await;
            }
        });
    }
}

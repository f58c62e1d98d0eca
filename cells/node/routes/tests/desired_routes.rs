//! The cell in a hive, on the kernel of a namespace.

use std::net::IpAddr;
use std::sync::Arc;

use devices::rtnetlink::Rule;
use devices::{TABLE_LOCAL, TABLE_MAIN};
use hive::prelude::*;
use routes::{DesiredRoute, DesiredRule, FibKey, Routes, Rules};
use test_kit::{Sandbox, require_root};

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .host()
        .ip_batch("link add dum0 type veth peer name pdum0\nlink set dum0 up\nlink set pdum0 up\n")
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

async fn started(sandbox: &Sandbox) -> (TestHive, Arc<Routes>) {
    started_with(sandbox, |_| ()).await
}

/// As [`started`]; sources register and claim before the start, as they do in an agent.
async fn started_with(
    sandbox: &Sandbox,
    register: impl Fn(&Rules) + Send + Sync + 'static,
) -> (TestHive, Arc<Routes>) {
    let state = config::<local_node::StateConfig>();
    let rules = invoke(move |rules: Arc<Rules>| register(&rules));
    let cells = [statedb::cell(), devices::cell(), state, routes::cell(), rules];
    let mut hive = TestHive::needing::<Routes>(cells).set("state-dir", sandbox.state_dir().display());
    hive.start().await;
    let routes = hive.get::<Routes>();
    (hive, routes)
}

fn route(prefix: &str) -> DesiredRoute {
    DesiredRoute::new(prefix.parse().unwrap()).device("dum0").scope(devices::SCOPE_LINK)
}

fn key(prefix: &str) -> FibKey {
    FibKey::main(prefix.parse().unwrap())
}

fn kernel(sandbox: &Sandbox, family: &str) -> Vec<String> {
    let text = sandbox.host().ip(&format!("{family} route show dev dum0")).unwrap_or_default();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn row(routes: &Routes, owner: &str, prefix: &str) -> Vec<String> {
    let table = routes.table();
    let snapshot = table.snapshot();
    let found = table.get(&snapshot, DesiredRoute::by_id(owner, key(prefix)));
    found.map(|row| statedb::TableDisplay::row(&**row)).unwrap_or_default()
}

#[test]
fn lost_routes_return_and_those_of_others_stay() {
    require_root!();
    in_sandbox(async |sandbox| {
        let host = sandbox.host();
        host.ip("route add 10.9.0.0/16 dev dum0 proto static").unwrap();
        let (mut hive, routes) = started(sandbox).await;
        let both = vec![route("10.1.0.0/24"), route("10.2.0.0/24")];
        routes.upsert_wait("test", both).await.unwrap();
        let all = [
            "10.1.0.0/24 proto kernel scope link",
            "10.2.0.0/24 proto kernel scope link",
            "10.9.0.0/16 proto static scope link",
        ];
        assert_eq!(kernel(sandbox, "-4"), all);
        assert_eq!(row(&routes, "test", "10.1.0.0/24")[5], "true");

        host.ip("route del 10.1.0.0/24").unwrap();
        hive.until("the deleted route", || kernel(sandbox, "-4") == all).await;
        host.ip("route replace 10.2.0.0/24 dev dum0 proto kernel mtu 1300").unwrap();
        hive.until("the changed route", || kernel(sandbox, "-4") == all).await;

        // A link that goes down takes its routes with it, without a notification for those of IPv4.
        host.ip("link set dum0 down").unwrap();
        hive.until("no route", || kernel(sandbox, "-4").is_empty()).await;
        host.ip("link set dum0 up").unwrap();
        hive.until("the routes of the link", || kernel(sandbox, "-4") == all[..2]).await;

        // A device of the same name with another index.
        host.ip("link del dum0").unwrap();
        hive.until("an error", || row(&routes, "test", "10.1.0.0/24")[13].starts_with("Error: ")).await;
        host.ip_batch("link add pad0 type veth peer name ppad0\nlink add dum0 type veth peer name pdum0\nlink set dum0 up\nlink set pdum0 up\n").unwrap();
        hive.until("the routes of the new device", || kernel(sandbox, "-4") == all[..2]).await;
        hive.until("the status", || row(&routes, "test", "10.1.0.0/24")[13].starts_with("Done ")).await;

        routes.delete("test", [key("10.1.0.0/24"), key("10.7.0.0/24")]);
        hive.until("the deletion", || kernel(sandbox, "-4") == all[1..2]).await;
        hive.stop().await;
        assert_eq!(kernel(sandbox, "-4"), all[1..2], "routes stay at the stop");
    });
}

#[test]
fn routes_of_a_source_address_return_with_it() {
    require_root!();
    in_sandbox(async |sandbox| {
        let host = sandbox.host();
        let addresses = "addr add 192.0.2.1/32 dev dum0\naddr add fd00::1/128 dev dum0 nodad\n";
        host.ip_batch(addresses).unwrap();
        let (mut hive, routes) = started(sandbox).await;
        let source = |prefix: &str, ip: &str| route(prefix).scope(0).src(ip.parse::<IpAddr>().unwrap());
        let both = vec![source("10.1.0.0/24", "192.0.2.1"), source("fd00:1::/64", "fd00::1")];
        routes.upsert_wait("test", both).await.unwrap();
        let has =
            |family: &str, wanted: &str| kernel(sandbox, family).iter().any(|line| line.contains(wanted));
        let complete = || has("-4", "src 192.0.2.1") && has("-6", "fd00:1::/64 proto kernel src fd00::1");
        assert!(complete());
        host.ip_batch("addr del 192.0.2.1/32 dev dum0\naddr del fd00::1/128 dev dum0\n").unwrap();
        hive.until("the loss of the routes", || !has("-4", "10.1.0.0/24") && !has("-6", "src fd00::1")).await;
        host.ip_batch(addresses).unwrap();
        hive.until("the routes", complete).await;
        hive.stop().await;
    });
}

#[test]
fn the_next_owner_replaces_a_route_and_a_restart_prunes_after_its_sources() {
    require_root!();
    in_sandbox(async |sandbox| {
        let (mut hive, routes) = started(sandbox).await;
        routes.upsert_wait("b", vec![route("10.1.0.0/24").mtu(1300), route("10.2.0.0/24")]).await.unwrap();
        let preferred = route("10.1.0.0/24").mtu(1400).admin_distance(10);
        routes.upsert_wait("c", vec![preferred]).await.unwrap();
        assert!(kernel(sandbox, "-4")[0].contains("mtu 1400"));
        routes.upsert_wait("a", vec![route("10.1.0.0/24").mtu(1200)]).await.unwrap();
        assert!(kernel(sandbox, "-4")[0].contains("mtu 1400"));
        assert_eq!(
            (&*row(&routes, "a", "10.1.0.0/24")[5], &*row(&routes, "c", "10.1.0.0/24")[5]),
            ("false", "true")
        );
        routes.remove_owner("c");
        hive.until("the first owner by name", || kernel(sandbox, "-4")[0].contains("mtu 1200")).await;
        routes.remove_owner("a");
        hive.until("the last owner", || kernel(sandbox, "-4")[0].contains("mtu 1300")).await;
        assert_eq!(kernel(sandbox, "-4").len(), 2);
        hive.stop().await;

        let (mut hive, routes) = started(sandbox).await;
        let source = routes.register_initializer("test");
        routes.upsert_wait("b", vec![route("10.1.0.0/24").mtu(1300)]).await.unwrap();
        routes.upsert_wait("b", vec![route("10.3.0.0/24")]).await.unwrap();
        assert_eq!(kernel(sandbox, "-4").len(), 3, "a source is not complete");
        routes.finish(source);
        hive.until("the prune", || kernel(sandbox, "-4").len() == 2).await;
        let found = kernel(sandbox, "-4");
        assert!(found[0].contains("10.1.0.0/24") && found[1].contains("10.3.0.0/24"), "{found:?}");
        hive.stop().await;
    });
}

#[test]
fn a_wait_reports_the_error_of_the_kernel() {
    require_root!();
    in_sandbox(async |sandbox| {
        let (mut hive, routes) = started(sandbox).await;
        let unreachable =
            DesiredRoute::new("10.1.0.0/24".parse().unwrap()).via([192, 0, 2, 9].into(), "dum0");
        let error = routes.upsert_wait("test", vec![unreachable]).await.unwrap_err().to_string();
        assert!(error.contains("Network is unreachable"), "{error}");
        // The next hop becomes reachable.
        sandbox.host().ip("addr add 192.0.2.1/24 dev dum0").unwrap();
        hive.until("the route", || kernel(sandbox, "-4").iter().any(|line| line.starts_with("10.1.0.0/24")))
            .await;
        hive.stop().await;
    });
}

fn rules(sandbox: &Sandbox, family: &str) -> String {
    sandbox.host().ip(&format!("{family} rule")).unwrap()
}

fn marked(ipv6: bool, priority: u32, table: u32) -> Rule {
    Rule { ipv6, priority, mark: 0x200, mask: 0xf00, table, ..Rule::default() }
}

const FIRST: &str = "9:\tfrom all fwmark 0x200/0xf00 lookup 2004\n100:\tfrom all lookup local\n";

/// Desires a rule in front of the local table's, which moves behind it.
fn desired(ipv6: bool) -> [DesiredRule; 2] {
    let local = Rule { ipv6, priority: 100, table: TABLE_LOCAL, ..Rule::default() };
    [DesiredRule::new(local).replaces(0), DesiredRule::new(marked(ipv6, 9, 2004))]
}

#[test]
fn lost_rules_return_and_those_of_others_stay() {
    require_root!();
    in_sandbox(async |sandbox| {
        let host = sandbox.host();
        host.ip("rule add prio 9 fwmark 0x300/0xf00 table 2004").unwrap();
        host.ip("rule add prio 20 from 192.0.2.0/24 to 198.51.100.7 table main").unwrap();
        let (mut hive, _) = started(sandbox).await;
        let rules_handle = hive.get::<Rules>();
        let ranges = Rule {
            priority: 30,
            from: "10.1.0.0/16".parse().ok(),
            to: "10.2.0.1/32".parse().ok(),
            table: TABLE_MAIN,
            ..Rule::default()
        };
        let all = [desired(false), desired(true)].concat().into_iter().chain([DesiredRule::new(ranges)]);
        rules_handle.replace("test", all);
        rules_handle.wait("test").await.unwrap();
        let expected = "9:\tfrom all fwmark 0x300/0xf00 lookup 2004\n9:\tfrom all fwmark 0x200/0xf00 lookup 2004\n\
                        20:\tfrom 192.0.2.0/24 to 198.51.100.7 lookup main\n30:\tfrom 10.1.0.0/16 to 10.2.0.1 lookup main\n\
                        100:\tfrom all lookup local\n";
        assert!(rules(sandbox, "-4").starts_with(expected), "{}", rules(sandbox, "-4"));
        assert!(rules(sandbox, "-6").starts_with(FIRST), "{}", rules(sandbox, "-6"));

        let is_complete =
            || rules(sandbox, "-4").matches("2004").count() == 2 && rules(sandbox, "-6").starts_with(FIRST);
        let lost = std::time::Instant::now();
        host.ip("rule del prio 9 fwmark 0x200/0xf00 table 2004").unwrap();
        host.ip("-6 rule del prio 9").unwrap();
        assert!(!is_complete());
        hive.until("the deleted rules", is_complete).await;
        assert!(lost.elapsed() < std::time::Duration::from_secs(1), "{:?}", lost.elapsed());
        // Without the local table at its first place, marked packets to this node would not reach the proxy.
        host.ip("-6 rule add prio 0 table local").unwrap();
        host.ip("rule del prio 30").unwrap();
        hive.until("the ranges", || rules(sandbox, "-4").contains("30:\tfrom 10.1.0.0/16 to 10.2.0.1 "))
            .await;
        hive.until("the moved rule", is_complete).await;

        rules_handle.remove_owner("test");
        let kept =
            "0:\tfrom all lookup local\n9:\tfrom all fwmark 0x300/0xf00 lookup 2004\n20:\tfrom 192.0.2.0/24";
        hive.until("the deletion", || rules(sandbox, "-4").starts_with(kept)).await;
        assert_eq!(rules(sandbox, "-4").lines().count(), 5, "{}", rules(sandbox, "-4"));
        hive.until("the local table's rule", || {
            rules(sandbox, "-6").starts_with("0:\tfrom all lookup local\n")
        })
        .await;
        assert!(!rules(sandbox, "-6").contains("100:"), "{}", rules(sandbox, "-6"));
        hive.stop().await;
    });
}

#[test]
fn a_restart_keeps_rules_and_prunes_claimed_ones_after_its_sources() {
    require_root!();
    in_sandbox(async |sandbox| {
        let (mut hive, _) = started(sandbox).await;
        let handle = hive.get::<Rules>();
        handle.replace("a", [marked(false, 9, 2004), marked(false, 10, 2005)].map(DesiredRule::new));
        handle.replace("b", [DesiredRule::new(marked(false, 9, 2004))]);
        handle.wait("a").await.unwrap();
        hive.stop().await;
        let host = sandbox.host();
        host.ip("rule add prio 11 fwmark 0x200/0xf00 table 2005").unwrap();
        host.ip("-6 rule add prio 10 fwmark 0xa00/0xf00 table 2005").unwrap();

        let (registered, source) = std::sync::mpsc::channel();
        let register = move |rules: &Rules| {
            registered.send(rules.register_initializer("test")).unwrap();
            rules.claim(9, 2004);
            rules.claim(10, 2005);
        };
        let (mut hive, _) = started_with(sandbox, register).await;
        let (handle, source) = (hive.get::<Rules>(), source.recv().unwrap());
        for owner in ["a", "b"] {
            handle.replace(owner, [DesiredRule::new(marked(false, 9, 2004))]);
        }
        handle.wait("b").await.unwrap();
        handle.remove_owner("a");
        handle.wait("b").await.unwrap();
        let found = rules(sandbox, "-4");
        assert!(
            found.contains("9:\t") && found.contains("10:\t"),
            "one owner is left, a source is not complete: {found}"
        );
        handle.finish(source);
        hive.until("the prune", || {
            !rules(sandbox, "-4").contains("10:\t") && !rules(sandbox, "-6").contains("2005")
        })
        .await;
        let found = rules(sandbox, "-4");
        assert!(found.contains("9:\t") && found.contains("11:\t"), "{found}");
        hive.stop().await;
    });
}

use std::path::Path;

use devices::{Link, Netlink};
use ipnetwork::IpNetwork;
use reconciler::Status;
use statedb::{Db, RwTable};
use test_kit::{Sandbox, require_root};

use super::*;

/// The operations with tables that the test fills.
struct Fixture {
    desired: RwTable<DesiredRoute>,
    ops: KernelRoutes,
}

impl Fixture {
    fn new(log: &Path) -> Fixture {
        let db = Db::new();
        let desired = db.table_with_display::<DesiredRoute>().unwrap();
        let devices = db.table_with_display::<Device>().unwrap();
        let live = db.table_with_display::<Route>().unwrap();
        devices.transact(|txn| {
            for link in Netlink::open().unwrap().links().unwrap() {
                txn.insert(Device { link: Link { ..link }, ..Device::default() });
            }
        });
        let ops = KernelRoutes::new(
            desired.reader(),
            Arc::new(devices.reader()),
            Arc::new(live.reader()),
            log.join("route-reconciler.wal"),
            Arc::default(),
        );
        Fixture { desired, ops }
    }

    /// Stores rows, and applies them in rounds as the reconciler does. Returns the errors.
    fn apply(&mut self, rows: Vec<DesiredRoute>) -> Vec<String> {
        self.desired.transact(|txn| rows.iter().for_each(|row| drop(txn.insert(row.clone()))));
        let snapshot = self.desired.snapshot();
        let cx = OpCx::new(&snapshot, 1);
        let mut errors = Vec::new();
        for round in rows.chunks(1000) {
            let entry = |object: &DesiredRoute| BatchEntry::new(object.clone(), 1);
            let mut batch: Vec<BatchEntry<DesiredRoute>> = round.iter().map(entry).collect();
            self.ops.update_batch(&cx, &mut batch);
            errors.extend(
                batch.into_iter().filter_map(|entry| entry.result.err()).map(|error| error.to_string()),
            );
        }
        errors
    }

    fn prune(&mut self) {
        let snapshot = self.desired.snapshot();
        self.ops.prune_routes(&snapshot).unwrap();
    }

    /// Deletes all rows in one round.
    fn delete_all(&mut self) {
        let snapshot = self.desired.snapshot();
        let rows: Vec<Obj<DesiredRoute>> = self.desired.all(&snapshot).cloned().collect();
        self.desired.transact(|txn| txn.delete_all());
        let snapshot = self.desired.snapshot();
        for round in rows.chunks(1000) {
            let entry = |object: &Obj<DesiredRoute>| BatchEntry::new(object.clone(), 1);
            let mut batch: Vec<BatchEntry<Obj<DesiredRoute>>> = round.iter().map(entry).collect();
            self.ops.delete_batch(&OpCx::new(&snapshot, 1), &mut batch);
            assert!(batch.iter().all(|entry| entry.result.is_ok()));
        }
    }

    fn sent(&mut self) -> (usize, usize) {
        let sent = self.ops.open.as_mut().map(|open| std::mem::take(&mut open.sent)).unwrap_or_default();
        assert!(sent.dumps <= 2, "{sent:?}");
        (sent.datagrams, sent.messages)
    }
}

fn selected(prefix: &str, device: &str) -> DesiredRoute {
    let mut route = DesiredRoute::new(prefix.parse().unwrap()).device(device).scope(devices::SCOPE_LINK);
    (route.owner, route.selected) = (Arc::from("test"), true);
    route
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .host()
        .ip_batch("link add dum0 type veth peer name pdum0\nlink set dum0 up\nlink set pdum0 up\n")
        .unwrap();
    sandbox
}

#[test]
fn ten_thousand_routes_are_a_hundred_datagrams_and_none_when_repeated() {
    require_root!();
    let sandbox = sandbox();
    let routes: Vec<DesiredRoute> =
        (0..10_000u32).map(|i| selected(&format!("10.{}.{}.0/24", i / 256, i % 256), "dum0")).collect();
    let mut first = Fixture::new(sandbox.dir());
    assert!(first.apply(routes.clone()).is_empty());
    assert_eq!(first.sent(), (100, 10_000));

    // The next run compares them with one listing.
    let mut next = Fixture::new(sandbox.dir());
    assert!(next.apply(routes.clone()).is_empty());
    next.prune();
    assert_eq!(next.sent(), (0, 0));
    let mut changed = routes[77].clone();
    changed.mtu = 1400;
    assert!(next.apply(vec![changed]).is_empty());
    assert_eq!(next.sent(), (1, 1));
    let line = sandbox.host().ip("route show 10.0.77.0/24").unwrap();
    assert!(line.contains("mtu 1400"), "{line}");
    next.delete_all();
    assert_eq!(next.sent(), (100, 10_000));
    assert_eq!(sandbox.host().ip("-4 route show dev dum0").unwrap(), "");
}

#[test]
fn refused_routes_do_not_hide_the_results_of_others() {
    require_root!();
    let sandbox = sandbox();
    let mut fixture = Fixture::new(sandbox.dir());
    let mut unreachable = selected("10.0.2.0/24", "dum0");
    unreachable.hops[0].nexthop = Some([192, 0, 2, 9].into());
    unreachable.scope = 0;
    let routes = vec![
        selected("10.0.1.0/24", "dum0"),
        unreachable,
        selected("10.0.3.0/24", "absent0"),
        selected("10.0.4.0/24", "dum0"),
    ];
    let errors = fixture.apply(routes);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("route main:10.0.2.0/24: Network is unreachable"), "{errors:?}");
    assert_eq!(errors[1], "route main:10.0.3.0/24: no network interface absent0");
    let found = sandbox.host().ip("-4 route show dev dum0").unwrap();
    assert_eq!(found.lines().count(), 2, "{found}");
}

#[test]
fn a_kill_after_the_log_or_after_the_write_leaves_nothing_behind() {
    require_root!();
    let sandbox = sandbox();
    let path = sandbox.dir().join("route-reconciler.wal");
    let key = |text: &str| FibKey::main(text.parse::<IpNetwork>().unwrap());
    // One route is only in the log; one is in the kernel, and its deletion is not in the log.
    Wal::open(&path).unwrap().insert([key("10.0.1.0/24"), key("10.0.2.0/24")]).unwrap();
    sandbox.host().ip("route add 10.0.2.0/24 dev dum0 proto kernel").unwrap();
    // Others with the same destinations: of another protocol, and the kernel's own for an address.
    Wal::open(&path).unwrap().insert([key("10.0.3.0/24"), key("10.0.4.0/24")]).unwrap();
    sandbox.host().ip("route add 10.0.3.0/24 dev dum0 proto static").unwrap();
    sandbox.host().ip("addr add 10.0.4.1/24 dev dum0").unwrap();
    let mut fixture = Fixture::new(sandbox.dir());
    let address =
        devices::DeviceAddress { addr: [10, 0, 4, 1].into(), secondary: false, scope: 0, prefix_len: 24 };
    let db = fixture.ops.devices.snapshot();
    let dummy = Device::clone(fixture.ops.devices.get(&db, Device::by_name("dum0")).unwrap());
    let devices = Db::new().table_with_display::<Device>().unwrap();
    devices.transact(|txn| txn.insert(Device { addrs: vec![address], ..dummy }));
    fixture.ops.devices = Arc::new(devices.reader());
    fixture.prune();
    let found = sandbox.host().ip("-4 route show dev dum0").unwrap();
    assert!(!found.contains("10.0.1.0/24") && !found.contains("10.0.2.0/24"), "{found}");
    assert!(found.contains("10.0.3.0/24") && found.contains("10.0.4.0/24"), "{found}");
    assert!(Wal::open(&path).unwrap().keys().is_empty());

    // They are not replaced either.
    let errors = fixture.apply(vec![selected("10.0.3.0/24", "dum0"), selected("10.0.4.0/24", "dum0")]);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("made by another process (protocol 4)"), "{errors:?}");
    assert!(errors[1].contains("made by another process (protocol 2)"), "{errors:?}");
    assert!(Wal::open(&path).unwrap().keys().is_empty(), "a refused route is not this agent's");
    assert_eq!(sandbox.host().ip("-4 route show dev dum0").unwrap(), found);
}

#[test]
fn routes_that_cilium_has_left_are_taken_over() {
    require_root!();
    let sandbox = sandbox();
    sandbox
        .host()
        .ip_batch(
            "link add cilium_host type veth peer name pcilium_host\nlink set cilium_host up\nlink set pcilium_host up\naddr add 10.244.0.1/32 dev cilium_host\n\
             addr add fd00::1/128 dev cilium_host nodad\nroute add 10.244.0.1 dev cilium_host proto kernel scope link\n\
             route add 10.244.1.0/24 via 10.244.0.1 dev cilium_host src 10.244.0.1 proto kernel\n\
             route add 10.244.2.0/24 via 10.244.0.1 dev cilium_host src 10.244.0.1 proto kernel\n\
             route add fd00:1::/64 dev cilium_host src fd00::1 proto kernel\n\
             route add 10.8.0.0/16 dev cilium_host proto static\n",
        )
        .unwrap();
    let router = std::net::IpAddr::from([10, 244, 0, 1]);
    let mut fixture = Fixture::new(sandbox.dir());
    let mut own = selected("10.244.0.1/32", "cilium_host");
    own.scope = devices::SCOPE_LINK;
    let mut first = selected("10.244.1.0/24", "cilium_host").src(router).mtu(1450).scope(0);
    first.hops[0].nexthop = Some(router);
    assert!(fixture.apply(vec![own, first]).is_empty());
    fixture.prune();
    assert_eq!(sandbox.host().ip("-4 route show dev cilium_host").unwrap().lines().count(), 4);
    fixture.ops.own_device.set("cilium_host".into()).unwrap();
    fixture.prune();
    let v4 = sandbox.host().ip("-4 route show dev cilium_host").unwrap();
    let v4: Vec<String> =
        v4.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        v4,
        [
            "10.8.0.0/16 proto static scope link",
            "10.244.0.1 proto kernel scope link",
            "10.244.1.0/24 via 10.244.0.1 proto kernel src 10.244.0.1 mtu 1450",
        ]
    );
    let v6 = sandbox.host().ip("-6 route show dev cilium_host").unwrap();
    assert!(!v6.contains("fd00:1::") && v6.contains("fe80::"), "{v6}");
}

#[test]
fn a_row_of_each_shape_is_found_equal_after_it_was_written() {
    require_root!();
    let sandbox = sandbox();
    sandbox
        .host()
        .ip_batch(
            "link add dum1 type veth peer name pdum1\nlink set dum1 up\nlink set pdum1 up\naddr add 192.0.2.1/24 dev dum0\naddr add 198.51.100.1/24 dev dum1\n\
             addr add 2001:db8::1/64 dev dum0 nodad\naddr add 2001:db8:1::1/64 dev dum1 nodad\n",
        )
        .unwrap();
    let hop = |ip: &str, device: &str| crate::Hop::new(Some(ip.parse().unwrap()), Some(device));
    let plain = |prefix: &str| DesiredRoute::new(prefix.parse().unwrap());
    let mut routes = vec![
        plain("10.1.0.0/24").hop(hop("192.0.2.9", "dum0")).mtu(1400).priority(7),
        plain("10.2.0.0/24").hop(hop("192.0.2.9", "dum0")).hop(hop("198.51.100.9", "dum1")),
        plain("10.3.0.0/24").hop(hop("192.0.2.9", "dum0")).hop(hop("192.0.2.8", "dum0")),
        plain("10.4.0.0/24").kind(7),
        plain("0.0.0.0/0").device("lo").kind(2).table(2004),
        plain("fd00:1::/64").device("dum0").src("2001:db8::1".parse().unwrap()),
        plain("fd00:2::/64").hop(hop("2001:db8::9", "dum0")).hop(hop("2001:db8:1::9", "dum1")).table(300),
        plain("fd00:3::/64").kind(7),
        plain("::/0").device("lo").kind(2).table(2004),
        plain("10.5.0.0/24").hop(hop("2001:db8::9", "dum0")),
    ];
    routes.iter_mut().for_each(|route| (route.owner, route.selected) = (Arc::from("test"), true));
    let mut fixture = Fixture::new(sandbox.dir());
    assert_eq!(fixture.apply(routes.clone()), Vec::<String>::new());
    fixture.sent();
    let mut next = Fixture::new(sandbox.dir());
    assert_eq!(next.apply(routes.clone()), Vec::<String>::new());
    assert_eq!(next.sent(), (0, 0));

    // The live rows of the devices' cell agree: a refresh writes nothing.
    let live = Db::new().table_with_display::<Route>().unwrap();
    live.transact(|txn| {
        for route in Netlink::open().unwrap().routes().unwrap() {
            txn.insert(route);
        }
    });
    let snapshot = live.snapshot();
    for mut route in routes {
        resolve(&next.ops.devices, &next.ops.devices.snapshot(), &mut route).unwrap();
        route.status = Status::refreshing();
        let find = |key| live.get(&snapshot, Route::by_key(key)).map(|row| &**row);
        assert!(route.entry().is_live(find), "{route:?}");
        route.mtu += 1;
        assert!(!route.entry().is_live(find), "{route:?}");
    }
    next.delete_all();
    let left = sandbox.host().ip("-4 route show table all proto kernel type unicast").unwrap();
    assert!(!left.contains("10."), "{left}");
    assert_eq!(sandbox.host().ip("-6 route show table 300").unwrap_or_default(), "");
}

use std::fmt::Write;
use std::time::{Duration, Instant};

use statedb::{Db, Snapshot};
use test_kit::{Sandbox, require_root};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn tables(db: &Db) -> RwTables {
    RwTables { devices: db.table().unwrap(), routes: db.table().unwrap(), neighbors: db.table().unwrap() }
}

/// Runs `script` beside a monitor of the sandbox's namespace; returns the counters at its end.
fn beside_monitor(options: MonitorOptions, script: impl AsyncFnOnce(&Db, &RwTables)) -> Counters {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let db = Db::new();
        let tables = tables(&db);
        let mut monitor = Monitor::start(tables.clone(), Selection::default(), options).await.unwrap();
        tokio::select! {
            result = monitor.run(|_| {}) => panic!("the monitor ended: {result:?}"),
            () = script(&db, &tables) => {}
        }
        monitor.counters
    })
}

async fn eventually(db: &Db, what: &str, condition: impl Fn(&Snapshot) -> bool) -> Duration {
    let start = Instant::now();
    while !condition(&db.snapshot()) {
        assert!(start.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

#[test]
fn tables_follow_the_kernel() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let other = sandbox.netns("other").unwrap();
    let host = sandbox.host().clone();
    host.ip("link add br0 type bridge").unwrap();
    let counters = beside_monitor(MonitorOptions::default(), async |db, t| {
        let snap = db.snapshot();
        assert_eq!(t.devices.get(&snap, Device::by_name("br0")).unwrap().kind, "bridge");
        assert_eq!(t.devices.get(&snap, Device::by_name("lo")).unwrap().index, 1);

        host.veth("eth0", &other, "peer0").unwrap();
        host.ip("addr add 10.7.0.1/24 dev eth0").unwrap();
        host.ip("addr add fd07::1/64 dev eth0 nodad").unwrap();
        eventually(db, "eth0 with its addresses", |s| {
            t.devices.get(s, Device::by_name("eth0")).is_some_and(|d| {
                d.is_up() && d.kind == "veth" && d.addrs.iter().filter(|a| a.scope == 0).count() == 2
            })
        })
        .await;
        let reason = |s: &Snapshot, name: &str| {
            t.devices.get(s, Device::by_name(name)).map(|d| d.not_selected_reason.clone())
        };
        eventually(db, "eth0 unselected", |s| {
            reason(s, "eth0").as_deref() == Some("veth without default route")
        })
        .await;
        host.ip("route add default via 10.7.0.2").unwrap();
        eventually(db, "eth0 selected", |s| reason(s, "eth0").as_deref() == Some("")).await;

        host.ip("neigh add 10.7.0.9 lladdr 02:00:00:00:00:09 dev eth0").unwrap();
        eventually(db, "the neighbour", |s| {
            let mut found = t.neighbors.list(s, Neighbor::by_ip([10, 7, 0, 9].into()));
            found.any(|n| n.hardware_addr.to_string() == "02:00:00:00:00:09")
        })
        .await;

        // A replacement over another link: the kernel announces the new route only.
        host.veth("eth1", &other, "peer1").unwrap();
        host.ip("addr add 10.8.0.1/24 dev eth1").unwrap();
        host.ip("route replace default via 10.8.0.2").unwrap();
        eventually(db, "the default route over eth1 alone", |s| {
            let routes: Vec<_> = t.routes.all(s).filter(|r| r.is_default()).collect();
            routes.len() == 1 && routes[0].gateway == Some([10, 8, 0, 2].into())
        })
        .await;
        eventually(db, "eth0 no longer selected", |s| reason(s, "eth0").as_deref() != Some("")).await;

        // Link down: the kernel removes its IPv4 routes without a notification.
        host.ip("link set eth1 down").unwrap();
        eventually(db, "no default route", |s| !t.routes.all(s).any(|r| r.is_default())).await;

        host.ip("link set eth1 name wan0 up").unwrap();
        eventually(db, "the new name", |s| {
            t.devices.get(s, Device::by_name("eth1")).is_none()
                && t.devices.get(s, Device::by_name("wan0")).is_some()
        })
        .await;
        host.ip("link property add dev wan0 altname uplink-of-the-node").unwrap();
        eventually(db, "the alternative name", |s| {
            t.devices.get(s, Device::by_name("uplink-of-the-node")).is_some()
        })
        .await;

        // A move into another namespace and a deletion leave no rows.
        let target = other.path().display();
        host.ip(&format!("link set wan0 netns {target}")).unwrap();
        host.ip("link del eth0").unwrap();
        eventually(db, "only lo and br0", |s| t.devices.len(s) == 2).await;
        let snap = db.snapshot();
        let left: Vec<u32> = t.routes.all(&snap).map(|r| r.key.link_index).filter(|i| *i > 2).collect();
        assert!(left.is_empty(), "routes of links that are gone: {left:?}");
        assert_eq!(t.neighbors.len(&snap), 0);
    });
    assert_eq!((counters.overflows, counters.unknown, counters.listings), (0, 0, 1), "{counters:?}");
}

#[test]
fn a_flood_that_overflows_the_socket_is_repaired() {
    require_root!();
    const PAIRS: usize = 500; // 1000 links, both ends in the namespace
    let sandbox = Sandbox::new().unwrap();
    let host = sandbox.host().clone();
    let options = MonitorOptions { receive_buffer: 64 << 10, ..MonitorOptions::default() };
    let counters = beside_monitor(options, async |db, t| {
        let mut lines = String::new();
        for i in 0..PAIRS {
            writeln!(lines, "link add a{i} type veth peer name b{i}").unwrap();
            writeln!(lines, "addr add 10.{}.{}.1/32 dev a{i}", i / 250, i % 250).unwrap();
        }
        // Blocks this thread, and with it the monitor: notifications are not read.
        host.ip_batch(&lines).unwrap();
        eventually(db, "all links with addresses", |s| {
            t.devices.len(s) == 1 + 2 * PAIRS
                && (0..PAIRS).all(|i| {
                    t.devices.get(s, Device::by_name(&format!("a{i}"))).is_some_and(|d| d.addrs.len() == 1)
                })
        })
        .await;
        let lines: String = (0..PAIRS).fold(String::new(), |mut lines, i| {
            let _ = writeln!(lines, "link set a{i} group 9");
            lines
        });
        host.ip_batch(&lines).unwrap();
        host.ip("link del group 9").unwrap();
        eventually(db, "all gone", |s| t.devices.len(s) == 1).await;
        assert!(t.routes.all(&db.snapshot()).all(|r| r.key.link_index <= 1));
    });
    assert!(counters.overflows >= 1, "the test did not overflow the socket: {counters:?}");
    assert!(counters.listings >= 2, "{counters:?}");
}

#[test]
fn a_change_is_in_the_table_within_milliseconds() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let pod = sandbox.netns("pod").unwrap();
    beside_monitor(MonitorOptions::default(), async |db, t| {
        let mut times = Vec::new();
        for i in 0..10 {
            let (name, pod) = (format!("lxc{i}"), pod.clone());
            let mut nl = Netlink::open().unwrap();
            let spec = crate::rtnetlink::VethSpec {
                name: &name,
                peer: crate::rtnetlink::VethPeer { name: &name, netns: Some(pod.fd()), ..Default::default() },
                ..Default::default()
            };
            nl.add_veth(&spec).unwrap();
            let seen = |s: &Snapshot| t.devices.get(s, Device::by_name(&name)).is_some();
            times.push(eventually(db, "the link", seen).await);
        }
        times.sort();
        assert!(times[5] < Duration::from_millis(50), "{times:?}");
    });
}

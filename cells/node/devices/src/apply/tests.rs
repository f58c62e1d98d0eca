use statedb::{Db, RwTable};

use super::*;
use crate::device::IFF_UP;
use crate::{DeviceAddress, Link, RouteKey, TABLE_LOCAL};

struct Fixture {
    db: Db,
    devices: RwTable<Device>,
    routes: RwTable<Route>,
    neighbors: RwTable<Neighbor>,
    selection: Selection,
}

impl Fixture {
    fn new() -> Self {
        let db = Db::new();
        Self {
            devices: db.table().unwrap(),
            routes: db.table().unwrap(),
            neighbors: db.table().unwrap(),
            selection: Selection::default(),
            db,
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Tables<'_, '_>) -> R) -> R {
        let mut txn = self.db.write((&self.devices, &self.routes, &self.neighbors));
        let (devices, routes, neighbors) = txn.split();
        let result = work(&mut Tables { devices, routes, neighbors });
        txn.commit();
        result
    }

    fn apply(&self, events: Vec<Event>) -> Applied {
        self.with(|tables| apply(tables, &self.selection, events))
    }

    fn resync(&self, listing: Vec<Event>) {
        self.with(|tables| resync(tables, &self.selection, listing));
    }

    /// All rows as text, to compare two states.
    fn dump(&self) -> Vec<String> {
        let snap = self.db.snapshot();
        let devices = self.devices.all(&snap).map(|d| format!("{:?}", **d));
        let routes = self.routes.all(&snap).map(|r| format!("{:?}", **r));
        let neighbors = self.neighbors.all(&snap).map(|n| format!("{:?}", **n));
        devices.chain(routes).chain(neighbors).collect()
    }

    fn device(&self, index: u32) -> Device {
        let snap = self.db.snapshot();
        Device::clone(self.devices.get(&snap, Device::by_index(index)).unwrap())
    }

    fn revisions(&self) -> [u64; 3] {
        let snap = self.db.snapshot();
        [self.devices.revision(&snap), self.routes.revision(&snap), self.neighbors.revision(&snap)]
    }
}

fn link(index: u32, name: &str) -> Event {
    Event::Link(Link {
        index,
        name: name.into(),
        kind: "device".into(),
        raw_flags: IFF_UP,
        ..Link::default()
    })
}

fn address(last: u8) -> DeviceAddress {
    DeviceAddress { addr: [10, 0, 0, last].into(), secondary: false, scope: 0, prefix_len: 24 }
}

fn route(index: u32, table: u32, dst: &str) -> Route {
    Route {
        key: RouteKey { table, link_index: index, dst: dst.parse().unwrap(), priority: 0 },
        kind: 1,
        scope: 0,
        src: None,
        gateway: None,
        mtu: 0,
    }
}

fn neighbor(index: u32, last: u8) -> Neighbor {
    Neighbor {
        link_index: index,
        ip: [10, 0, 0, last].into(),
        hardware_addr: crate::HardwareAddr::new(&[2, 0, 0, 0, 0, last]),
        kind: 1,
        state: 2,
        flags: 0,
        flags_ext: 0,
    }
}

fn eth0() -> Vec<Event> {
    vec![
        link(2, "eth0"),
        Event::Addr(2, address(1)),
        Event::Route(route(2, TABLE_LOCAL, "10.0.0.1/32")),
        Event::Route(route(2, TABLE_MAIN, "0.0.0.0/0")),
        Event::Neighbor(neighbor(2, 9)),
    ]
}

#[test]
fn a_device_is_selected_once_its_route_is_there() {
    let f = Fixture::new();
    f.apply(eth0()[..2].to_vec());
    assert_eq!(f.device(2).not_selected_reason, "no global unicast routes");
    f.apply(eth0()[2..].to_vec());
    assert!(f.device(2).selected);
    f.apply(vec![Event::RouteGone(route(2, TABLE_LOCAL, "10.0.0.1/32").key)]);
    assert_eq!(f.device(2).not_selected_reason, "no global unicast routes");
}

#[test]
fn a_link_takes_everything_with_it() {
    let f = Fixture::new();
    f.apply(eth0());
    f.apply(vec![link(3, "eth1")]);
    f.apply(vec![
        Event::LinkGone(2),
        // Late messages about the deleted link change nothing.
        Event::Route(route(2, TABLE_MAIN, "10.0.0.0/24")),
        Event::Addr(2, address(1)),
        Event::Neighbor(neighbor(2, 8)),
    ]);
    assert_eq!(f.dump().len(), 1, "{:?}", f.dump());
    // The same index may be reused.
    f.apply(eth0());
    assert!(f.device(2).selected);
}

#[test]
fn silent_route_losses_are_announced() {
    let f = Fixture::new();
    assert!(!f.apply(eth0()).routes_stale);
    assert!(f.apply(vec![Event::AddrGone(2, [10, 0, 0, 1].into(), 24)]).routes_stale);
    assert!(!f.apply(vec![Event::AddrGone(2, [10, 0, 0, 1].into(), 24)]).routes_stale);
    let down = Event::Link(Link { index: 2, name: "eth0".into(), ..Link::default() });
    assert!(f.apply(vec![down.clone()]).routes_stale);
    assert!(!f.apply(vec![down]).routes_stale);
}

#[test]
fn a_rename_keeps_the_row_and_moves_the_name() {
    let f = Fixture::new();
    f.apply(eth0());
    f.apply(vec![link(2, "wan")]);
    let snap = f.db.snapshot();
    assert!(f.devices.get(&snap, Device::by_name("eth0")).is_none());
    let wan = f.devices.get(&snap, Device::by_name("wan")).unwrap();
    assert_eq!(wan.addrs.len(), 1);
}

#[test]
fn resync_writes_only_differences_and_removes_the_rest() {
    let f = Fixture::new();
    f.resync(eth0());
    let (rows, revisions) = (f.dump(), f.revisions());
    assert!(f.device(2).selected);
    f.resync(eth0());
    assert_eq!(f.revisions(), revisions, "nothing new, nothing written");
    // Messages were lost: eth1 was added, an address and a route of eth0 changed.
    f.apply(vec![
        link(3, "eth1"),
        Event::Route(route(3, TABLE_MAIN, "10.9.0.0/16")),
        Event::Neighbor(neighbor(3, 7)),
        Event::Addr(2, address(5)),
        Event::RouteGone(route(2, TABLE_MAIN, "0.0.0.0/0").key),
    ]);
    assert_ne!(f.dump(), rows);
    f.resync(eth0());
    assert_eq!(f.dump(), rows);
}

#[test]
fn default_routes_are_found_by_family_and_table() {
    let f = Fixture::new();
    let veth = |event: Event| match event {
        Event::Link(mut link) => {
            link.kind = "veth".into();
            Event::Link(link)
        }
        other => other,
    };
    let selected = |dst: &str, table: u32, index: u32| {
        f.apply(vec![
            veth(link(2, "veth0")),
            Event::Addr(2, address(1)),
            link(3, "other"),
            Event::Route(route(2, TABLE_LOCAL, "10.0.0.1/32")),
            Event::Route(route(index, table, dst)),
        ]);
        let selected = f.device(2).selected;
        f.apply(vec![Event::LinkGone(2), Event::LinkGone(3)]);
        selected
    };
    assert!(selected("0.0.0.0/0", TABLE_MAIN, 2));
    assert!(selected("::/0", TABLE_MAIN, 2));
    assert!(!selected("::/1", TABLE_MAIN, 2));
    assert!(!selected("0.0.0.0/0", 100, 2));
    assert!(!selected("0.0.0.0/0", TABLE_MAIN, 3));
}

proptest::proptest! {
    /// Any order of events followed by a listing has the result of the listing alone.
    #[test]
    fn a_listing_repairs_every_history(picks in proptest::collection::vec(0usize..12, 0..60)) {
        let events = |pick: usize| match pick {
            0 => link(2, "eth0"),
            1 => link(3, "eth1"),
            2 => Event::LinkGone(2),
            3 => Event::LinkGone(3),
            4 => Event::Addr(2, address(1)),
            5 => Event::AddrGone(2, [10, 0, 0, 1].into(), 24),
            6 => Event::Addr(3, address(2)),
            7 => Event::Route(route(2, TABLE_LOCAL, "10.0.0.1/32")),
            8 => Event::RouteGone(route(2, TABLE_LOCAL, "10.0.0.1/32").key),
            9 => Event::Route(route(3, TABLE_MAIN, "0.0.0.0/0")),
            10 => Event::Neighbor(neighbor(2, 9)),
            _ => Event::NeighborGone(2, [10, 0, 0, 9].into()),
        };
        let f = Fixture::new();
        for chunk in picks.chunks(3) {
            f.apply(chunk.iter().map(|p| events(*p)).collect());
        }
        f.resync(eth0());
        let fresh = Fixture::new();
        fresh.resync(eth0());
        proptest::prop_assert_eq!(f.dump(), fresh.dump());
    }
}

//! Longest-prefix-match indexes. Rows named `LPM_` are measured in Cilium on the tree alone, here on a table.

use std::net::Ipv4Addr;

use serde::Serialize;
use statedb::{BitPrefix, Index, IndexDef, LpmIndex, Obj, Query, RwTable, TableDisplay, TableSpec};

use crate::measure::Goal::Times;
use crate::measure::row;
use crate::table;

/// A row with two prefixes, a unique one and one that covers everything.
#[derive(Clone, Serialize)]
struct Host {
    id: u16,
    address: Ipv4Addr,
}

const BY_ADDRESS: LpmIndex<Host, Ipv4Addr> =
    Index::unique_lpm("address", |host, keys| keys.add(&host.address));
const BY_PORT: LpmIndex<Host, BitPrefix> = Index::lpm("port", |_, keys| keys.extend(&BitPrefix::new(&[], 0)));

impl TableSpec for Host {
    const NAME: &'static str = "hosts";
    const UNIQUE_SECONDARY: bool = true;
    type Key<'a> = u16;

    fn key(&self) -> u16 {
        self.id
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_ADDRESS.def(), BY_PORT.def()]
    }
}

impl TableDisplay for Host {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }
}

/// A row with only one prefix, most similar to Cilium's tree alone.
#[derive(Clone, Serialize)]
struct Route(Ipv4Addr);

const BY_ROUTE: LpmIndex<Route, Ipv4Addr> = Index::lpm("route", |route, keys| keys.add(&route.0));

impl TableSpec for Route {
    const NAME: &'static str = "routes";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.0.into()
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_ROUTE.def()]
    }
}

impl TableDisplay for Route {
    fn columns() -> &'static [&'static str] {
        &["Route"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

/// Returns the addresses of Cilium's benchmark: ascending, with the most significant byte varying fastest.
fn address(at: u32) -> Ipv4Addr {
    Ipv4Addr::from(at)
}

fn scattered(at: u32) -> Ipv4Addr {
    Ipv4Addr::from(at.swap_bytes())
}

fn put(table: &RwTable<Host>, ids: std::ops::Range<u32>, address: fn(u32) -> Ipv4Addr) {
    table.transact(|w| {
        for id in ids {
            w.try_insert(Host { id: id as u16, address: address(id) }).expect("an address of its own");
        }
    });
}

pub(crate) fn measure() {
    let hosts = table::<Host>();
    row("DB_WriteTxn_100_LPMIndex", 1415.0, Times(8.0), || put(&hosts, 0..100, address), 100);
    let hosts = table::<Host>();
    put(&hosts, 0..0x1_0000, scattered);
    let mut id = 0;
    let one = || {
        id = (id + 1) % 0x1_0000;
        put(&hosts, id..id + 1, scattered);
    };
    row("DB_WriteTxn_1_LPMIndex", 17_795.0, Times(3.0), one, 1);

    let hosts = table::<Host>();
    put(&hosts, 0..10_000, address);
    let snapshot = hosts.snapshot();
    let queries: Vec<Query<Host>> = (0..10_000).map(|at| BY_ADDRESS.query(&address(at))).collect();
    let get = || queries.iter().for_each(|query| assert!(hosts.get(&snapshot, query).is_some()));
    row("DB_LPMIndex_Get", 201.8, Times(3.0), get, 10_000);

    tree();
}

fn tree() {
    let routes = table::<Route>();
    routes.transact(|w| (0..1000).for_each(|at| drop(w.insert(Route(address(at))))));
    let snapshot = routes.snapshot();
    let queries: Vec<Query<Route>> = (0..1000).map(|at| BY_ROUTE.query(&address(at))).collect();
    let get = || queries.iter().for_each(|query| assert!(routes.get(&snapshot, query).is_some()));
    row("LPM_Lookup", 100.7, Times(3.0), get, 1000);
    let odd = |sum: u32, route: &Obj<Route>| sum + (u32::from(route.0) & 1);
    let all = || assert_eq!(routes.prefix(&snapshot, BY_ROUTE.all()).fold(0, odd), 500);
    row("LPM_All", 5.31, Times(3.0), all, 1000);
    let network = ipnetwork::Ipv4Network::new(address(0), 16).expect("a network");
    let inside = || assert_eq!(routes.prefix(&snapshot, BY_ROUTE.prefix(&network)).fold(0, odd), 500);
    row("LPM_Prefix", 5.18, Times(3.0), inside, 1000);
    let from = || assert_eq!(routes.lower_bound(&snapshot, BY_ROUTE.query(&address(500))).fold(0, odd), 250);
    row("LPM_LowerBound", 5.78, Times(3.0), from, 500);
}

//! Routes in a table: one thread writes, another one waits for the route to an address. No runtime, no JSON.

use std::net::Ipv4Addr;
use std::thread;

use futures_executor::block_on;
use statedb::{Db, RwTable, Table};

#[derive(Clone, Debug, Table)]
#[table(name = "routes", no_display)]
struct Route {
    #[primary]
    id: u32,
    #[index(lpm)]
    destination: Ipv4Addr,
    #[index]
    device: String,
}

fn main() {
    let routes: RwTable<Route> = Db::new().table().expect("the first table of this name");
    let reader = routes.reader();
    let waiting =
        thread::spawn(move || block_on(reader.wait_for(Route::by_id(2), |route| route.device == "eth1")));

    let insert = |id, last, device: &str| {
        let route = Route { id, destination: Ipv4Addr::new(10, 0, 0, last), device: device.to_owned() };
        routes.transact(|w| w.insert(route)).1
    };
    let before = insert(1, 1, "eth0");
    insert(2, 2, "eth0");
    let after = insert(2, 2, "eth1");

    let found = waiting.join().expect("the reader waits for a route that comes");
    assert_eq!((found.id, found.device.as_str()), (2, "eth1"));
    assert_eq!((routes.len(&before), routes.len(&after)), (1, 2));
    let to = |address: [u8; 4]| {
        routes.get(&after, Route::by_destination(Ipv4Addr::from(address))).map(|route| route.id)
    };
    assert_eq!((to([10, 0, 0, 2]), to([10, 0, 0, 3])), (Some(2), None));
    assert_eq!(routes.list(&after, Route::by_device("eth0")).count(), 1);
    println!("{} routes, revision {}", routes.len(&after), routes.revision(&after));
}

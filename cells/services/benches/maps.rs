//! Times from services to their rows: one row a line, `name measured unit goal met peer` with tabs between. The peer is
//! the original, by its own published numbers.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use services::maglev::{Maglev, Share};
use services::testing::{Direct, FakeMaps};
use services::{Backend, FrontendParams, FrontendType, LbAddress, Protocol, Service, ServiceName, Source};

const SERVICES: u32 = 50_000;

fn row(name: &str, measured: f64, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.2}\tus\t{goal}\t{met}\t{peer}");
}

fn micros(times: u32, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..times).for_each(|_| work());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(times)
}

fn address(net: u8, n: u32, port: u16) -> LbAddress {
    let [_, a, b, c] = n.to_be_bytes();
    LbAddress::new([net, a, b, c].into(), port, Protocol::Tcp)
}

fn frontend(n: u32) -> FrontendParams {
    let (address, kind) = (address(11, n, 80), FrontendType::ClusterIP);
    FrontendParams { address, kind, port_name: "".into(), service_port: 80 }
}

fn main() {
    let maglev = Maglev::default();
    let share = |n| Share { address: address(10, n, 80), weight: 100, id: n };
    let shares: Vec<Share> = (1..=100).map(share).collect();
    let table = (0..5).map(|_| micros(100, || assert_eq!(maglev.table(&shares).len(), 16_381)));
    row("Maglev table of 16381, 100 backends", table.fold(f64::MAX, f64::min), 150.0, "-");

    let maps = || Arc::new(FakeMaps::with_capacity(1 << 20));
    let mut direct = Direct::new(maps()).unwrap();
    let all = micros(1, || {
        let mut txn = direct.writer().write();
        for n in 1..=SERVICES {
            let name = ServiceName::new("bench", &format!("s{n}"));
            txn.upsert_service(Service::new(name.clone(), Source::Api), vec![frontend(n)]).unwrap();
            let backend = Backend::new(name.clone(), address(10, n, 8080), Source::Api);
            txn.set_backends(&name, Source::Api, vec![backend]);
        }
        txn.commit();
        assert_eq!(direct.reconcile().unwrap(), SERVICES as usize);
    });
    row("50k services to fake maps, each", all / f64::from(SERVICES), 2.0, "14.2");

    let mut direct = Direct::new(maps()).unwrap();
    let name = ServiceName::new("bench", "large");
    let backend = |n| Backend::new(name.clone(), address(10, n, 8080), Source::Api);
    let mut txn = direct.writer().write();
    txn.upsert_service(Service::new(name.clone(), Source::Api), vec![frontend(1)]).unwrap();
    txn.set_backends(&name, Source::Api, (1..=1000).map(backend).collect());
    txn.commit();
    direct.reconcile().unwrap();
    let mut healthy = false;
    let one = micros(1000, || {
        let mut txn = direct.writer().write();
        assert!(txn.set_health(&name, &address(10, 1000, 8080), healthy, UNIX_EPOCH));
        healthy = !healthy;
        txn.commit();
        assert_eq!(direct.reconcile().unwrap(), 1);
    });
    row("one of 1000 backends of a service to fake maps", one, 50.0, "-");
}

//! Latency from cluster objects to map entries: one row a line, `name measured unit goal met peer` separated by tabs.
//! Times are CPU time of this process, independent of other load on the machine; the peer is Cilium, by its published
//! numbers.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use k8s_tables::Row;
use k8s_tables::core::{Endpoint, EndpointPort, EndpointSlice, Service as Manifest, ServicePort};
use loadbalancer::maglev::{Maglev, Share};
use loadbalancer::rows::{Key, LbMap, LbMaps, MapError, Value};
use loadbalancer::testing::{Direct, FakeMaps};
use loadbalancer::{KernelMaps, LbAddress, Protocol, ServiceName};
use maps::{FamilyConfig, MapsConfig, Specs};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

const SERVICES: usize = 50_000;
const ROWS: u32 = 1 << 18;

fn row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("services: {name}\t{measured:.2}\t{unit}\t{goal}\t{met}\t{peer}");
}

/// Returns the CPU time of this process.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time in microseconds since then, divided by the number of operations.
fn each(since: Duration, times: usize) -> f64 {
    (computed() - since).as_secs_f64() * 1e6 / times as f64
}

/// Runs all benchmarks, or the named ones: `cargo bench --bench maps -- fake memory`.
fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    if wanted("maglev") {
        maglev();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        if wanted("fake") {
            many("fake maps", || Arc::new(FakeMaps::with_capacity(ROWS as usize)), 2.0).await;
        }
        match rustix::process::geteuid().is_root() {
            _ if !wanted("kernel") => {}
            true => many("the kernel's maps", kernel, 4.0).await,
            false => println!("services: not measured with the kernel's maps, which takes root"),
        }
        if wanted("memory") {
            memory().await;
        }
        if wanted("one") {
            one_of_many().await;
        }
        if wanted("churn") {
            churn().await;
        }
    });
}

fn maglev() {
    let maglev = Maglev::default();
    let address = |n: u32| LbAddress::new(n.to_be_bytes().into(), 80, Protocol::Tcp);
    let share = |n| Share { address: address(0x0a00_0000 + n), weight: 100, id: n };
    let shares: Vec<Share> = (1..=100).map(share).collect();
    let table = (0..5).map(|_| {
        let begin = computed();
        (0..100).for_each(|_| assert_eq!(maglev.table(&shares).len(), 16_381));
        each(begin, 100)
    });
    row("Maglev table of 16381, 100 backends", table.fold(f64::MAX, f64::min), "us", 150.0, "-");
}

/// Returns unpinned maps in the kernel.
fn kernel() -> Arc<dyn LbMaps> {
    let families = FamilyConfig { enable_ipv4: true, enable_ipv6: true };
    let specs = Specs::new(MapsConfig { bpf_lb_map_max: ROWS, ..MapsConfig::default() }, families.clone());
    Arc::new(KernelMaps::unpinned(&specs, &families).unwrap())
}

/// Maps that accept and discard all writes.
struct NoMaps;

impl LbMaps for NoMaps {
    fn put(&self, _: &[(Key, Value)]) -> Result<(), MapError> {
        Ok(())
    }

    fn put_tables(&self, _: &[(Key, Arc<[u32]>)]) -> Result<(), MapError> {
        Ok(())
    }

    fn table(&self, _: &Key) -> Result<Option<Arc<[u32]>>, MapError> {
        Ok(None)
    }

    fn delete(&self, _: &[Key]) -> Result<(), MapError> {
        Ok(())
    }

    fn get(&self, _: &Key) -> Result<Option<Value>, MapError> {
        Ok(None)
    }

    fn rows(&self) -> Result<Vec<(Key, Value)>, MapError> {
        Ok(Vec::new())
    }

    fn capacity(&self, _: LbMap) -> usize {
        ROWS as usize
    }
}

fn service(n: usize) -> Row<Manifest> {
    let mut object = Manifest::default();
    object.metadata.name = format!("service-{n}").into();
    object.metadata.namespace = "bench".into();
    let ip = format!("10.{}.{}.{}", 96 + n / 65536, n / 256 % 256, n % 256);
    object.spec.r#type = "ClusterIP".into();
    object.spec.cluster_ip = ip.as_str().into();
    object.spec.cluster_ips = [ip.into()].into();
    let port =
        ServicePort { name: "http".into(), port: 80, protocol: "TCP".into(), ..ServicePort::default() };
    object.spec.ports = [port].into();
    Row::of(object)
}

/// Returns a slice of a service with these backends, of which one may not be ready.
fn slice(
    service: usize,
    slice: usize,
    backends: std::ops::Range<usize>,
    out: Option<usize>,
) -> Row<EndpointSlice> {
    let mut object = EndpointSlice::default();
    object.metadata.name = format!("service-{service}-{slice}").into();
    object.metadata.namespace = "bench".into();
    let labels = [(k8s_tables::SERVICE_NAME, format!("service-{service}"))];
    object.metadata.labels = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    object.address_type = "IPv4".into();
    let port = EndpointPort { name: Some("http".into()), port: Some(8080), protocol: Some("TCP".into()) };
    object.ports = [port].into();
    let endpoint = |n: usize| {
        let mut endpoint = Endpoint::default();
        let ip = format!("10.{}.{}.{}", n / 65536, n / 256 % 256, n % 256);
        endpoint.addresses = [ip.into()].into();
        endpoint.node_name = Some("other".into());
        endpoint.conditions.ready = Some(out != Some(n));
        endpoint
    };
    object.endpoints = backends.map(endpoint).collect::<Vec<_>>();
    Row::of(object)
}

/// Services with one backend each, in the order in which their objects arrive; then a start that finds them in the
/// maps.
async fn many(what: &str, maps: impl Fn() -> Arc<dyn LbMaps>, goal: f64) {
    let objects: Vec<_> = (0..SERVICES).map(|n| (service(n), slice(n, 0, n..n + 1, None))).collect();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let maps = maps();
        let objects = objects.clone();
        let run = Direct::run(maps.clone(), async |direct: &mut Direct| {
            after_the_start(direct).await;
            let begin = computed();
            fill(direct, objects);
            direct.reflect();
            direct.reconciled().await;
            best = best.min(each(begin, SERVICES));
        });
        run.await.unwrap();
        assert_eq!(maps.all_rows().unwrap().len(), 5 * SERVICES);
        if best > goal {
            continue;
        }
    }
    row(&format!("50k services to {what}, each"), best, "us", goal, "14.2");

    let maps = maps();
    let all = || objects.clone();
    let first = Direct::run(maps.clone(), async |direct: &mut Direct| {
        fill(direct, all());
        direct.reflect();
        direct.reconciled().await;
    });
    first.await.unwrap();
    let rows = maps.all_rows().unwrap().len();
    let objects = all();
    let begin = computed();
    let second = Direct::run(maps.clone(), async |direct: &mut Direct| {
        fill(direct, objects);
        direct.reflect();
        // Requested before the first prune, so it waits for that one.
        tokio::join!(direct.reconciled(), direct.pruned());
        let took = each(begin, 1) / 1e6;
        row(&format!("start with 50k services in {what}, to the end of the prune"), took, "s", 0.5, "-");
    });
    second.await.unwrap();
    assert_eq!(maps.all_rows().unwrap().len(), rows);
}

/// Waits until tables are complete and the maps were compared with them: both are measured as part of a start.
async fn after_the_start(direct: &mut Direct) {
    direct.reflect();
    direct.pruned().await;
}

/// Writes the objects into their tables, in chunks of the size of an API server's list page.
fn fill(direct: &Direct, objects: Vec<(Row<Manifest>, Row<EndpointSlice>)>) {
    let mut objects = objects.into_iter().peekable();
    while objects.peek().is_some() {
        let (services, slices): (Vec<_>, Vec<_>) = objects.by_ref().take(500).unzip();
        direct.services.transact(|txn| services.into_iter().for_each(|row| _ = txn.insert(row)));
        direct.slices.transact(|txn| slices.into_iter().for_each(|row| _ = txn.insert(row)));
    }
}

/// Memory of a service in tables, reflector and reconciler, without its objects.
async fn memory() {
    let run = Direct::run(Arc::new(NoMaps), async |direct: &mut Direct| {
        after_the_start(direct).await;
        fill(direct, (0..SERVICES).map(|n| (service(n), slice(n, 0, n..n + 1, None))).collect());
        let before = memory_limit::allocated().unwrap();
        direct.reflect();
        direct.reconciled().await;
        let held = memory_limit::allocated().unwrap() - before;
        row("memory of a service with a backend", held as f64 / SERVICES as f64, "B", 800.0, "3100");
    });
    run.await.unwrap();
}

/// Changes one of a thousand backends: by a health check, and by a slice of a hundred.
async fn one_of_many() {
    const CHANGES: usize = 1000;
    let run = Direct::run(Arc::new(FakeMaps::default()), async |direct: &mut Direct| {
        let slices = |n: usize, out| slice(0, n, n * 100..(n + 1) * 100, out);
        fill(direct, (0..10).map(|n| (service(0), slices(n, None))).collect());
        direct.reflect();
        direct.reconciled().await;
        let name = ServiceName::new("bench", "service-0");
        for (what, last) in [("the last", true), ("any", false)] {
            let begin = computed();
            for n in 0..CHANGES {
                let at = if last { 999 } else { n / 2 * 7919 % 1000 };
                let ip = [10, 0, (at / 256) as u8, (at % 256) as u8];
                let address = LbAddress::new(ip.into(), 8080, Protocol::Tcp);
                let mut txn = direct.writer().write();
                assert!(txn.set_health(&name, &address, n % 2 == 1, UNIX_EPOCH));
                txn.commit();
                direct.reconciled().await;
            }
            let took = each(begin, CHANGES);
            row(
                &format!("{what} of 1000 backends of a service to fake maps, by health"),
                took,
                "us",
                50.0,
                "-",
            );
        }
        let begin = computed();
        for n in 0..CHANGES {
            let at = n / 2 * 7919 % 1000;
            let changed = slices(at / 100, (n % 2 == 0).then_some(at));
            direct.slices.transact(|txn| txn.insert(changed));
            direct.reflect();
            direct.reconciled().await;
        }
        row(
            "any of 1000 backends of a service to fake maps, by its slice",
            each(begin, CHANGES),
            "us",
            50.0,
            "-",
        );
    });
    run.await.unwrap();
}

/// Changes random ones of 40,000 backends of 2,500 services, a hundred times a second, each in its own transaction.
async fn churn() {
    const CHANGES: usize = 2000;
    const BACKENDS: usize = 16;
    let run = Direct::run(Arc::new(FakeMaps::with_capacity(ROWS as usize)), async |direct: &mut Direct| {
        let slices = |n: usize, out| slice(n, 0, n * BACKENDS..(n + 1) * BACKENDS, out);
        fill(direct, (0..2500).map(|n| (service(n), slices(n, None))).collect());
        direct.reflect();
        direct.reconciled().await;
        let begin = computed();
        for n in 0..CHANGES {
            let at = n / 2 * 7919 % 40_000;
            let changed = slices(at / BACKENDS, (n % 2 == 0).then_some(at));
            direct.slices.transact(|txn| txn.insert(changed));
            direct.reflect();
            direct.reconciled().await;
        }
        let percent = each(begin, CHANGES) * 100.0 / 1e6 * 100.0;
        row("2.5k services, 40k backends, 100 changes a second, of a core", percent, "%", 3.0, "-");
    });
    run.await.unwrap();
}

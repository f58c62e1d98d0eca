//! Policy at the size of a large cluster: 30,000 policies, 6,000 identities with 5 pods each, 100 endpoints of this node.
//! Tables, engine and rounds are real, policy maps are in memory. One row a line, `name measured unit goal met peer`
//! separated by tabs; the peer's numbers are those that Cilium has published for its own computation.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use datapath_api::{Datapath as _, EndpointDatapath};
use ipcache::{Claim, IpcacheWriter, Mapping, Source};
use ipnetwork::IpNetwork;
use labels::{LabelArray, Labels};
use policy::{EndpointPolicy, NamedPorts, Subject};
use serde_json::{Value, json};

#[path = "../tests/cell/kit.rs"]
#[expect(dead_code, reason = "of the tests")]
mod kit;

#[path = "../tests/cell/churn.rs"]
mod identities;

use kit::{Agent, World};

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

const POLICIES: usize = 30_000;
const IDENTITIES: usize = 6_000;
const PODS: usize = 30_000;
const ENDPOINTS: usize = 100;
/// Applications of a namespace, one identity each.
const APPS: usize = 10;
const NAMESPACES: usize = IDENTITIES / APPS;
/// Policies about one application.
const PER_APP: usize = POLICIES / IDENTITIES;
const CHANGES: usize = 400;
const TIME_LIMIT: Duration = Duration::from_secs(300);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(measure());
}

async fn measure() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    let idle = allocated();
    let identities: Vec<u32> = (0..IDENTITIES).map(|n| world.allocate(&of(n), &format!("pod/{n}"))).collect();
    let ipcache = agent.hive.get::<IpcacheWriter>();
    let pods = (0..PODS).map(|n| ipcache::Change::Upsert(address(n), claim(identities[n % IDENTITIES], n)));
    let revision = ipcache.apply(pods);
    ipcache.applied(revision, &[]).await.unwrap();
    for n in 0..ENDPOINTS {
        let (endpoint, identity) = (endpoint(n), identities[of_endpoint(n)]);
        let attached =
            EndpointDatapath { id: endpoint, ifindex: endpoint.into(), ..EndpointDatapath::default() };
        world.datapath.attach(&attached).unwrap();
        let labels = LabelArray::from(&of(of_endpoint(n)));
        agent.policies.enforce(Subject { endpoint, identity, labels, named_ports: NamedPorts::default() });
    }
    realized(&agent, 1).await;

    let all: Vec<(String, Value)> = (0..POLICIES).map(|n| (name(n), policy(n, 8000))).collect();
    world.write_all(&all);
    drop(all);
    let (begin, computed) = (Instant::now(), processor_time());
    realized(&agent, POLICIES as u64 + 1).await;
    row("30,000 policies: first computation", begin.elapsed(), "s", 2.0, "-");
    row("30,000 policies: first computation, processor time", processor_time() - computed, "s", 2.0, "-");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let megabytes = (allocated() - idle) as f64 / 1e6;
    print("30,000 policies and pods: memory over idle", megabytes, "MB", 150.0, "1500");

    // Of an application of this node, and of the others.
    let revision = agent.policies.revision();
    let mut samples = Vec::new();
    for change in 0..CHANGES {
        let number = of_endpoint(change % ENDPOINTS) + change / ENDPOINTS % PER_APP * IDENTITIES;
        let begin = Instant::now();
        world.write_all(&[(name(number), policy(number, 9000 + change))]);
        realized(&agent, revision + change as u64 + 1).await;
        samples.push(begin.elapsed());
    }
    percentiles("one policy of 30,000 changed", &mut samples, 1.0, 20.0, ["9", "317"]);

    // Another identity of an application that rules of an endpoint select as peer.
    let mut samples = Vec::new();
    for change in 0..CHANGES {
        let n = change % ENDPOINTS;
        let peer = peer_of(of_endpoint(n));
        let mut texts = texts(peer);
        texts.push(format!("k8s:version={change}"));
        let begin = Instant::now();
        let identity = world.allocate(&Labels::parse(texts.iter().map(String::as_str)), "pod/churn");
        let has_it =
            || world.fake.policy_rows(endpoint(n)).unwrap().iter().any(|(key, _)| key.sec_label == identity);
        while !has_it() {
            assert!(begin.elapsed() < TIME_LIMIT);
            turn().await;
        }
        samples.push(begin.elapsed());
        world.identities.release(identity, "pod/churn");
    }
    percentiles("one identity of 6,000 added", &mut samples, 1.0, 20.0, ["9", "317"]);

    // Creations of endpoints while all policies change.
    let all: Vec<(String, Value)> = (0..POLICIES).map(|n| (name(n), policy(n, 7000))).collect();
    let revision = agent.policies.revision();
    world.write_all(&all);
    let begin = Instant::now();
    let mut samples = Vec::new();
    for n in 0.. {
        let endpoint = 20_000 + n as u16;
        let attached =
            EndpointDatapath { id: endpoint, ifindex: endpoint.into(), ..EndpointDatapath::default() };
        world.datapath.attach(&attached).unwrap();
        let number = of_endpoint(n % ENDPOINTS);
        let (identity, labels) = (identities[number], LabelArray::from(&of(number)));
        let begin = Instant::now();
        agent.policies.enforce(Subject { endpoint, identity, labels, named_ports: NamedPorts::default() });
        created(&agent, endpoint).await;
        samples.push(begin.elapsed());
        agent.policies.forget(endpoint);
        if agent.policies.revision() >= revision + POLICIES as u64 {
            break;
        }
    }
    row("30,000 policies: all changed", begin.elapsed(), "s", 4.0, "-");
    let longest = samples.iter().max().copied().unwrap_or_default();
    let name = format!("30,000 policies changed: longest of {} creations meanwhile", samples.len());
    print(&name, longest.as_secs_f64() * 1e3, "ms", 5.0, "-");

    let prefixes: Vec<String> =
        (0..10_000).map(|n| format!("172.{}.{}.{}/31", n / 4096 + 16, n / 16 % 256, n % 16 * 2)).collect();
    assert_eq!(prefixes.iter().collect::<BTreeSet<_>>().len(), prefixes.len());
    let mut spec = policy(0, 80);
    spec["ingress"] = json!([{"fromCIDR": prefixes}]);
    let (before, revision) = (allocated(), agent.policies.revision());
    let begin = Instant::now();
    let computed = processor_time();
    world.write_all(&[("ns-0/prefixes".to_owned(), spec)]);
    realized(&agent, revision + 1).await;
    row("a rule of 10,000 prefixes", begin.elapsed(), "s", 0.15, "-");
    row("a rule of 10,000 prefixes, processor time", processor_time() - computed, "s", 0.15, "-");
    tokio::time::sleep(Duration::from_millis(100)).await;
    print("a rule of 10,000 prefixes: memory", (allocated() - before) as f64 / 1e6, "MB", 5.0, "-");
    agent.end().await;
    churn().await;
}

/// Waits until an endpoint has its policy, as its creation does.
async fn created(agent: &Agent, endpoint: u16) {
    let table = agent.policies.table();
    loop {
        let watch = {
            let snapshot = table.snapshot();
            let (row, watch) = table.get_watch(&snapshot, EndpointPolicy::by_endpoint(endpoint));
            if row.is_some_and(|row| row.realized > 0) {
                return;
            }
            watch
        };
        watch.changed().await;
    }
}

/// Lets other tasks and threads work: timers have a resolution of a millisecond, and a loop would keep its core for the
/// scheduler's 8 ms, which the work that it waits for may need.
async fn turn() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

/// Identities that come and go at 100 a second, ten minutes of which are compressed.
async fn churn() {
    const SECONDS: usize = 600;
    let mut world = World::new();
    let agent = identities::start(&mut world).await;
    identities::run(&world, &agent, 10).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (before, computed) = (allocated(), processor_time());
    identities::run(&world, &agent, SECONDS).await;
    let share = 100.0 * (processor_time() - computed).as_secs_f64() / SECONDS as f64;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let growth = 100.0 * (allocated() as f64 / before as f64 - 1.0);
    print("100 identities a second for 10 minutes: share of a core", share, "%", 5.0, "-");
    print("100 identities a second for 10 minutes: memory grown", growth, "%", 5.0, "-");
    agent.end().await;
}

/// Waits until the maps of all endpoints have the revision.
async fn realized(agent: &Agent, revision: u64) {
    let begin = Instant::now();
    let table = agent.policies.table();
    loop {
        let snapshot = table.snapshot();
        let (rows, watch) = table.all_watch(&snapshot);
        if agent.policies.revision() >= revision && rows.into_iter().all(|row| row.realized >= revision) {
            return;
        }
        assert!(begin.elapsed() < TIME_LIMIT);
        drop(snapshot);
        let _ = tokio::time::timeout(Duration::from_millis(100), watch.changed()).await;
    }
}

fn endpoint(n: usize) -> u16 {
    10_000 + n as u16
}

/// The application of an endpoint: from the whole cluster.
fn of_endpoint(n: usize) -> usize {
    n * (IDENTITIES / ENDPOINTS)
}

/// The application that rules of another one allow: of the same namespace.
fn peer_of(app: usize) -> usize {
    app / APPS * APPS + (app + 1) % APPS
}

fn texts(n: usize) -> Vec<String> {
    let namespace = n / APPS;
    vec![
        format!("k8s:app=app-{}", n % APPS),
        format!("k8s:tier=tier-{}", n % 3),
        format!("k8s:io.kubernetes.pod.namespace=ns-{namespace}"),
        format!("k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=ns-{namespace}"),
        "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
        "k8s:io.cilium.k8s.policy.serviceaccount=default".to_owned(),
    ]
}

fn of(n: usize) -> Labels {
    let texts = texts(n);
    Labels::parse(texts.iter().map(String::as_str))
}

fn address(n: usize) -> IpNetwork {
    IpNetwork::from(IpAddr::from([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]))
}

fn claim(identity: u32, n: usize) -> Claim {
    Claim {
        source: Source::CustomResource,
        resource: format!("cep/ns-{}/pod-{n}", n % NAMESPACES).into(),
        mapping: Mapping::identity(identity),
    }
}

/// Namespace and name of a policy.
fn name(n: usize) -> String {
    format!("ns-{}/policy-{n}", n % IDENTITIES / APPS)
}

fn policy(n: usize, port: usize) -> Value {
    let app = n % IDENTITIES;
    let port = (port + n / IDENTITIES).to_string();
    json!({
        "endpointSelector": {"matchLabels": {"app": format!("app-{}", app % APPS)}},
        "ingress": [{
            "fromEndpoints": [{"matchLabels": {"app": format!("app-{}", peer_of(app) % APPS)}}],
            "toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}],
        }],
    })
}

/// The processor time of this process so far: beside other work it says more than the wall clock.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in ticks of 10 ms.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

fn allocated() -> u64 {
    memory_limit::allocated().unwrap()
}

fn percentiles(name: &str, samples: &mut [Duration], p50: f64, p99: f64, peer: [&str; 2]) {
    samples.sort_unstable();
    for ((part, goal), peer) in [(50, p50), (99, p99)].into_iter().zip(peer) {
        let at = samples[samples.len() * part / 100];
        print(&format!("{name}, p{part}"), at.as_secs_f64() * 1e3, "ms", goal, peer);
    }
}

fn row(name: &str, took: Duration, unit: &str, goal: f64, peer: &str) {
    print(name, took.as_secs_f64(), unit, goal, peer);
}

fn print(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("{name}\t{measured:.3}\t{unit}\t{goal}\t{met}\t{peer}");
}

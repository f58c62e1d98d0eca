//! Measures Hubble without a datapath: the decoder of events, a request for all flows of the ring with a filter, and a
//! follower on the socket while 10,000 events a second are published: delays, processor time, memory. Publisher, server and
//! client share this process, so that its numbers are bounds for those of the server. Prints one row a number (name,
//! measured, unit, goal, met, peer), tab separated.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::{Pod as _, event, trace};
use endpoints::Endpoint;
use futures::TryStreamExt as _;
use hive::prelude::*;
use hubble::Feed;
use hubble_api::flow::{Flow, FlowFilter};
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetFlowsRequest, GetFlowsResponse};
use hubble_api::{Server, connect};
use k8s_tables::Row;
use k8s_tables::core::Pod;
use local_node::LocalNode;
use monitor::Monitor;
use statedb::RwTable;

/// Flows that the ring holds.
const RING: u32 = 4095;
/// Events that are decoded.
const DECODED: u32 = 1_000_000;
/// Requests for all flows.
const REQUESTS: usize = 50;
/// Followed events: so many at once, every ten milliseconds, for so long.
const BATCH: u32 = 100;
const BATCHES: u32 = 500;
const INTERVAL: Duration = Duration::from_millis(10);
/// Pods of this node, each with an address 10.0.0.N.
const PODS: u8 = 50;

fn row(name: &str, measured: f64, unit: &str, goal: f64, is_met: bool) {
    println!("hubble: {name}\t{measured:.2}\t{unit}\t{goal}\t{}\t-", if is_met { "yes" } else { "no" });
}

/// Prints a row with an upper bound.
fn at_most(name: &str, measured: f64, unit: &str, goal: f64) {
    row(name, measured, unit, goal, measured <= goal);
}

/// Returns the event of a packet from one pod to another one by UDP, with the number as its source port and length.
fn packet_event(number: u32) -> Vec<u8> {
    let pod = |number: u32| u8::try_from(1 + number % u32::from(PODS)).unwrap_or(1);
    let (source, destination) = (pod(number), pod(number / u32::from(PODS) + number + 1));
    let mut packet = vec![0; 14 + 20 + 8];
    (packet[12], packet[14], packet[17], packet[22], packet[23]) = (8, 0x45, 28, 64, 17);
    packet[26..30].copy_from_slice(&[10, 0, 0, source]);
    packet[30..34].copy_from_slice(&[10, 0, 0, destination]);
    packet[34..36].copy_from_slice(&(number as u16).to_be_bytes());
    packet[36..38].copy_from_slice(&53_u16.to_be_bytes());
    packet[39] = 8;
    let header = event::CaptureHeader {
        kind: event::TRACE,
        subtype: trace::TO_LXC,
        source: source.into(),
        len_orig: 42,
        len_cap: 42,
        version: 2,
        ..event::CaptureHeader::default()
    };
    let notify = event::TraceNotify {
        header,
        src_label: 1000 + u32::from(source),
        dst_label: 1000 + u32::from(destination),
        dst_id: destination.into(),
        ifindex: destination.into(),
        ..event::TraceNotify::default()
    };
    [notify.as_bytes(), &packet].concat()
}

/// Measures the decoder for monitor, Hubble and the command.
fn decoding() {
    let events: Vec<Vec<u8>> = (0..1000).map(packet_event).collect();
    let begin = Instant::now();
    let mut ports = 0_u64;
    for number in 0..DECODED {
        let event = monitor_events::decode(&events[number as usize % events.len()]).unwrap();
        let frame = event.frame();
        ports += u64::from(black_box(frame).is_some());
    }
    assert_eq!(ports, u64::from(DECODED));
    let rate = f64::from(DECODED) / begin.elapsed().as_secs_f64() / 1e6;
    row("events decoded by one core, headers included", rate, "M/s", 1.0, rate >= 1.0);
}

fn add_endpoints(endpoints: Arc<RwTable<Endpoint>>) {
    endpoints.transact(|txn| {
        for id in 1..=PODS {
            let record = endpoints::Record {
                id: id.into(),
                ipv4: format!("10.0.0.{id}").parse().ok(),
                k8s_namespace: "shop".into(),
                k8s_pod_name: format!("web-{id}"),
                ..endpoints::Record::default()
            };
            txn.insert(Endpoint::created(record, std::time::SystemTime::UNIX_EPOCH));
        }
    });
}

/// Returns a hive with Hubble on a socket in a folder, and the tables that it reads.
fn hive(folder: &Path) -> TestHive {
    let tables = [
        module("endpoints", "Endpoints", [statedb::table::<Endpoint>(), invoke(add_endpoints)]),
        module("ipcache", "Addresses", [statedb::table::<ipcache::Entry>()]),
        module("identity", "Identities", [statedb::table::<identity::Identity>()]),
        module("loadbalancer", "Frontends", [statedb::table::<loadbalancer::Frontend>()]),
        module("devices", "Devices", [statedb::table::<devices::Device>()]),
        module("k8s-tables", "Pods", [statedb::table::<Row<Pod>>()]),
    ];
    let nodes = node_manager::testing::given(Vec::new());
    let user = invoke(|_: Arc<Feed>, _: Arc<node_manager::testing::Nodes>| ());
    let node = local_node::testing::given(LocalNode { name: "node".into(), ..LocalNode::default() });
    let cells = [statedb::cell(), node, bundle(tables), nodes, hubble::cell(), user];
    TestHive::needing::<local_node::LocalNodeStore>(cells)
        .supply(Arc::new(Monitor::new(16_384)))
        .set("hubble-socket-path", folder.join("hubble.sock").display())
        .set("enable-hubble", true)
        .set("hubble-event-buffer-capacity", RING)
        .set("hubble-event-queue-size", 16_384)
}

fn flow(response: GetFlowsResponse) -> Flow {
    match response.response_types {
        Some(ResponseTypes::Flow(flow)) => flow,
        other => panic!("{other:?} in a run that loses nothing"),
    }
}

/// Returns the source port of a flow: the number of its event.
fn number(flow: &Flow) -> u16 {
    use hubble_api::flow::layer4::Protocol;
    match flow.l4.as_ref().and_then(|l4| l4.protocol.as_ref()) {
        Some(Protocol::Udp(udp)) => udp.source_port as u16,
        other => panic!("{other:?}"),
    }
}

/// Returns processor time of this process in seconds, and its resident memory in megabytes.
fn costs() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<f64> =
        text.rsplit_once(") ").unwrap().1.split(' ').map(|field| field.parse().unwrap_or_default()).collect();
    // Ticks of user and kernel mode, pages.
    ((fields[11] + fields[12]) / 100.0, fields[21] * 4096.0 / 1e6)
}

fn percentile(delays: &mut [Duration], percent: usize) -> f64 {
    delays.sort_unstable();
    delays[(delays.len() - 1) * percent / 100].as_secs_f64() * 1e3
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    decoding();
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path());
    hive.start().await;
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    let (monitor, feed) = (hive.get::<Monitor>(), hive.get::<Feed>());
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let (connection, work) = connect(&Server::Unix(folder.path().join("hubble.sock"))).await.unwrap();
    let connected = tokio_util::task::TaskTracker::new().spawn(async move { drop(work.await) });
    let mut observer = ObserverClient::new(connection);

    let (_, empty) = costs();
    let mut follower = feed.follow().unwrap();
    let mut read = Vec::new();
    for begin in (0..=RING).step_by(1000) {
        (begin..begin + 1000).for_each(|number| monitor.publish(|| packet_event(number)));
        let expected = read.len() + 1000;
        while read.len() < expected {
            follower.read(&mut read, 1000).await;
        }
    }
    drop(read);
    let (_, full) = costs();
    at_most("memory of a full ring", full - empty, "MB", 30.0);

    // Flows between two of the pods, as a client selects them by name.
    let filter = FlowFilter { source_pod: vec!["shop/web-7".to_owned()], ..FlowFilter::default() };
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let request = GetFlowsRequest {
            number: RING.into(),
            whitelist: vec![filter.clone()],
            ..GetFlowsRequest::default()
        };
        let begin = Instant::now();
        let found: Vec<_> =
            observer.get_flows(request).await.unwrap().into_inner().try_collect().await.unwrap();
        times.push(begin.elapsed());
        assert!(found.len() > 40, "{} flows of a pod", found.len());
    }
    at_most("GetFlows of 4,095 flows with a filter", percentile(&mut times, 50), "ms", 5.0);

    let request = GetFlowsRequest { follow: true, ..GetFlowsRequest::default() };
    let mut flows = observer.get_flows(request).await.unwrap().into_inner();
    let (before, begin) = (costs().0, Instant::now());
    let mut published = vec![begin; usize::from(u16::MAX) + 1];
    let (mut delays, mut next) = (Vec::new(), begin);
    for batch in 0..BATCHES {
        tokio::time::sleep_until(next.into()).await;
        next += INTERVAL;
        for number in batch * BATCH..(batch + 1) * BATCH {
            published[usize::from(number as u16)] = Instant::now();
            monitor.publish(|| packet_event(number));
        }
        for _ in 0..BATCH {
            let flow = flow(flows.try_next().await.unwrap().unwrap());
            delays.push(published[usize::from(number(&flow))].elapsed());
        }
    }
    let (spent, took) = (costs().0 - before, begin.elapsed().as_secs_f64());
    at_most("10,000 flows a second to a follower, of a core", 100.0 * spent / took, "%", 20.0);
    at_most("event to a follower, p99", percentile(&mut delays, 99), "ms", 10.0);
    drop((flows, observer));
    connected.abort();
    hive.stop().await;
}

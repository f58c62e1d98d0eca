//! The cell in a hive with Hubble's: packets that the programs drop, and an API server of the test.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use endpoints::Record;
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::{ApiError, Kind};
use monitor::Monitor;
use serde_json::Value;
use statedb::RwTable;

use super::*;

const UID: &str = "0a1b2c3d-0000-0000-0000-000000000001";

fn hive(folder: &Path, server: &FakeServer) -> TestHive {
    let node = LocalNode { name: "n1".into(), cluster: "east".into(), ..LocalNode::default() };
    let add_pod = |endpoints: Arc<RwTable<Endpoint>>| {
        let record = Record {
            id: 7,
            ipv4: "10.0.0.7".parse().ok(),
            k8s_namespace: "shop".into(),
            k8s_pod_name: "web".into(),
            k8s_uid: UID.into(),
            ..Record::default()
        };
        let row = Endpoint::created(record, SystemTime::UNIX_EPOCH);
        endpoints.transact(|txn| drop(txn.insert(row)));
    };
    // The tables of other cells, empty but for one pod.
    let tables = [
        module("endpoints", "Endpoints", [statedb::table::<Endpoint>(), invoke(add_pod)]),
        module("ipcache", "Addresses", [statedb::table::<ipcache::Entry>()]),
        module("identity", "Identities", [statedb::table::<identity::Identity>()]),
        module("loadbalancer", "Frontends", [statedb::table::<loadbalancer::Frontend>()]),
        module("devices", "Devices", [statedb::table::<devices::Device>()]),
        module("node-manager", "Nodes", [statedb::table::<node_manager::Node>()]),
    ];
    let cells = [
        statedb::cell(),
        local_node::testing::given(node),
        bundle(tables),
        hubble::cell(),
        server.cell(),
        cell(),
    ];
    TestHive::needing::<local_node::LocalNodeStore>(cells)
        .supply(Arc::new(Monitor::new(16)))
        .set("hubble-socket-path", folder.join("hubble.sock").display())
        .set("enable-hubble", true)
        .set("hubble-drop-events", true)
}

/// The drop of a packet from the pod to a port of the world.
fn dropped(reason: u8, port: u16) -> Vec<u8> {
    let mut event = vec![0; 48];
    (event[0], event[1], event[14]) = (1, reason, 3);
    event[2..4].copy_from_slice(&7_u16.to_ne_bytes());
    event[8..12].copy_from_slice(&54_u32.to_ne_bytes());
    event[12..14].copy_from_slice(&54_u16.to_ne_bytes());
    event[20..24].copy_from_slice(&2_u32.to_ne_bytes());
    let mut packet = vec![0; 54];
    packet[12..14].copy_from_slice(&[8, 0]);
    (packet[14], packet[17], packet[22], packet[23]) = (0x45, 40, 64, 6);
    packet[26..30].copy_from_slice(&[10, 0, 0, 7]);
    packet[30..34].copy_from_slice(&[192, 0, 2, 9]);
    packet[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    packet[36..38].copy_from_slice(&port.to_be_bytes());
    (packet[46], packet[47]) = (0x50, 2);
    event.extend(packet);
    event
}

async fn started(hive: &mut TestHive) -> Arc<Monitor> {
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    monitor
}

fn events(server: &FakeServer) -> Vec<Value> {
    server.objects(Kind::Event)
}

#[tokio::test]
async fn a_dropped_packet_is_an_event_of_its_pod_that_is_counted() {
    let (folder, server) = (tempfile::tempdir().unwrap(), FakeServer::permitting(&["create", "patch"]));
    let mut hive = hive(folder.path(), &server)
        .set("hubble-drop-events-interval", "20ms")
        .set("hubble-drop-events-rate-limit", 0)
        .set("hubble-drop-events-reasons", "Policy_Denied no_such_reason");
    let monitor = started(&mut hive).await;
    // Another reason is none.
    monitor.publish(|| dropped(134, 80));
    monitor.publish(|| dropped(133, 80));
    hive.until("an event is written", || !events(&server).is_empty()).await;
    let event = events(&server).remove(0);
    let pod = &event["involvedObject"];
    assert_eq!(
        (&pod["kind"], &pod["namespace"], &pod["name"]),
        (&"Pod".into(), &"shop".into(), &"web".into())
    );
    // `kubectl describe pod` selects events by it.
    assert_eq!(pod["uid"], UID);
    assert_eq!(event["message"], "Outgoing packet dropped (policy_denied) to world (192.0.2.9) TCP/80.");
    assert_eq!((&event["reason"], &event["type"]), (&"PacketDrop".into(), &"Warning".into()));
    assert_eq!(event["source"]["host"], "n1");
    assert_eq!(event["count"], 1);
    assert!(event["metadata"]["name"].as_str().unwrap().starts_with("web."));

    (0..3).for_each(|_| monitor.publish(|| dropped(133, 80)));
    hive.until("they are counted", || events(&server)[0]["count"] == 4).await;
    monitor.publish(|| dropped(133, 443));
    hive.until("another port is another event", || events(&server).len() == 2).await;
    hive.stop().await;
}

/// An event that the server has removed is made again; nothing is lost while the server is away.
#[tokio::test(start_paused = true)]
async fn events_survive_an_outage_and_their_own_end() {
    let (folder, server) = (tempfile::tempdir().unwrap(), FakeServer::default());
    let failures = Arc::new(AtomicU32::new(2));
    let left = failures.clone();
    server.on_request(move |_, _| match left.load(Ordering::Relaxed) {
        0 => Ok(()),
        more => {
            left.store(more - 1, Ordering::Relaxed);
            Err(Request::unreachable())
        }
    });
    let mut hive = hive(folder.path(), &server).set("hubble-drop-events-interval", "1s");
    let monitor = started(&mut hive).await;
    monitor.publish(|| dropped(133, 80));
    hive.until("the event is written", || !events(&server).is_empty()).await;
    assert_eq!(failures.load(Ordering::Relaxed), 0);

    let name = events(&server)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    server.remove(Kind::Event, &format!("shop/{name}"));
    monitor.publish(|| dropped(133, 80));
    hive.until("there is a new event", || !events(&server).is_empty()).await;
    assert_eq!(events(&server)[0]["count"], 1);
    hive.stop().await;
}

/// A namespace that ends takes no events: the job does not stay with them.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_ends_is_forgotten() {
    let (folder, server) = (tempfile::tempdir().unwrap(), FakeServer::default());
    let ended = Arc::new(AtomicU32::new(0));
    let seen = ended.clone();
    server.on_request(move |_, request| {
        let is_first = request.object["message"].as_str().is_some_and(|text| text.ends_with("TCP/80."));
        if !is_first {
            return Ok(());
        }
        seen.fetch_add(1, Ordering::Relaxed);
        let text = "unable to create new content in namespace shop because it is being terminated";
        Err(ApiError::Forbidden(text.to_owned()))
    });
    let mut hive = hive(folder.path(), &server);
    let monitor = started(&mut hive).await;
    monitor.publish(|| dropped(133, 80));
    hive.until("it is refused", || ended.load(Ordering::Relaxed) == 1).await;
    monitor.publish(|| dropped(133, 443));
    hive.until("the next event is written", || events(&server).len() == 1).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    hive.stop().await;
}

#[tokio::test]
async fn off_it_has_no_job_and_writes_nothing() {
    let (folder, server) = (tempfile::tempdir().unwrap(), FakeServer::default());
    let mut hive = hive(folder.path(), &server).set("hubble-drop-events", false);
    let monitor = started(&mut hive).await;
    monitor.publish(|| dropped(133, 80));
    assert!(hive.get::<Counting>().0.is_none());
    hive.stop().await;
    assert_eq!(server.take_requests(), []);
}

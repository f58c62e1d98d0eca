//! The cell in a hive, with a real client on its socket.

use std::path::Path;

use futures::TryStreamExt;
use grpc::Connection;
use hubble_api::flow::{AgentEventType, DebugEventType, FlowFilter, LostEventSource, Verdict};
use hubble_api::health::HealthCheckRequest;
use hubble_api::health::health_client::HealthClient;
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{
    GetAgentEventsRequest, GetDebugEventsRequest, GetFlowsRequest, GetFlowsResponse, GetNamespacesRequest,
    GetNodesRequest, ServerStatusRequest,
};
use hubble_api::{Server, connect};
use monitor_events::gob;
use statedb::RwTable;
use tokio_util::task::AbortOnDropHandle;

use super::*;

mod tcp;

/// The status sources of the hive.
struct Sources(Vec<StatusSource>);

/// The object of the pod with endpoint 7.
const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-5d4f-x","namespace":"shop","generateName":"web-5d4f-",
    "labels":{"pod-template-hash":"5d4f"},
    "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-5d4f","uid":"u","controller":true}]}}"#;

fn add_endpoint(endpoints: Arc<RwTable<Endpoint>>) {
    let record = endpoints::Record {
        id: 7,
        ipv4: "10.0.0.7".parse().ok(),
        k8s_namespace: "shop".into(),
        k8s_pod_name: "web-5d4f-x".into(),
        ..endpoints::Record::default()
    };
    let row = Endpoint::created(record, std::time::SystemTime::UNIX_EPOCH);
    endpoints.transact(|txn| drop(txn.insert(row)));
}

fn add_pod(pods: Arc<RwTable<Row<Pod>>>) {
    let pod = k8s_tables::decode::<Pod>(POD.as_bytes()).unwrap();
    pods.transact(|txn| drop(txn.insert(Row::of(pod))));
}

fn hive(folder: &Path) -> TestHive {
    let node = LocalNode {
        name: "node".into(),
        cluster: "east".into(),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        ..LocalNode::default()
    };
    // The tables of other cells, empty but for one pod.
    let tables = [
        module("endpoints", "Endpoints", [statedb::table::<Endpoint>(), invoke(add_endpoint)]),
        module("ipcache", "Addresses", [statedb::table::<Entry>()]),
        module("identity", "Identities", [statedb::table::<Identity>()]),
        module("loadbalancer", "Frontends", [statedb::table::<Frontend>()]),
        module("devices", "Devices", [statedb::table::<Device>()]),
        module("k8s-tables", "Pods", [statedb::table::<Row<Pod>>(), invoke(add_pod)]),
    ];
    let nodes = node_manager::testing::given(vec![node_manager::testing::node("other", &["10.0.0.2"], &[])]);
    let sources = [
        provide(|sources: Group<StatusSource>| Arc::new(Sources(sources.to_vec()))),
        invoke(|_: Arc<Sources>, _: Arc<node_manager::testing::Nodes>, _: Arc<Feed>| ()),
    ];
    let sources = module("sources", "Sources of the status", sources);
    let cells = [statedb::cell(), sources, local_node::testing::given(node), bundle(tables), nodes, cell()];
    TestHive::needing::<local_node::LocalNodeStore>(cells)
        .supply(Arc::new(Monitor::new(16)))
        .set("hubble-socket-path", folder.join("hubble.sock").display())
}

/// A connection that ends with the test.
async fn client(folder: &Path) -> (Connection, AbortOnDropHandle<()>) {
    let (connection, work) = connect(&Server::Unix(folder.join("hubble.sock"))).await.unwrap();
    let tracker = tokio_util::task::TaskTracker::new();
    let work = tracker.spawn(async move { drop(work.await) });
    (connection, AbortOnDropHandle::new(work))
}

/// A drop, by the reason, without a packet.
fn dropped(reason: u8) -> Vec<u8> {
    let mut event = vec![1, reason];
    event.resize(48, 0);
    event[14] = 3;
    event
}

fn reason(response: &GetFlowsResponse) -> u32 {
    match response.response_types.as_ref().unwrap() {
        ResponseTypes::Flow(flow) => flow.drop_reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_client_reads_flows_status_health_and_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true).set("hubble-event-buffer-capacity", 7);
    hive.start().await;
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let (connection, _work) = client(folder.path()).await;
    let mut observer = ObserverClient::new(connection.clone());

    let follow = GetFlowsRequest { follow: true, ..GetFlowsRequest::default() };
    let response = observer.get_flows(follow).await.unwrap();
    assert_eq!(response.metadata().get("hubble-server-version").unwrap(), metrics::VERSION);
    let mut followed = response.into_inner();
    (133..=136).for_each(|reason| monitor.publish(|| dropped(reason)));
    let first = followed.try_next().await.unwrap().unwrap();
    assert_eq!((reason(&first), first.node_name.as_str()), (133, "east/node"));
    let Some(ResponseTypes::Flow(flow)) = first.response_types else { unreachable!() };
    assert_eq!((flow.verdict(), flow.time), (Verdict::Dropped, first.time));
    assert_eq!((flow.uuid.len(), flow.node_labels), (36, vec!["zone=a".to_owned()]));
    for expected in 134..=136 {
        assert_eq!(reason(&followed.try_next().await.unwrap().unwrap()), expected);
    }

    let last = GetFlowsRequest { number: 2, ..GetFlowsRequest::default() };
    let all: Vec<_> = observer.get_flows(last).await.unwrap().into_inner().try_collect().await.unwrap();
    assert_eq!(all.iter().map(reason).collect::<Vec<_>>(), [135, 136]);
    let bad = FlowFilter { http_status_code: vec!["x".to_owned()], ..FlowFilter::default() };
    let refused =
        observer.get_flows(GetFlowsRequest { whitelist: vec![bad], ..GetFlowsRequest::default() }).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unknown);

    let status = observer.server_status(ServerStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.num_flows, status.max_flows, status.seen_flows), (4, 7, 4));
    assert!(status.flows_rate > 0.0 && status.uptime_ns > 0, "{status:?}");
    assert_eq!(
        observer.get_nodes(GetNodesRequest {}).await.unwrap_err().message(),
        "GetNodes not implemented"
    );
    let namespaces = observer.get_namespaces(GetNamespacesRequest {}).await.unwrap().into_inner();
    assert_eq!(namespaces.namespaces, [], "no pod has sent anything");
    let mut health = HealthClient::new(connection);
    let mut check =
        async |service: &str| health.check(HealthCheckRequest { service: service.to_owned() }).await;
    assert_eq!(check("hubble.server.Observer").await.unwrap().into_inner().status, 1);
    assert_eq!(check("other").await.unwrap_err().code(), tonic::Code::NotFound);

    // Other kinds of events, in the same ring and with the same end.
    let follow = GetAgentEventsRequest { follow: true, ..GetAgentEventsRequest::default() };
    let mut notifications = observer.get_agent_events(follow).await.unwrap().into_inner();
    let created = r#"{"id":7,"pod-name":"web","namespace":"shop"}"#;
    monitor.publish(|| gob::agent_notify(monitor_events::notification::ENDPOINT_CREATED, created));
    let notification = notifications.try_next().await.unwrap().unwrap();
    assert_eq!(notification.node_name, "east/node");
    assert_eq!(notification.agent_event.unwrap().r#type(), AgentEventType::EndpointCreated);
    // Encapsulating, on behalf of no endpoint.
    let mut message = vec![2, 3];
    message.resize(20, 0);
    message[8] = 1;
    monitor.publish(|| message);
    monitor.publish(|| dropped(137));
    let flow = followed.try_next().await.unwrap().unwrap();
    assert_eq!(reason(&flow), 137, "events of other kinds are no flows");
    let last = GetDebugEventsRequest { number: 1, ..GetDebugEventsRequest::default() };
    let messages = observer.get_debug_events(last).await.unwrap().into_inner();
    let messages: Vec<_> = messages.try_collect().await.unwrap();
    let event = messages[0].debug_event.as_ref().unwrap();
    assert_eq!((messages.len(), event.r#type(), event.arg1), (1, DebugEventType::DbgEncap, Some(1)));
    let status = observer.server_status(ServerStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.num_flows, status.seen_flows), (7, 5));

    // The stop ends requests that would wait for ever.
    hive.stop().await;
    assert!(followed.try_next().await.is_err() && notifications.try_next().await.is_err());
    assert!(!folder.path().join("hubble.sock").exists() && !monitor.has_subscriptions());
}

/// A packet of a pod is a flow with the pod's workload, by the tables of the time at which it is decoded.
#[tokio::test]
async fn a_packet_of_a_pod_names_its_workload() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true);
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    let mut follower = hive.get::<Feed>().follow().unwrap();
    let mut event = dropped(133);
    let mut packet = vec![0; 34];
    (packet[12], packet[14], packet[17], packet[23]) = (8, 0x45, 20, 99);
    packet[26..30].copy_from_slice(&[10, 0, 0, 7]);
    packet[30..34].copy_from_slice(&[192, 0, 2, 1]);
    event.extend(packet);
    monitor.publish(|| event);
    let mut events = Vec::new();
    follower.read(&mut events, 1).await;
    let [crate::Event::Flow(flow)] = &events[..] else { panic!("{events:?}") };
    let source = flow.source.as_ref().unwrap();
    assert_eq!((&*source.namespace, &*source.pod_name), ("shop", "web-5d4f-x"));
    let [workload] = &source.workloads[..] else { panic!("{source:?}") };
    assert_eq!((&*workload.kind, &*workload.name), ("Deployment", "web"));
    assert!(flow.destination.as_ref().unwrap().workloads.is_empty());
    hive.stop().await;
}

#[tokio::test]
async fn events_that_do_not_fit_into_the_queue_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true).set("hubble-event-queue-size", 2);
    hive.start().await;
    let monitor = hive.get::<Monitor>();
    hive.until("the observer listens", || monitor.has_subscriptions()).await;
    // The runtime of a test has one thread: the observer reads after all are published.
    (0..10).for_each(|_| monitor.publish(|| dropped(133)));
    hive.until("the socket is served", || folder.path().join("hubble.sock").exists()).await;
    let (connection, _work) = client(folder.path()).await;
    let mut observer = ObserverClient::new(connection);
    let follow = GetFlowsRequest { follow: true, number: 3, ..GetFlowsRequest::default() };
    let responses = observer.get_flows(follow).await.unwrap().into_inner();
    let all: Vec<_> = futures::StreamExt::take(responses, 3).try_collect().await.unwrap();
    assert_eq!((reason(&all[0]), reason(&all[1])), (133, 133));
    let Some(ResponseTypes::LostEvents(lost)) = &all[2].response_types else { panic!("{:?}", all[2]) };
    assert_eq!((lost.source(), lost.num_events_lost), (LostEventSource::ObserverEventsQueue, 8));
    hive.stop().await;
}

#[tokio::test]
async fn off_it_has_no_socket_and_no_subscription() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("hubble-event-buffer-capacity", 1000);
    hive.start().await;
    assert!(!hive.get::<Monitor>().has_subscriptions() && !folder.path().join("hubble.sock").exists());
    hive.stop().await;
}

#[tokio::test]
async fn a_capacity_that_is_invalid_fails_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut hive = hive(folder.path()).set("enable-hubble", true).set("hubble-event-buffer-capacity", 1000);
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(
        error.contains("hubble-event-buffer-capacity: 1000 is not one less than a power of two")
            && error.contains("give 1023"),
        "{error}"
    );
}

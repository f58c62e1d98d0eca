//! Notifications of changed tables, as a subscription gets them, without a kernel.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use endpoints::{Endpoint, Record, SecurityLabel};
use ipcache::testing::FakeMap;
use ipcache::{Entry, IpcacheWriter, Location, Mapping, Source};
use labels::Labels;
use monitor::{Monitor, Subscription};
use monitor_events::gob::{PREAMBLE, Payload, Reader};
use monitor_events::{Event, decode, notification};
use policy::testing::FakePolicies;
use policy::{ObjectId, ObjectState, PolicyStatus};
use policy_engine::Kind;
use statedb::{Db, RwTable};
use tokio::time::timeout;

use crate::follow::{Follower, Position, publish};
use crate::messages;

/// The tables, and a follower of them.
struct Stage {
    endpoints: RwTable<Endpoint>,
    ipcache: IpcacheWriter,
    statuses: RwTable<PolicyStatus>,
    monitor: Arc<Monitor>,
    follower: Follower,
}

impl Stage {
    fn new() -> Stage {
        let db = Db::new();
        let endpoints = db.table::<Endpoint>().unwrap();
        let statuses = db.table::<PolicyStatus>().unwrap();
        let (ipcache, entries, _) =
            ipcache::testing::ipcache(db.table::<Entry>().unwrap(), Arc::new(FakeMap::default()));
        let monitor = Arc::new(Monitor::new(1024));
        let follower = Follower {
            monitor: monitor.clone(),
            endpoints: Arc::new(endpoints.reader()),
            ipcache: Arc::new(entries),
            statuses: Arc::new(statuses.reader()),
            policies: Arc::new(FakePolicies::new(&db).policies()),
        };
        Stage { endpoints, ipcache, statuses, monitor, follower }
    }

    /// Runs the follower while the tables change, and returns the notifications.
    async fn notifications<T>(&self, change: impl FnOnce(&Stage) -> T) -> Vec<(u32, String)> {
        let events = self.monitor.subscribe();
        let changes = async {
            // The follower has taken its first snapshot.
            tokio::task::yield_now().await;
            change(self);
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        tokio::select! {
            never = self.follower.follow(self.follower.begin()) => match never {},
            () = changes => {}
        }
        read(&events).await
    }
}

async fn read(events: &Subscription) -> Vec<(u32, String)> {
    let (mut stream, mut reader) = (PREAMBLE.to_vec(), Reader::default());
    // Nothing to read is a timeout.
    let _ = timeout(Duration::from_millis(1), events.read(&mut stream, usize::MAX)).await;
    reader.push(&stream);
    let mut all = Vec::new();
    while let Some(value) = reader.next_value().unwrap() {
        let payload = Payload::from(value);
        let Ok(Event::Agent(agent)) = decode(&payload.data) else { panic!("{payload:?}") };
        all.push((agent.kind, agent.text));
    }
    all
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn web() -> Endpoint {
    let labels = Labels::parse(["k8s:app=web"]);
    let mut record = Record {
        id: 7,
        k8s_pod_name: "web-1".to_owned(),
        k8s_namespace: "shop".to_owned(),
        sec_label: Some(SecurityLabel { id: 300, labels: labels.clone() }),
        ..Record::default()
    };
    record.op_labels.orchestration_identity = labels;
    Endpoint::created(record, at(1))
}

fn status(revision: u64, rules: usize, state: ObjectState) -> PolicyStatus {
    let object = ObjectId {
        source: "folder".into(),
        kind: Kind::CiliumNetworkPolicy,
        namespace: "shop".into(),
        name: "web".into(),
    };
    let labels: Arc<[String]> = ["k8s:io.cilium.k8s.policy.name=web".to_owned()].into();
    let (origin, problems) = ("".into(), Vec::new());
    PolicyStatus { object, origin, state, revision, rules, rule_labels: vec![labels; rules], problems }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_is_created_regenerated_and_deleted() {
    let stage = Stage::new();
    let put = |endpoint: Endpoint| {
        move |stage: &Stage| {
            stage.endpoints.transact(|txn| drop(txn.insert(endpoint)));
        }
    };
    let base = r#""id":7,"labels":["k8s:app=web"]"#;
    let pod = r#""pod-name":"web-1","namespace":"shop""#;
    let created = (notification::ENDPOINT_CREATED, format!("{{{base},{pod}}}"));
    assert_eq!(stage.notifications(put(web())).await, [created]);
    // A change of the row that is none of the endpoint.
    let waiting = web().identified("labels", at(2)).triggered("created", "a new endpoint", at(2));
    assert_eq!(stage.notifications(put(waiting.clone())).await, []);
    let failed = waiting.failed("no (Reason: to) memory", at(3));
    let error = format!(r#"{{{base},"error":"no (Reason: to) memory"}}"#);
    assert_eq!(
        stage.notifications(put(failed.clone())).await,
        [(notification::ENDPOINT_FAILED, error.clone())]
    );
    // The retry fails with the same error.
    let again = failed.failed("no (Reason: to) memory", at(4));
    assert_eq!(stage.notifications(put(again.clone())).await, [(notification::ENDPOINT_FAILED, error)]);
    let done = again.regenerated(at(5));
    let regenerated = (notification::ENDPOINT_REGENERATED, format!("{{{base}}}"));
    assert_eq!(stage.notifications(put(done)).await, [regenerated]);
    let delete = |stage: &Stage| {
        stage.endpoints.transact(|txn| drop(txn.delete(Endpoint::by_id(endpoints::EndpointId(7)))));
    };
    let deleted = (notification::ENDPOINT_DELETED, format!("{{{base},{pod}}}"));
    assert_eq!(stage.notifications(delete).await, [deleted]);
}

#[tokio::test(start_paused = true)]
async fn entries_of_the_ipcache_have_their_previous_identity() {
    let stage = Stage::new();
    let prefix = "10.244.0.7/32".parse().unwrap();
    let at = Location { host_ip: Some("192.0.2.1".parse().unwrap()), ..Location::default() };
    let mapping = Mapping::identity(300).at(at);
    let upserted = |text: &str| vec![(notification::IPCACHE_UPSERTED, text.to_owned())];
    let first = mapping.clone();
    let got =
        stage.notifications(|stage| stage.ipcache.upsert(prefix, Source::Local, "endpoint/7", first)).await;
    let text = r#"{"cidr":"10.244.0.7/32","id":300,"host-ip":"192.0.2.1","encrypt-key":0}"#;
    assert_eq!(got, upserted(text));
    // A claim that does not win changes nothing.
    let other = Mapping::identity(2);
    let got =
        stage.notifications(|stage| stage.ipcache.upsert(prefix, Source::Generated, "cidr", other)).await;
    assert_eq!(got, []);
    let pod = ipcache::Pod { namespace: "shop".into(), name: "web-1".into() };
    let next = Mapping { encrypt_key: 3, ..Mapping::identity(301) };
    let next = next.at(Location { pod: Some(pod), ..Location::default() });
    let got =
        stage.notifications(|stage| stage.ipcache.upsert(prefix, Source::Local, "endpoint/7", next)).await;
    let text = concat!(
        r#"{"cidr":"10.244.0.7/32","id":301,"old-id":300,"old-host-ip":"192.0.2.1","encrypt-key":3,"#,
        r#""namespace":"shop","pod-name":"web-1"}"#
    );
    assert_eq!(got, upserted(text));
    // The other claim takes over; then nothing is left.
    let got = stage.notifications(|stage| stage.ipcache.delete(prefix, Source::Local, "endpoint/7")).await;
    assert_eq!(got, upserted(r#"{"cidr":"10.244.0.7/32","id":2,"old-id":301,"encrypt-key":0}"#));
    let got = stage.notifications(|stage| stage.ipcache.delete(prefix, Source::Generated, "cidr")).await;
    let text = r#"{"cidr":"10.244.0.7/32","id":2,"encrypt-key":0}"#;
    assert_eq!(got, [(notification::IPCACHE_DELETED, text.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn policies_are_reported_when_rules_in_force_change() {
    let stage = Stage::new();
    let put = |status: PolicyStatus| {
        move |stage: &Stage| {
            stage.statuses.transact(|txn| drop(txn.insert(status)));
        }
    };
    let updated = |revision: u64, rules: usize| {
        let labels = vec![r#""k8s:io.cilium.k8s.policy.name=web""#; rules].join(",");
        let text = format!(r#"{{"labels":[{labels}],"revision":{revision},"rule_count":{rules}}}"#);
        [(notification::POLICY_UPDATED, text)]
    };
    let deleted = |rules: usize| {
        let text =
            format!(r#"{{"labels":["cilium.io/resource=cnp/shop/web"],"revision":1,"rule_count":{rules}}}"#);
        [(notification::POLICY_DELETED, text)]
    };
    let applied = |revision, rules| put(status(revision, rules, ObjectState::Applied));
    assert_eq!(stage.notifications(applied(2, 2)).await, updated(2, 2));
    assert_eq!(stage.notifications(applied(3, 1)).await, updated(3, 1));
    let refused = put(status(3, 1, ObjectState::RefusedPreviousInForce));
    assert_eq!(stage.notifications(refused).await, []);
    assert_eq!(stage.notifications(applied(4, 0)).await, deleted(1));
    assert_eq!(stage.notifications(applied(5, 3)).await, updated(5, 3));
    let object = status(0, 0, ObjectState::Applied).object;
    let delete = |stage: &Stage| {
        stage.statuses.transact(|txn| drop(txn.delete(PolicyStatus::by_object(&object))));
    };
    assert_eq!(stage.notifications(delete).await, deleted(3));
}

#[tokio::test(start_paused = true)]
async fn a_change_between_the_first_snapshot_and_the_first_round_is_reported() {
    let stage = Stage::new();
    let events = stage.monitor.subscribe();
    let put = |endpoint: Endpoint| stage.endpoints.transact(|txn| drop(txn.insert(endpoint)));
    let mut readers = stage.follower.readers();
    // Changed after the readers were made: part of the snapshot, and no notification.
    put(web());
    let before = stage.endpoints.snapshot();
    readers.skip(&before);
    // Changed before the first round: no part of the snapshot.
    put(web().failed("no memory", at(3)));
    let follow = stage.follower.follow(Position { before, readers });
    let _ = timeout(Duration::from_millis(1), follow).await;
    let text = r#"{"id":7,"labels":["k8s:app=web"],"error":"no memory"}"#.to_owned();
    assert_eq!(read(&events).await, [(notification::ENDPOINT_FAILED, text)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_without_a_subscription() {
    let stage = Stage::new();
    let readers = |stage: &Stage| stage.endpoints.reader().stats(&stage.endpoints.snapshot()).readers.len();
    assert_eq!(readers(&stage), 0);
    stage.notifications(|stage| assert_eq!(readers(stage), 1, "a control")).await;
    assert_eq!(readers(&stage), 0);
}

#[tokio::test(start_paused = true)]
async fn the_start_is_reported_with_its_time() {
    let monitor = Arc::new(Monitor::new(8));
    let events = monitor.subscribe();
    publish(&monitor, messages::started(at(1_795_000_000) + Duration::from_millis(950)));
    let expected = (notification::STARTED, r#"{"time":"2026-11-18T11:06:40.95Z"}"#.to_owned());
    assert_eq!(read(&events).await, [expected]);
}

//! Identities of a cluster: agents with a hive each, and one API server for all. Time is virtual.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use identity::{Error, Identities, Identity, IdentityRequest};
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_tables::cilium::CiliumIdentity;
use k8s_types::Kind;
use labels::{LabelArray, Labels};
use local_node::{LocalNodeConfig, StateConfig};
use maps::FamilyConfig;
use serde_json::{Value, json};
use statedb::Table;

/// The API server, which may be unreachable. Watches go on: a lie about an outage, but not one that helps the agent.
#[derive(Clone)]
struct Server(FakeServer);

impl Default for Server {
    fn default() -> Server {
        // As the role of the chart has it: no `get`.
        Server(FakeServer::permitting(&["create", "update"]))
    }
}

impl Server {
    fn away(&self, is_away: bool) {
        match is_away {
            true => self.0.on_request(|_, _| Err(Request::unreachable())),
            false => self.0.execute_all(),
        }
    }

    /// The labels of each object by its name.
    fn objects(&self) -> BTreeMap<String, Value> {
        let objects = self.0.objects(Kind::CiliumIdentity);
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        objects.iter().map(|object| (name(object), object["security-labels"].clone())).collect()
    }

    fn object(&self, id: u32) -> Value {
        self.0.object(Kind::CiliumIdentity, &id.to_string())
    }

    /// Another client creates or replaces an object.
    fn put(&self, name: &str, labels: Value, metadata: Value) {
        let mut object =
            json!({"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": metadata});
        object["metadata"]["name"] = name.into();
        object["security-labels"] = labels;
        self.0.add(&object);
    }

    fn delete(&self, id: u32) {
        self.0.remove(Kind::CiliumIdentity, &id.to_string());
    }
}

struct Agent {
    hive: TestHive,
    identities: Arc<Identities>,
    table: Arc<Table<Identity>>,
    requests: Arc<Table<IdentityRequest>>,
    _state: tempfile::TempDir,
}

impl Agent {
    async fn start(server: &Server) -> Agent {
        Agent::with(server, &[], |_| {}).await
    }

    /// With options, and with what the records of the previous run reserve.
    async fn with(server: &Server, options: &[(&str, &str)], reserve: fn(&Identities)) -> Agent {
        let restore = move |identities: Arc<Identities>, lifecycle: Lifecycle| {
            let initializer = identities.register("endpoints");
            lifecycle
                .hook("endpoint-restore")
                .on_start(move |_| async move {
                    reserve(&identities);
                    identities.complete(initializer);
                    Ok(())
                })
                .add();
        };
        let state = tempfile::tempdir().unwrap();
        let mut hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            config::<StateConfig>(),
            config::<LocalNodeConfig>(),
            config::<FamilyConfig>(),
            server.0.cell(),
            module("k8s", "Objects", [k8s_tables::table::<CiliumIdentity>()]),
            k8s_writer::cell(),
            identity::cell(),
            invoke(restore),
            invoke(|_: Arc<Identities>, _: Arc<Table<Identity>>, _: Arc<Table<IdentityRequest>>| ()),
        ])
        .set("state-dir", state.path().display());
        for (key, value) in options {
            hive = hive.set(key, value);
        }
        hive.start().await;
        let table = hive.get::<Table<Identity>>();
        table.wait_initialized().await;
        Agent { identities: hive.get(), requests: hive.get(), table, hive, _state: state }
    }

    /// Allocates as an endpoint does: again when the request is answered.
    async fn allocate(&self, labels: &str, user: &str) -> u32 {
        loop {
            let wanted = LabelArray::from(&set(labels));
            match self.identities.allocate(&set(labels), user) {
                Ok(id) => return id,
                Err(Error::Waiting { labels }) => assert_eq!(labels, wanted),
                Err(error) => panic!("{error}"),
            }
            let answered = |requests: &Table<IdentityRequest>, snapshot: &statedb::Snapshot| {
                requests.get(snapshot, IdentityRequest::by_labels(&wanted)).is_none().then_some(())
            };
            self.requests.wait_until(answered).await;
        }
    }

    fn row(&self, id: u32) -> Option<Identity> {
        self.table.get(&self.table.snapshot(), Identity::by_id(id)).map(|row| (**row).clone())
    }

    async fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.hive.until(what, is_so).await;
    }

    async fn finish(self) {
        let Agent { hive, identities, table, requests, .. } = self;
        drop((identities, table, requests));
        hive.finish().await;
    }
}

fn set(text: &str) -> Labels {
    Labels::parse(text.split(','))
}

const WEB: &str = "k8s:app=web,k8s:io.kubernetes.pod.namespace=shop";

#[tokio::test(start_paused = true)]
async fn new_labels_become_an_object_in_ciliums_form() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let id = agent.allocate(WEB, "endpoint/1").await;
    assert!((256..=65535).contains(&id));
    let object = server.object(id);
    assert_eq!(object["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": "shop"}));
    assert_eq!(
        object["security-labels"],
        json!({"k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "shop"})
    );
    assert_eq!(agent.allocate(WEB, "endpoint/2").await, id);
    assert_eq!(server.objects().len(), 1);
    assert!(agent.requests.is_empty(&agent.requests.snapshot()));
    agent.identities.release(id, "endpoint/1");
    agent.identities.release(id, "endpoint/2");
    let row = agent.row(id).unwrap();
    assert!(row.users.is_empty() && row.unused_since.is_none(), "the cluster has it: {row:?}");
    agent.finish().await;
}

/// Labels that look like others, or that have characters of our own notation.
#[tokio::test(start_paused = true)]
async fn labels_with_signs_of_the_notation_keep_their_keys_and_values() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let id = agent.allocate("k8s:a.b/c:d=x=y;z,k8s:empty=", "endpoint/1").await;
    assert_eq!(server.objects()[&id.to_string()], json!({"k8s:a.b/c:d": "x=y;z", "k8s:empty": ""}));
    let other = Agent::start(&server).await;
    assert_eq!(other.allocate("k8s:a.b/c:d=x=y;z,k8s:empty=", "endpoint/1").await, id);
    assert_eq!(server.objects().len(), 1);
    agent.finish().await;
    other.finish().await;
}

#[tokio::test(start_paused = true)]
async fn identities_of_other_nodes_are_in_the_table_with_their_named_ports() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    server.put("7000", json!({"k8s:app": "db", "gen:io.cilium.k8s.named-ports": "sql.TCP.5432"}), json!({}));
    agent.until("it is there", || agent.row(7000).is_some()).await;
    assert_eq!(agent.row(7000).unwrap().named_ports().port("sql", 6), Some(5432));
    server.delete(7000);
    agent.until("it is quarantined", || agent.row(7000).is_some_and(|row| row.unused_since.is_some())).await;
    server.put("7000", json!({"k8s:app": "other"}), json!({}));
    let is_other = |row: Identity| row.labels.texts() == ["k8s:app=other"];
    agent.until("the cluster has reused it", || agent.row(7000).is_some_and(is_other)).await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_agents_that_allocate_at_once_agree() {
    let server = Server::default();
    let (a, b) = (Agent::start(&server).await, Agent::start(&server).await);
    for n in 0..50 {
        let labels = format!("k8s:app=race-{n}");
        let (one, two) = tokio::join!(a.allocate(&labels, "endpoint/1"), b.allocate(&labels, "endpoint/1"));
        assert_eq!(one, two, "{labels}");
    }
    assert_eq!(server.objects().len(), 50);
    a.finish().await;
    b.finish().await;
}

/// The first id in the order of the labels is another label set's, and the watch has not shown it.
#[tokio::test(start_paused = true)]
async fn an_id_that_is_taken_is_left_to_its_labels() {
    let server = Server::default();
    let first = Agent::start(&server).await;
    let id = first.allocate(WEB, "endpoint/1").await;
    first.finish().await;
    let server = Server::default();
    server.put(&id.to_string(), json!({"k8s:app": "db"}), json!({}));
    let agent = Agent::start(&server).await;
    let other = agent.allocate(WEB, "endpoint/1").await;
    assert_ne!(other, id);
    assert_eq!(server.objects()[&id.to_string()], json!({"k8s:app": "db"}));
    assert_eq!(server.objects().len(), 2);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_objects_for_one_label_set_the_oldest_counts_and_the_one_in_use_stays() {
    let server = Server::default();
    let labels = || json!({"k8s:app": "web"});
    server.put("300", labels(), json!({"creationTimestamp": "2026-01-02T00:00:00Z"}));
    server.put("400", labels(), json!({"creationTimestamp": "2026-01-01T00:00:00Z"}));
    let agent = Agent::start(&server).await;
    assert_eq!(agent.allocate("k8s:app=web", "endpoint/1").await, 400);
    server.put("500", labels(), json!({"creationTimestamp": "2025-01-01T00:00:00Z"}));
    agent.until("it is there", || agent.row(500).is_some()).await;
    assert_eq!(agent.allocate("k8s:app=web", "endpoint/2").await, 400, "the one that this node uses");
    agent.identities.release(400, "endpoint/1");
    agent.identities.release(400, "endpoint/2");
    assert_eq!(agent.allocate("k8s:app=web", "endpoint/3").await, 500);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_goes_while_it_is_in_use_is_created_again() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let id = agent.allocate(WEB, "endpoint/1").await;
    let before = server.objects();
    server.delete(id);
    agent.until("it is back", || server.objects() == before).await;
    // An hour without a server.
    server.away(true);
    server.delete(id);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(server.objects().is_empty());
    assert_eq!(agent.allocate(WEB, "endpoint/2").await, id, "a known label set needs no server");
    server.away(false);
    // The writer tries one object that fails every 30 s at most, which is as long as the next line waits.
    tokio::time::sleep(Duration::from_secs(10)).await;
    agent.until("it is back", || server.objects() == before).await;
    agent.identities.release(id, "endpoint/1");
    agent.identities.release(id, "endpoint/2");
    server.delete(id);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(server.objects().is_empty(), "nothing uses it");
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_labels_wait_for_the_server_visibly() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    server.away(true);
    let error = agent.identities.allocate(&set(WEB), "endpoint/1").unwrap_err();
    assert!(error.is_retryable());
    assert!(error.to_string().starts_with("k8s:app=web,"), "{error}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let rows: Vec<_> = agent.requests.all(&agent.requests.snapshot()).cloned().collect();
    assert_eq!(rows.len(), 1);
    assert!(rows[0].users.contains("endpoint/1") && rows[0].since.elapsed() >= Duration::from_secs(3600));
    let health = agent.hive.health("identity.job-ciliumidentities");
    assert_eq!(health.message, "1 label sets wait for an identity of the cluster");
    assert!(health.error.contains("k8s:app=web"), "{health:?}");
    // Another user, whose labels change before there is an answer.
    agent.identities.allocate(&set(WEB), "endpoint/2").unwrap_err();
    agent.identities.allocate(&set("k8s:app=db"), "endpoint/2").unwrap_err();
    agent.identities.release_all("endpoint/2");
    assert_eq!(agent.requests.len(&agent.requests.snapshot()), 1);
    server.away(false);
    let id = agent.allocate(WEB, "endpoint/1").await;
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), [id.to_string()]);
    agent
        .until("it is well", || agent.hive.health("identity.job-ciliumidentities").message == "Running")
        .await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn identities_of_records_are_kept_and_get_their_objects_back() {
    let server = Server::default();
    server.put("300", json!({"k8s:app": "web"}), json!({}));
    // The cluster has reused the id of another endpoint meanwhile, and has another id for its labels.
    server.put("400", json!({"k8s:app": "thief"}), json!({}));
    server.put("450", json!({"k8s:app": "moved"}), json!({}));
    let agent = Agent::with(&server, &[], |identities| {
        let reserve = |id, labels, user| assert_eq!(identities.reserve(id, &set(labels), user).unwrap(), id);
        reserve(300, "k8s:app=web", "endpoint/1");
        reserve(310, "k8s:app=gone", "endpoint/2");
        reserve(400, "k8s:app=moved", "endpoint/3");
    })
    .await;
    let [web, gone, thief] = [300, 310, 400].map(|id| agent.row(id).unwrap());
    assert!(web.users.contains("endpoint/1") && gone.users.contains("endpoint/2"));
    assert_eq!((thief.labels.texts(), thief.users.names().count()), (vec!["k8s:app=thief".to_owned()], 0));
    assert!(agent.identities.has_lost(400, "endpoint/3"));
    assert!(!agent.identities.has_lost(300, "endpoint/1") && !agent.identities.has_lost(310, "endpoint/2"));
    assert_eq!(agent.allocate("k8s:app=moved", "endpoint/3").await, 450);
    agent
        .until("its object is back", || server.objects().get("310") == Some(&json!({"k8s:app": "gone"})))
        .await;
    assert_eq!(server.objects().len(), 4);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn labels_of_the_agents_own_identities_are_not_requested_from_the_cluster() {
    let server = Server::default();
    let agent = Agent::with(&server, &[], |identities| {
        // The record of a version that gave the host an identity of the cluster.
        let labels = set("reserved:host,k8s:zone=a");
        assert_eq!(identities.reserve(300, &labels, "endpoint/1").unwrap(), 300);
    })
    .await;
    let refused = agent.identities.allocate(&set("reserved:host,k8s:zone=b"), "endpoint/2").unwrap_err();
    assert!(matches!(&refused, Error::Reserved { label, .. } if label.key == "host"), "{refused}");
    assert!(!refused.is_retryable());
    assert_eq!(agent.requests.len(&agent.requests.snapshot()), 0);
    assert_eq!(agent.identities.allocate(&set("reserved:health"), "endpoint/3").unwrap(), 4);
    // An endpoint that waits for its labels may have some already.
    let init = agent.allocate("reserved:init,k8s:app=web", "endpoint/4").await;
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), [init.to_string()]);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_no_identities_are_ignored_and_reported() {
    let server = Server::default();
    let names = ["1", "255", "65536", "16777217", "4294967296", "-5", "+300", "0300", "web", "3e3"];
    for name in names {
        server.put(name, json!({"k8s:app": "evil"}), json!({}));
    }
    server.put("600", json!({"reserved:host": ""}), json!({}));
    server.put("601", json!({"k8s:app": "web", "reserved:kube-apiserver": ""}), json!({}));
    server.put("602", json!({}), json!({}));
    server.put("603", json!({"k8s:app": "web", "reserved:init": ""}), json!({}));
    let agent = Agent::start(&server).await;
    assert_eq!(agent.row(1).unwrap().labels.texts(), ["reserved:host"]);
    let snapshot = agent.table.snapshot();
    let of_cluster: Vec<u32> =
        agent.table.all(&snapshot).filter(|row| row.object.is_some()).map(|row| row.id).collect();
    assert_eq!(of_cluster, [603]);
    let health = || agent.hive.hive().health().at("identity.ignored-ciliumidentities");
    let row = health().unwrap();
    assert_eq!(row.message, "Ignoring 13 CiliumIdentities");
    assert!(row.error.contains("+300: its name is no decimal number"), "{}", row.error);
    // The evil label set gets an identity of its own, and no id of those.
    let id = agent.allocate("k8s:app=evil", "endpoint/1").await;
    assert!(!names.contains(&id.to_string().as_str()));
    for name in names.into_iter().chain(["600", "601", "602"]) {
        server.0.remove(Kind::CiliumIdentity, name);
    }
    agent.until("it is reported no more", || health().is_none()).await;
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_turns_into_a_lie_is_taken_from_no_user() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let id = agent.allocate(WEB, "endpoint/1").await;
    server.put(&id.to_string(), json!({"reserved:host": ""}), json!({}));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let row = agent.row(id).unwrap();
    assert_eq!(LabelArray::from(&set(WEB)), row.labels);
    assert!(row.users.contains("endpoint/1"));
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_the_garbage_collection_is_removed_from_identities_in_use() {
    let server = Server::default();
    let marked = json!({"annotations": {"io.cilium.heartbeat": "2026-01-01T00:00:00Z", "kept": "yes"}});
    // Of a newer version, which has members that this one does not know.
    let mut newer = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": marked,
        "security-labels": {"k8s:app": "web"}, "spec": {"weights": [7, null]},
    });
    newer["metadata"]["name"] = "300".into();
    server.0.add(&newer);
    server.put("301", json!({"k8s:app": "unused"}), marked.clone());
    let agent = Agent::start(&server).await;
    assert_eq!(agent.allocate("k8s:app=web", "endpoint/1").await, 300);
    let kept = || server.object(300)["metadata"]["annotations"] == json!({"kept": "yes"});
    agent.until("the mark is gone", kept).await;
    assert_eq!(server.object(300)["spec"], newer["spec"]);
    server.put("300", json!({"k8s:app": "web"}), marked.clone());
    agent.until("it is gone again", kept).await;
    assert_eq!(server.object(301)["metadata"]["annotations"], marked["annotations"]);
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_identities_that_the_operator_creates_writes_none() {
    let server = Server::default();
    let options = [("identity-management-mode", "operator"), ("identity-allocation-mode", "crd")];
    let agent = Agent::with(&server, &options, |identities| {
        identities.reserve(300, &set("k8s:app=old"), "endpoint/9").unwrap();
    })
    .await;
    agent.identities.allocate(&set(WEB), "endpoint/1").unwrap_err();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(server.objects().is_empty());
    let health = agent.hive.health("identity.job-ciliumidentities");
    assert_eq!(health.level, Level::Degraded);
    let expected = "k8s:app=web,k8s:io.kubernetes.pod.namespace=shop: the operator has not created it yet";
    assert!(health.error.starts_with(expected), "{}", health.error);
    let made = json!({"k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "shop"});
    server.put("700", made, json!({"annotations": {"io.cilium.heartbeat": "x"}}));
    assert_eq!(agent.allocate(WEB, "endpoint/1").await, 700);
    // The operator has made another identity for the labels of a record.
    server.put("301", json!({"k8s:app": "old"}), json!({}));
    agent.until("it is the cluster's", || agent.identities.has_lost(300, "endpoint/9")).await;
    assert_eq!(agent.allocate("k8s:app=old", "endpoint/9").await, 301);
    server.delete(700);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), ["301"]);
    assert!(agent.row(700).unwrap().users.contains("endpoint/1"), "packets carry it");
    agent.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_the_range_of_its_id() {
    let server = Server::default();
    server.put("300", json!({"k8s:app": "web"}), json!({}));
    let agent = Agent::with(&server, &[("cluster-id", "3"), ("cluster-name", "three")], |_| {}).await;
    let id = agent.allocate("k8s:app=web", "endpoint/1").await;
    assert!((3 << 16..4 << 16).contains(&id), "{id}");
    assert_eq!(agent.row(300), None);
    agent.finish().await;
}

/// Whatever others do, an agent's users end with identities whose objects have their labels, and with no other.
#[test]
fn any_order_of_changes_ends_with_the_labels_of_the_users() {
    use proptest::prelude::*;
    let steps = proptest::collection::vec((0..6u8, 0..4usize, 256..260u32), 1..40);
    proptest!(ProptestConfig::with_cases(256), |(steps in steps)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(play(&steps));
    });
}

/// The write of 258 for "c" is refused after the watch has shown its deletion; later "a" has that id and its object goes.
#[tokio::test(start_paused = true)]
async fn an_id_that_was_refused_once_is_written_for_labels_that_have_it_later() {
    #[rustfmt::skip]
    let steps = [
        (2, 2, 259), (3, 3, 256), (4, 2, 259), (2, 1, 258), (3, 1, 256), (2, 2, 258), (5, 3, 259), (0, 3, 259), (3, 1, 256),
        (1, 0, 256), (3, 3, 259), (2, 0, 256), (5, 0, 256), (0, 2, 259), (2, 1, 259), (1, 3, 259), (2, 2, 256), (2, 0, 258),
        (0, 1, 258), (1, 1, 258), (3, 0, 259), (4, 3, 259), (5, 3, 259), (0, 0, 256), (5, 2, 258), (2, 1, 259), (4, 2, 257),
        (3, 1, 258), (2, 2, 257), (4, 0, 259), (5, 3, 258),
    ];
    play(&steps).await;
}

/// `steps` are an action, the number of labels, and an identity or milliseconds.
async fn play(steps: &[(u8, usize, u32)]) {
    let names = ["k8s:app=a", "k8s:app=b", "k8s:app=c", "k8s:app=d"];
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
    for &(step, label, id) in steps {
        let user = format!("endpoint/{label}");
        match step {
            0 => {
                drop(agent.identities.allocate(&set(names[label]), &user));
                wanted.insert(user, label);
            }
            1 => {
                agent.identities.release_all(&user);
                wanted.remove(&user);
            }
            2 => {
                let (key, value) = names[label].split_once('=').unwrap();
                server.put(&id.to_string(), json!({key: value}), json!({}));
            }
            3 => {
                for name in server.objects().into_keys().take(1 + label) {
                    server.delete(name.parse().unwrap());
                }
            }
            4 => server.away(label % 2 == 0),
            _ => tokio::time::sleep(Duration::from_millis(u64::from(id))).await,
        }
    }
    server.away(false);
    for (user, label) in &wanted {
        let held = || {
            let snapshot = agent.table.snapshot();
            agent.table.list(&snapshot, Identity::by_user(user)).map(|row| row.id).collect::<BTreeSet<_>>()
        };
        // As an endpoint does: it keeps one identity, and gets another one when it has lost that.
        let id = agent.allocate(names[*label], user).await;
        agent.identities.keep_only(user, id);
        assert_eq!(held(), BTreeSet::from([id]));
    }
    let as_wanted = || {
        let snapshot = agent.table.snapshot();
        wanted.iter().all(|(user, label)| {
            let row = agent.table.list(&snapshot, Identity::by_user(user)).next();
            if row.is_none() {
                // An object of others has taken it away: the endpoint asks for another one.
                drop(agent.identities.allocate(&set(names[*label]), user));
            }
            row.is_some_and(|row| {
                let (key, value) = names[*label].split_once('=').unwrap();
                let object = server.objects().get(&row.id.to_string()).cloned();
                row.labels.texts() == [names[*label]] && object == Some(json!({key: value}))
            })
        })
    };
    agent.until("objects and users agree", as_wanted).await;
    agent.finish().await;
}

/// Pods of a node are relabelled: their identities come after delays, unless a new endpoint needs them or another node
/// creates them.
#[tokio::test(start_paused = true)]
async fn identities_of_changed_labels_are_created_after_a_delay() {
    let server = Server::default();
    let agent = Agent::start(&server).await;
    let delay = Duration::from_secs(20);
    let waits =
        |result: Result<u32, Error>| assert!(matches!(result, Err(Error::Waiting { .. })), "{result:?}");
    waits(agent.identities.allocate_after(&set(WEB), "endpoint/1", delay));
    waits(agent.identities.allocate_after(&set("k8s:app=db"), "endpoint/2", delay));
    waits(agent.identities.allocate_after(&set("k8s:app=dns"), "endpoint/3", delay));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(server.objects().len(), 0);
    assert_eq!(
        agent.hive.health("identity.job-ciliumidentities").message,
        "Running",
        "a delay is no problem"
    );
    // A new endpoint has the same labels as one that waits, another node those of another one.
    agent.allocate("k8s:app=db", "endpoint/4").await;
    server.put("3000", json!({"k8s:app": "dns"}), json!({}));
    agent.until("it is known", || agent.row(3000).is_some()).await;
    let id = agent.identities.allocate_after(&set("k8s:app=dns"), "endpoint/3", delay);
    assert_eq!((id.unwrap(), server.objects().len()), (3000, 2));
    tokio::time::sleep(Duration::from_secs(11)).await;
    agent.until("it is created", || server.objects().len() == 3).await;
    agent.finish().await;
}

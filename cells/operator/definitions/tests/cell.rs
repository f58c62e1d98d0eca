//! Registration at an API server that may be slow, older, newer, or refuse.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use hive::Hive;
use hive::prelude::*;
use k8s_fake_apiserver::Tracker;
use k8s_types::schema::custom_resource_definition;
use k8s_types::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use statedb::Db;

const LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// How the server treats definitions.
#[derive(Clone, Copy, Default)]
struct Habits {
    /// The condition that a definition has once it was read so many times.
    reads_until_established: u32,
    conflicts: u32,
    away: u32,
    forbidden: bool,
    names_taken: bool,
}

/// A server with a controller of definitions.
#[derive(Clone)]
struct Server {
    tracker: Tracker,
    habits: Arc<Mutex<Habits>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(habits: Habits) -> Server {
        let tracker = Tracker::new(&Db::new().table().unwrap());
        Server { tracker, habits: Arc::new(Mutex::new(habits)), log: Arc::default() }
    }

    fn definition(&self, kind: Kind) -> Value {
        let name = Key::new("", format!("{}.cilium.io", kind.plural()));
        let json =
            Api::get(&self.tracker, Kind::CustomResourceDefinition, &name).now_or_never().unwrap().unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    fn fault(&self, verb: &str) -> Option<ApiError> {
        let mut habits = self.habits.lock();
        if habits.away > 0 {
            habits.away -= 1;
            return Some(ApiError::Unavailable {
                message: "connection refused".to_owned(),
                retry_after: None,
            });
        }
        if verb != "get" && habits.forbidden {
            return Some(ApiError::Forbidden(format!("may not {verb} customresourcedefinitions")));
        }
        if verb == "update" && habits.conflicts > 0 {
            habits.conflicts -= 1;
            return Some(ApiError::Conflict("the object has been modified".to_owned()));
        }
        None
    }

    fn write(&self, verb: &str, object: &Bytes, answer: Answer<Bytes>) -> Answer<Bytes> {
        if let Some(fault) = self.fault(verb) {
            return std::future::ready(Err(fault)).boxed();
        }
        let object: Value = serde_json::from_slice(object).unwrap();
        self.log.lock().push(format!("{verb} {}", object["metadata"]["name"].as_str().unwrap()));
        answer
    }
}

impl Api for Server {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        if let Some(fault) = self.fault("get") {
            return std::future::ready(Err(fault)).boxed();
        }
        let answer = Api::get(&self.tracker, kind, key).now_or_never().unwrap();
        let mut habits = self.habits.lock();
        let answer = answer.map(|json| {
            let mut object: Value = serde_json::from_slice(&json).unwrap();
            let condition = |kind: &str, status: bool| {
                json!({"type": kind, "status": if status { "True" } else { "False" }, "message": "by the test"})
            };
            let waits = habits.reads_until_established > 0;
            habits.reads_until_established = habits.reads_until_established.saturating_sub(1);
            let conditions = [
                condition("NamesAccepted", !habits.names_taken),
                condition("Established", !waits && !habits.names_taken),
            ];
            object["status"] = json!({"conditions": conditions});
            object.to_string().into()
        });
        std::future::ready(answer).boxed()
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.write("create", &object, Api::create(&self.tracker, kind, object.clone()))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.write("update", &object, Api::update(&self.tracker, kind, object.clone()))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.tracker.update_status(kind, object)
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        self.tracker.patch(kind, key, status, patch)
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        Api::delete(&self.tracker, kind, key, only_if)
    }
}

async fn register(server: &Server, options: &[(&str, &str)]) -> Result<(), String> {
    let api: Arc<dyn Api> = Arc::new(server.clone());
    let builder = Hive::builder([supply(api), operator_definitions::cell()]);
    let builder = builder.foreign(known_options::known_options());
    let builder = options.iter().fold(builder, |builder, (key, value)| builder.set(*key, value));
    let mut hive = builder.build().unwrap();
    let started = hive.start().await.map_err(|error| error.to_string());
    if started.is_ok() {
        hive.stop().await.unwrap();
    }
    started
}

#[tokio::test(start_paused = true)]
async fn missing_definitions_are_created_and_waited_for() {
    let server = Server::new(Habits { reads_until_established: 40, ..Habits::default() });
    register(&server, &[]).await.unwrap();
    let log = server.log.lock().clone();
    assert_eq!(log.len(), 10, "{log:?}");
    assert!(log.iter().all(|line| line.starts_with("create ")), "{log:?}");
    let node = server.definition(Kind::CiliumNode);
    assert_eq!(node["metadata"]["labels"][LABEL], "1.33.9");
    assert_eq!(node["spec"], custom_resource_definition(Kind::CiliumNode)["spec"]);

    // The next operator has nothing to do; more features have more kinds.
    server.log.lock().clear();
    register(&server, &[]).await.unwrap();
    assert_eq!(*server.log.lock(), Vec::<String>::new());
    register(&server, &[("enable-egress-gateway", "true")]).await.unwrap();
    assert_eq!(*server.log.lock(), ["create ciliumegressgatewaypolicies.cilium.io"]);
}

#[tokio::test(start_paused = true)]
async fn older_definitions_are_updated_and_newer_ones_stay() {
    let server = Server::new(Habits { conflicts: 2, ..Habits::default() });
    let stored = |kind, version: &str| {
        let mut object = custom_resource_definition(kind);
        object["metadata"]["labels"][LABEL] = version.into();
        object["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        server.tracker.add(&object.to_string()).unwrap();
    };
    stored(Kind::CiliumNode, "1.33.8");
    stored(Kind::CiliumEndpoint, "1.40.0");
    register(&server, &[]).await.unwrap();
    let log = server.log.lock().clone();
    let updates: Vec<&String> = log.iter().filter(|line| line.starts_with("update")).collect();
    assert_eq!(updates, ["update ciliumnodes.cilium.io"]);
    assert_eq!(server.definition(Kind::CiliumNode)["metadata"]["labels"][LABEL], "1.33.9");
    let endpoint = server.definition(Kind::CiliumEndpoint);
    assert_eq!(endpoint["metadata"]["labels"][LABEL], "1.40.0");
    assert_eq!(endpoint["spec"]["versions"][0]["additionalPrinterColumns"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_definition_from_its_place_is_named() {
    let refused = Server::new(Habits { forbidden: true, ..Habits::default() });
    let error = register(&refused, &[]).await.unwrap_err();
    assert!(error.contains("cannot create the definition cilium"), "{error}");
    assert!(error.contains("may not create customresourcedefinitions"), "{error}");

    let taken = Server::new(Habits { names_taken: true, ..Habits::default() });
    let error = register(&taken, &[]).await.unwrap_err();
    assert!(error.contains("does not accept the names of the definition"), "{error}");

    let never = Server::new(Habits { reads_until_established: u32::MAX, ..Habits::default() });
    let error = register(&never, &[]).await.unwrap_err();
    assert!(error.contains("is not established after 60 s: by the test"), "{error}");

    // A minute's outage is waited for, and a longer one is an error.
    let begin = tokio::time::Instant::now();
    let away = Server::new(Habits { away: 100, ..Habits::default() });
    register(&away, &[]).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60));
    let away = Server::new(Habits { away: u32::MAX, ..Habits::default() });
    let error = register(&away, &[]).await.unwrap_err();
    assert!(error.contains("connection refused"), "{error}");
}

#[tokio::test]
async fn nothing_is_registered_when_it_is_done_otherwise() {
    let server = Server::new(Habits { forbidden: true, ..Habits::default() });
    register(&server, &[("skip-crd-creation", "true")]).await.unwrap();
    assert_eq!(*server.log.lock(), Vec::<String>::new());
}

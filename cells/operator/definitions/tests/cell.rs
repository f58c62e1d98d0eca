//! Registration at an API server that may be slow, older, newer, or refuse.

use std::collections::BTreeSet;
use std::time::Duration;

use hive::Hive;
use k8s_fake_apiserver::{Domain, FakeServer, Gvr, Request, Tracker};
use k8s_types::schema::custom_resource_definition;
use k8s_types::{ApiError, Kind};
use serde_json::{Value, json};

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

/// Returns a server with a controller of definitions.
fn server(mut habits: Habits) -> FakeServer {
    let server = FakeServer::default();
    server.on_request(move |tracker, request| {
        if habits.away > 0 {
            habits.away -= 1;
            return Err(Request::unreachable());
        }
        if request.verb == "get" {
            return habits.control(tracker, request);
        }
        if habits.forbidden {
            return Err(ApiError::Forbidden(format!("may not {} customresourcedefinitions", request.verb)));
        }
        if request.verb == "update" && habits.conflicts > 0 {
            habits.conflicts -= 1;
            return Err(ApiError::Conflict("the object has been modified".to_owned()));
        }
        Ok(())
    });
    server
}

impl Habits {
    /// Writes the conditions of a definition that is about to be read.
    fn control(&mut self, tracker: &Tracker, request: &Request) -> Result<(), ApiError> {
        let gvr = Gvr::from(request.kind);
        let Ok(object) = tracker.get(Domain::Any, &gvr, &request.key) else { return Ok(()) };
        let condition = |kind: &str, status: bool| json!({"type": kind, "status": if status { "True" } else { "False" }, "message": "by the test"});
        let waits = self.reads_until_established > 0;
        self.reads_until_established = self.reads_until_established.saturating_sub(1);
        let conditions = [
            condition("NamesAccepted", !self.names_taken),
            condition("Established", !waits && !self.names_taken),
        ];
        let status = json!({"conditions": conditions});
        if object.value()["status"] == status {
            return Ok(());
        }
        let mut object = object.value().clone();
        object["status"] = status;
        tracker.update(&object.to_string(), false)
    }
}

fn definition(server: &FakeServer, kind: Kind) -> Value {
    server.object(Kind::CustomResourceDefinition, &format!("{}.cilium.io", kind.plural()))
}

/// Returns the writes since the last call, failed ones included.
fn take_writes(server: &FakeServer) -> Vec<String> {
    let requests = server.take_requests();
    let writes = requests.iter().filter(|request| request.verb != "get");
    writes.map(|request| format!("{} {}", request.verb, request.key.name)).collect()
}

async fn register(server: &FakeServer, options: &[(&str, &str)]) -> Result<(), String> {
    let builder = Hive::builder([server.cell(), operator_definitions::cell()]);
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
    let server = server(Habits { reads_until_established: 40, ..Habits::default() });
    register(&server, &[]).await.unwrap();
    let log = take_writes(&server);
    assert_eq!(log.len(), 10, "{log:?}");
    assert!(log.iter().all(|line| line.starts_with("create ")), "{log:?}");
    let first: BTreeSet<&str> = log[..2].iter().map(String::as_str).collect();
    assert_eq!(first, ["create ciliumidentities.cilium.io", "create ciliumnodes.cilium.io"].into());
    let node = definition(&server, Kind::CiliumNode);
    assert_eq!(node["metadata"]["labels"][LABEL], "1.33.9");
    assert_eq!(node["spec"], custom_resource_definition(Kind::CiliumNode)["spec"]);

    // The next operator has nothing to do; more features have more kinds.
    register(&server, &[]).await.unwrap();
    assert_eq!(take_writes(&server), Vec::<String>::new());
    register(&server, &[("enable-egress-gateway", "true")]).await.unwrap();
    assert_eq!(take_writes(&server), ["create ciliumegressgatewaypolicies.cilium.io"]);
}

#[tokio::test(start_paused = true)]
async fn older_definitions_are_updated_and_newer_ones_stay() {
    let server = server(Habits { conflicts: 2, ..Habits::default() });
    let stored = |kind, version: &str| {
        let mut object = custom_resource_definition(kind);
        object["metadata"]["labels"][LABEL] = version.into();
        object["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        server.add(&object);
    };
    stored(Kind::CiliumNode, "1.33.8");
    stored(Kind::CiliumEndpoint, "1.40.0");
    register(&server, &[]).await.unwrap();
    let log = take_writes(&server);
    let updates: Vec<&String> = log.iter().filter(|line| line.starts_with("update")).collect();
    assert_eq!(updates, ["update ciliumnodes.cilium.io"; 3], "after two conflicts");
    assert_eq!(definition(&server, Kind::CiliumNode)["metadata"]["labels"][LABEL], "1.33.9");
    let endpoint = definition(&server, Kind::CiliumEndpoint);
    assert_eq!(endpoint["metadata"]["labels"][LABEL], "1.40.0");
    assert_eq!(endpoint["spec"]["versions"][0]["additionalPrinterColumns"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_definition_from_its_place_is_named() {
    let refused = server(Habits { forbidden: true, ..Habits::default() });
    let error = register(&refused, &[]).await.unwrap_err();
    assert!(error.contains("cannot create the definition cilium"), "{error}");
    assert!(error.contains("may not create customresourcedefinitions"), "{error}");

    let taken = server(Habits { names_taken: true, ..Habits::default() });
    let error = register(&taken, &[]).await.unwrap_err();
    assert!(error.contains("does not accept the names of the definition"), "{error}");

    let never = server(Habits { reads_until_established: u32::MAX, ..Habits::default() });
    let error = register(&never, &[]).await.unwrap_err();
    assert!(error.contains("is not established after 60 s: by the test"), "{error}");

    // A minute's outage is waited for, and a longer one is an error.
    let begin = tokio::time::Instant::now();
    let away = server(Habits { away: 100, ..Habits::default() });
    register(&away, &[]).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60));
    let away = server(Habits { away: u32::MAX, ..Habits::default() });
    let error = register(&away, &[]).await.unwrap_err();
    assert!(error.contains("connection refused"), "{error}");
}

#[tokio::test]
async fn nothing_is_registered_when_it_is_done_otherwise() {
    let server = server(Habits { forbidden: true, ..Habits::default() });
    register(&server, &[("skip-crd-creation", "true")]).await.unwrap();
    assert_eq!(take_writes(&server), Vec::<String>::new());
}

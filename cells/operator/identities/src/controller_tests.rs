//! The job with few ids, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use identity_core::Range;
use k8s_fake_apiserver::FakeServer;
use k8s_types::Kind;
use k8s_types::cilium::CiliumIdentity;
use k8s_types::core::Namespace;
use operator_election::Leadership;
use serde_json::json;
use statedb::Table;
use tokio::time::{Instant, sleep};

use crate::cell::{IdentitiesParams, start_with};
use crate::{IdentitiesConfig, PodIdentity, QUARANTINE};

const RANGE: Range = Range { first: 256, last: 259 };

fn add_pod(server: &FakeServer, name: &str) {
    server.add(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
    }));
}

fn count(server: &FakeServer) -> usize {
    server.objects(Kind::CiliumIdentity).len()
}

#[tokio::test(start_paused = true)]
async fn label_sets_that_found_no_id_get_one_as_soon_as_it_is_freed() {
    let server = FakeServer::default();
    server.add(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    let job = module(
        "identities",
        "CiliumIdentities of a small range",
        [
            config::<IdentitiesConfig>(),
            statedb::table::<PodIdentity>(),
            k8s_tables::table::<CiliumIdentity>(),
            invoke(|p: IdentitiesParams| start_with(p, RANGE)),
        ],
    );
    let mut hive = TestHive::new([
        statedb::cell(),
        server.cell(),
        operator_definitions::cell(),
        k8s_tables::table::<Namespace>(),
        operator_objects::pods(),
        k8s_writer::cell(),
        supply(Arc::new(Leadership::permanent())),
        job,
        invoke(|_: Arc<Table<PodIdentity>>| ()),
    ])
    .set("skip-crd-creation", "true")
    .set("identity-allocation-mode", "crd")
    .set("identity-management-mode", "operator");
    hive.start().await;
    for name in ["a", "b", "c", "d"] {
        add_pod(&server, name);
    }
    hive.until("all ids are used", || count(&server) == 4).await;
    for name in ["e", "f"] {
        add_pod(&server, name);
    }
    sleep(Duration::from_secs(100)).await;
    let health = hive.health("identities.job-sync");
    assert!(health.error.contains("no identity is left in 256-259"), "{}", health.error);

    // The quarantine ends between two comparisons with the table, which retry as well.
    let removed = Instant::now();
    let object = server.objects(Kind::CiliumIdentity).remove(0);
    let labels = object["security-labels"]["k8s:app"].as_str().unwrap();
    server.remove(Kind::Pod, labels);
    server.remove(Kind::CiliumIdentity, object["metadata"]["name"].as_str().unwrap());
    sleep(QUARANTINE - Duration::from_secs(1)).await;
    assert_eq!(count(&server), 3);
    hive.until("one has the freed id", || count(&server) == 4).await;
    let late = removed.elapsed() - QUARANTINE;
    assert!(late < Duration::from_secs(5), "{late:?} after the end of the quarantine");
    let health = hive.health("identities.job-sync");
    assert!(health.message.starts_with("1 of 5 label sets"), "{}", health.message);
    hive.finish().await;
}

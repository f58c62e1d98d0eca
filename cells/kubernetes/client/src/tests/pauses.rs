//! Creations of objects whose kind is new.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use k8s_types::{Api, Kind};
use serde_json::json;
use tokio::time::Instant;

use super::Bench;
use super::fake::Fake;
use crate::requests::Requests;

#[tokio::test(start_paused = true)]
async fn an_object_of_a_new_kind_is_created_when_the_server_does_not_pause() {
    let bench = Bench::new(Fake::new(&["pods"]), Kind::Pod).await;
    let definitions = &bench.connection.definitions;
    let requests = Requests { link: bench.connection.link.clone(), definitions: definitions.clone() };
    let created = async |kind: Kind| {
        let begin = Instant::now();
        let object = json!({"metadata": {"name": "node-1"}}).to_string();
        drop(requests.create(kind, Bytes::from(object)).await);
        let sent = |request: &String| request.starts_with("POST") && request.contains(kind.plural());
        assert!(bench.fake.requests().iter().any(sent), "{:?}", bench.fake.requests());
        begin.elapsed()
    };
    let changed = Timestamp::from_second(1_800_000_000).unwrap();
    let definition = json!({"metadata": {"creationTimestamp": changed}}).to_string();
    let after = |ms: i64| changed + jiff::SignedDuration::from_millis(ms);

    definitions.set_age("ciliumnodes.cilium.io", definition.as_bytes(), after(900));
    assert_eq!(created(Kind::CiliumNode).await, Duration::from_millis(1300));
    assert_eq!(created(Kind::CiliumNode).await, Duration::ZERO, "the pause is over");
    assert_eq!(created(Kind::CiliumIdentity).await, Duration::ZERO, "another kind");

    // A change of a definition begins another pause; one that is old ends it.
    definitions.set_age("ciliumnodes.cilium.io", definition.as_bytes(), after(1_000));
    definitions.set_age("ciliumnodes.cilium.io", definition.as_bytes(), after(60_000));
    assert_eq!(created(Kind::CiliumNode).await, Duration::ZERO);
    bench.end().await;
}

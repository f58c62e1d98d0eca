//! The tracker is an API server: by the assertions that a real one is held to as well.

use std::sync::Arc;

use integration_tests::ApiServer;
use k8s_fake_apiserver::Tracker;
use k8s_types::Kind;
use statedb::Db;

fn tracker() -> (Tracker, ApiServer) {
    let tracker = Tracker::new(&Db::new().table().unwrap());
    let server = Arc::new(tracker.clone());
    (tracker, ApiServer { source: server.clone(), api: server, namespace: "garden".to_owned() })
}

#[tokio::test]
async fn the_tracker_answers_as_a_server() {
    tracker().1.is_one().await;
}

#[tokio::test]
async fn a_resync_of_the_tracker_makes_watches_list_again() {
    let (tracker, server) = tracker();
    let resync = async |server: &ApiServer| {
        let now = ["staying", "coming"].map(|name| server.config_map(name, "2").to_string());
        tracker.resync(&Kind::ConfigMap.into(), &now).unwrap();
    };
    server.a_lost_place_is_found_again(resync).await;
}

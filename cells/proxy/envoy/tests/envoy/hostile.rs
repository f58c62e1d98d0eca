use std::os::unix::fs::PermissionsExt as _;

use envoy_api::cluster::Cluster;
use envoy_api::discovery::DiscoveryRequest;
use envoy_api::listener::Listener;
use envoy_api::service::listener::v3::listener_discovery_service_client::ListenerDiscoveryServiceClient;
use hive::health::Level;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::Code;

use crate::client::{Client, NODE, connected, first};
use crate::world::{World, http};

#[tokio::test]
async fn clients_that_break_rules_harm_nobody_else() {
    let world = World::start(&[], |folder, _, _| {
        // A socket of a killed agent.
        let sockets = folder.join("envoy/sockets");
        std::fs::create_dir_all(&sockets).unwrap();
        drop(std::os::unix::net::UnixListener::bind(sockets.join("xds.sock")).unwrap());
    })
    .await;
    let socket = world.xds().await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o660, 0o777));
    world.set_and_reserve(7, http("/")).await;

    let mut garbage = UnixStream::connect(&socket).await.unwrap();
    garbage.write_all(&[0x5a; 100_000]).await.ok();
    let mut rest = Vec::new();
    garbage.read_to_end(&mut rest).await.ok();

    // Clients that request and never read.
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(Client::<Cluster>::open(&socket, first("other~10.0.0.1~a~b", "")).await);
    }
    let refused = async |request| {
        let mut client = Client::<Listener>::open(&socket, request).await;
        client.try_next().await.unwrap_err().code()
    };
    assert_eq!(refused(DiscoveryRequest::default()).await, Code::InvalidArgument, "no node");
    assert_eq!(refused(first("a~b", "")).await, Code::InvalidArgument);
    let other_type = DiscoveryRequest { type_url: "x".to_owned(), ..first(NODE, "") };
    assert_eq!(refused(other_type).await, Code::InvalidArgument);
    let huge = DiscoveryRequest { resource_names: vec!["x".repeat(2 << 20)], ..first(NODE, "") };
    assert_eq!(refused(huge).await, Code::OutOfRange);
    let (connection, _work) = connected(&socket).await;
    let mut origin =
        ListenerDiscoveryServiceClient::with_origin(connection, "http://x/nothing".parse().unwrap());
    let unknown = origin.stream_listeners(futures::stream::empty()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);

    let mut clusters = Client::<Cluster>::envoy(&socket).await;
    assert_eq!(clusters.next().await.len(), 4);
    clusters.ack();
    let mut listeners = Client::<Listener>::envoy(&socket).await;
    assert_eq!(listeners.next().await.len(), 1);
    drop(idle);
    world.end().await;
}

#[tokio::test]
async fn without_an_envoy_there_is_nothing() {
    let world = World::start(&[("external-envoy-proxy", "false")], |_, _, _| ()).await;
    world.set(7, http("/"));
    assert!(!world.folder.path().join("envoy").exists());
    assert_eq!(world.port(crate::world::HTTP_EGRESS), None);
    world.end().await;
    let world = World::start(&[("enable-l7-proxy", "false")], |_, _, _| ()).await;
    assert!(!world.folder.path().join("envoy").exists());
    world.end().await;
}

#[tokio::test]
async fn only_the_envoy_of_this_node_counts() {
    let world = World::start(&[], |_, _, _| ()).await;
    let socket = world.xds().await;
    world.set_and_reserve(7, http("/")).await;
    let mut observer = Client::<Cluster>::open(&socket, first("host~10.0.0.1~a~b", "")).await;
    observer.next().await;
    observer.ack();
    let mut listeners = Client::<Listener>::open(&socket, first("host~10.0.0.1~a~b", "")).await;
    listeners.is_silent().await;
    assert_eq!(world.health().0, Level::Degraded);
    world.end().await;
}

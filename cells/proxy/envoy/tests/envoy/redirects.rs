use std::collections::BTreeSet;
use std::time::Duration;

use datapath_abi::identity::INGRESS;
use envoy_api::cilium::port_network_policy_rule::L7;
use envoy_api::cilium::{NetworkPolicy, NetworkPolicyHosts};
use envoy_api::cluster::Cluster;
use envoy_api::listener::Listener;
use hive::health::Level;
use proxy_ports::PortState;
use serde_json::json;

use crate::client::{Client, NODE, first};
use crate::world::{HTTP_EGRESS, World, http, insert, insert_of};

fn names(listeners: &[Listener]) -> Vec<&str> {
    listeners.iter().map(|listener| listener.name.as_str()).collect()
}

#[tokio::test]
async fn a_rule_of_http_gets_a_listener_policies_and_then_traffic() {
    let world = World::start(&[], |_, _, _| ()).await;
    let socket = world.xds().await;
    assert_eq!(world.health(), (Level::Ok, "No rule needs Envoy ".to_owned()));
    world.set(7, http("/a"));
    world.hive.until("Envoy is missed", || world.health().1.starts_with("Envoy is not connected")).await;
    let row = world.port(HTTP_EGRESS).unwrap();
    assert!(row.state == PortState::Reserved && (10_000..=20_000).contains(&row.port), "{row:?}");
    assert!(
        world
            .hive
            .get::<proxy_ports::Proxies>()
            .ports()
            .initialized(&world.hive.get::<proxy_ports::Proxies>().ports().snapshot()),
        "policy does not wait for Envoy"
    );

    let mut listeners = Client::<Listener>::envoy(&socket).await;
    listeners.is_silent().await;
    let mut clusters = Client::<Cluster>::envoy(&socket).await;
    let found = clusters.next().await;
    let found: Vec<&str> = found.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(found, ["egress-cluster", "egress-cluster-tls", "ingress-cluster", "ingress-cluster-tls"]);
    listeners.is_silent().await;
    clusters.ack();
    let found = listeners.next().await;
    assert_eq!(names(&found), [format!("{HTTP_EGRESS}:{}", row.port)]);
    let mut policies = Client::<NetworkPolicy>::envoy(&socket).await;
    let [policy] = &policies.next().await[..] else { panic!("one endpoint") };
    assert_eq!((policy.endpoint_id, &policy.endpoint_ips[..]), (7, &["10.0.0.7".to_owned()][..]));
    let Some(L7::HttpRules(rules)) = &policy.egress_per_port_policies[0].rules[0].l7 else {
        panic!("{policy:?}")
    };
    assert_eq!(rules.http_rules.len(), 1);
    listeners.ack();
    listeners.is_silent().await;
    assert_eq!(
        world.port(HTTP_EGRESS).unwrap().state,
        PortState::Reserved,
        "Envoy does not have the policies yet"
    );
    policies.ack();
    world
        .hive
        .until("the port is announced", || world.port(HTTP_EGRESS).unwrap().state == PortState::Listening)
        .await;
    world.lead_to(HTTP_EGRESS, row.port);
    assert_eq!(world.port(HTTP_EGRESS).unwrap().state, PortState::Ready);
    world
        .hive
        .until("it is well", || world.health() == (Level::Ok, "Envoy has 1 listeners ".to_owned()))
        .await;

    // Only the changed rules go to Envoy; the listener stays. Policy maps wait for it.
    let proxies = world.hive.get::<proxy_ports::Proxies>();
    world.set(7, http("/b"));
    let received = proxies.policy_receiver().unwrap().received();
    let received = tokio::time::timeout(Duration::from_secs(10), received);
    tokio::pin!(received);
    assert_eq!(policies.next().await.len(), 1);
    assert!(futures::poll!(&mut received).is_pending(), "it is not accepted");
    policies.ack();
    received.await.unwrap();
    listeners.is_silent().await;
    drop((listeners, clusters, policies));
    world.hive.until("it is gone", || world.health().0 == Level::Degraded).await;
    assert!(proxies.policy_receiver().is_none(), "nothing waits for an Envoy that is gone");
    assert_eq!(
        world.port(HTTP_EGRESS).unwrap().state,
        PortState::Ready,
        "an Envoy that lost its connection serves on"
    );
    let mut listeners = Client::<Listener>::envoy(&socket).await;
    assert_eq!(listeners.next().await.len(), 1, "the full state again");
    listeners.ack();
    world.set(7, json!([{}]));
    assert_eq!(listeners.next().await, []);
    let row = world.port(HTTP_EGRESS).unwrap();
    assert!(matches!(row.state, PortState::Withdrawn { .. }) && row.port != 0, "{row:?}");
    world.end().await;
}

#[tokio::test]
async fn a_port_that_envoy_cannot_bind_is_exchanged_and_other_refusals_are_reported() {
    let world = World::start(&[], |_, _, _| ()).await;
    let socket = world.xds().await;
    let rules = json!([
        http("/")[0],
        {"toPorts": [{"ports": [{"port": "443", "protocol": "TCP"}], "serverNames": ["a.io"]}]},
    ]);
    world.set_and_reserve(7, rules).await;
    let _clusters = Client::<Cluster>::accepting(&socket).await;
    let mut listeners = Client::<Listener>::envoy(&socket).await;
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let found = listeners.next().await;
        let [http, tls] = &names(&found)[..] else { panic!("{found:?}") };
        assert!(tls.starts_with("cilium-tls-egress:"));
        assert!(seen.insert((*http).to_owned()), "another port");
        listeners.nack(&format!(
            "Error adding/updating listener(s) {http}: cannot bind '127.0.0.1': Address already in use"
        ));
    }
    let found = listeners.next().await;
    let [http, tls] = &names(&found)[..] else { panic!("{found:?}") };
    assert!(seen.insert((*http).to_owned()));
    assert_eq!(found[0].name, **http);
    let tls_name = (*tls).to_owned();
    // The other listener was never named: it stays, and is announced with the next version that is accepted.
    listeners.nack(&format!("Error adding/updating listener(s) {http}: Didn't find a registered implementation for 'cilium.bpf_metadata'"));
    assert_eq!(names(&listeners.next().await), [tls_name]);
    listeners.ack();
    let tls = || world.port("cilium-tls-egress").unwrap();
    world.hive.until("the other one is announced", || tls().state == PortState::Listening).await;
    let (level, text) = world.health();
    assert!(
        level == Level::Degraded && text.contains(HTTP_EGRESS) && text.contains("bpf_metadata"),
        "{text}"
    );
    assert!(matches!(world.port(HTTP_EGRESS).unwrap().state, PortState::Withdrawn { .. }));
    let text = world.metrics.text();
    assert!(text.contains("envoy.config.listener.v3.Listener\",status=\"nack\"} 3"), "{text}");
    world.end().await;
}

#[tokio::test]
async fn a_restart_keeps_the_port_and_gives_no_policies_before_all_are_known() {
    let world = World::start(&[], |folder, policies, endpoints| {
        std::fs::create_dir(folder.join("state")).unwrap();
        let ports = r#"{"cilium-http-egress":{"type":"http","ingress":false,"port":10077}}"#;
        std::fs::write(folder.join("state/proxy_ports_state.json"), ports).unwrap();
        insert(policies, endpoints, 7, 0, http("/a"));
    })
    .await;
    let socket = world.xds().await;
    let row = || world.port(HTTP_EGRESS).unwrap();
    world.hive.until("traffic goes on", || row().state == PortState::Listening).await;
    assert_eq!(row().port, 10_077, "before Envoy is connected");
    let mut clusters = Client::<Cluster>::open(&socket, first(NODE, "57")).await;
    clusters.next().await;
    clusters.ack();
    assert_eq!(clusters.version, "58", "versions continue");
    let mut listeners = Client::<Listener>::open(&socket, first(NODE, "57")).await;
    assert_eq!(names(&listeners.next().await), ["cilium-http-egress:10077"]);
    listeners.ack();
    let mut policies = Client::<NetworkPolicy>::open(&socket, first(NODE, "57")).await;
    policies.is_silent().await;
    world.set(7, http("/a"));
    assert_eq!(policies.next().await.len(), 1);
    assert_eq!(row().port, 10_077);
    let mut hosts = Client::<NetworkPolicyHosts>::envoy(&socket).await;
    assert_eq!(hosts.next().await, []);
    world.end().await;
}

/// The policy of the ingress endpoint goes to Envoy, and needs no listener: no traffic is redirected by it.
#[tokio::test]
async fn the_policy_of_the_ingress_needs_no_listener() {
    let world = World::start(&[], |_, policies, endpoints| {
        insert_of(policies, endpoints, INGRESS, 9, 1, http("/a"));
    })
    .await;
    let mut policies = Client::<NetworkPolicy>::envoy(&world.xds().await).await;
    let [policy] = &policies.next().await[..] else { panic!("one policy") };
    assert_eq!((&*policy.endpoint_ips, policy.endpoint_id), (&["10.0.0.9".to_owned()][..], 9));
    assert_eq!(policy.egress_per_port_policies[0].port, 80);
    policies.ack();
    assert_eq!(world.health(), (Level::Ok, "No rule needs Envoy ".to_owned()));
    assert!(world.port(HTTP_EGRESS).is_none_or(|row| row.port == 0));
    world.end().await;
}

#[tokio::test]
async fn reflection_names_the_services_of_the_socket() {
    use tonic_reflection::pb::v1;
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;

    let world = World::start(&[], |_, _, _| ()).await;
    let socket = world.xds().await;
    let (connection, _work) = crate::client::connected(&socket).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(connection);
    let mut ask = async |request: MessageRequest| {
        let request = v1::ServerReflectionRequest { message_request: Some(request), ..Default::default() };
        let answers = client.server_reflection_info(futures::stream::iter([request])).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
    };
    let list = ask(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(list) = list else { panic!("{list:?}") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in [
        "cilium.NetworkPolicyDiscoveryService",
        "cilium.NetworkPolicyHostsDiscoveryService",
        "envoy.service.cluster.v3.ClusterDiscoveryService",
        "envoy.service.endpoint.v3.EndpointDiscoveryService",
        "envoy.service.listener.v3.ListenerDiscoveryService",
        "envoy.service.route.v3.RouteDiscoveryService",
        "envoy.service.secret.v3.SecretDiscoveryService",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    let file = ask(MessageRequest::FileContainingSymbol("cilium.NetworkPolicy".to_owned())).await;
    let MessageResponse::FileDescriptorResponse(files) = file else { panic!("{file:?}") };
    assert!(String::from_utf8_lossy(&files.file_descriptor_proto[0]).contains("ingress_per_port_policies"));
    world.end().await;
}

//! NetworkPolicies and ClusterNetworkPolicies of Kubernetes, from their tables to policy maps.

use policy::ObjectState;
use serde_json::{Value, json};

use crate::kit::{Agent, TCP, World, allow};

/// Returns a NetworkPolicy for pods of an app that allows pods of another on a port.
fn allow_k8s(to: &str, from: &str, port: u16) -> Value {
    json!({
        "podSelector": {"matchLabels": {"app": to}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": from}}}], "ports": [{"port": port}]}],
    })
}

/// Returns the listed objects with their states, as texts.
fn states(agent: &Agent) -> Vec<(String, ObjectState)> {
    agent.statuses().iter().map(|row| (row.object.text(), row.state)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_policies_are_added_changed_and_removed() {
    let mut world = World::new();
    world.write_network_policy("cluster-folder", "deny", &json!({"podSelector": {}}));
    world.write(&[], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert!(!world.ingress(7, client.identity, TCP | 80), "it was there before the first round");

    world.write_network_policy("cluster-folder", "web", &allow_k8s("web", "client", 80));
    agent.hive.until("the policy", || world.ingress(7, client.identity, TCP | 80)).await;
    assert!(!world.ingress(7, client.identity, TCP | 81) && !world.ingress(7, 4711, TCP | 80));
    assert!(!world.ingress(7, client.identity, (17 << 16) | 80), "the default protocol is TCP");

    // Both kinds apply to one endpoint together.
    world.write(&[("web", allow("web", "client", 90))], false);
    agent.hive.until("the other kind", || world.ingress(7, client.identity, TCP | 90)).await;
    assert!(world.ingress(7, client.identity, TCP | 80));

    world.write_network_policy("cluster-folder", "web", &allow_k8s("web", "client", 81));
    let has_moved =
        || world.ingress(7, client.identity, TCP | 81) && !world.ingress(7, client.identity, TCP | 80);
    agent.hive.until("the change", has_moved).await;
    // Statuses follow the maps.
    let texts = || states(&agent).into_iter().map(|(text, _)| text).collect::<Vec<String>>();
    agent.hive.until("its statuses", || texts() == ["cnp/shop/web", "knp/shop/deny", "knp/shop/web"]).await;

    world.write(&[("web", Value::Null)], false);
    for name in ["web", "deny"] {
        world.write_network_policy("cluster-folder", name, &Value::Null);
    }
    agent.hive.until("their end", || world.ingress(7, 4711, TCP | 80)).await;
    agent.hive.until("their statuses", || agent.statuses().is_empty()).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_network_policy_leaves_its_previous_version_in_force() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    world.write_network_policy("cluster-folder", "web", &allow_k8s("web", "client", 80));
    agent.hive.until("the policy", || !world.ingress(7, 4711, TCP | 80)).await;

    let mut wrong = allow_k8s("web", "client", 81);
    wrong["ingress"][0]["from"][0] = json!({"ipBlock": {"cidr": "10.0.0.0/33"}});
    world.write_network_policy("cluster-folder", "web", &wrong);
    let state = ("knp/shop/web".to_owned(), ObjectState::RefusedPreviousInForce);
    agent.hive.until("the refusal", || states(&agent) == [state.clone()]).await;
    let problem = agent.statuses()[0].problems[0].clone();
    assert_eq!(problem.path, "spec.ingress[0].from[0].ipBlock.cidr");
    assert!(world.ingress(7, client.identity, TCP | 80) && !world.ingress(7, client.identity, TCP | 81));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_policy_of_another_source_replaces_the_one_before() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    world.write_network_policy("cluster-folder", "web", &allow_k8s("web", "client", 80));
    agent.hive.until("the first", || !world.ingress(7, client.identity, TCP | 81)).await;
    assert!(world.ingress(7, client.identity, TCP | 80));

    // A row has one source: the rules of the other one are no longer in force.
    world.write_network_policy("api-server", "web", &allow_k8s("web", "client", 81));
    let has_moved =
        || world.ingress(7, client.identity, TCP | 81) && !world.ingress(7, client.identity, TCP | 80);
    agent.hive.until("the second", has_moved).await;
    // Statuses follow the maps.
    let sources =
        || agent.statuses().iter().map(|status| status.object.source.to_string()).collect::<Vec<_>>();
    agent.hive.until("its status alone", || sources() == ["api-server"]).await;
    world.write_network_policy("api-server", "web", &Value::Null);
    agent.hive.until("the end", || world.ingress(7, 4711, TCP | 80)).await;
    agent.end().await;
}

/// Returns a ClusterNetworkPolicy of a tier for pods of an app, with one rule for all pods on a port.
fn cluster_rule(tier: &str, action: &str, to: &str, port: u16) -> Value {
    json!({
        "tier": tier,
        "priority": 10,
        "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": to}}}},
        "ingress": [{
            "action": action,
            "from": [{"namespaces": {}}],
            "protocols": [{"tcp": {"destinationPort": {"number": port}}}],
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_of_cluster_network_policies_surround_those_of_a_namespace() {
    let mut world = World::new();
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    let passes = |world: &World, port: u32| world.ingress(7, client.identity, TCP | port);
    assert!(passes(&world, 80) && !passes(&world, 81));

    world.write_cluster_network_policy("admin", &cluster_rule("Admin", "Deny", "web", 80));
    agent.hive.until("the deny of the first tier", || !passes(&world, 80)).await;
    // Without default deny of a namespace's policy this would pass.
    world.write_cluster_network_policy("base", &cluster_rule("Baseline", "Accept", "web", 81));
    agent.hive.until("the last tier", || passes(&world, 81)).await;
    world.write_cluster_network_policy("admin", &cluster_rule("Admin", "Pass", "web", 80));
    agent.hive.until("the namespace's policy decides", || passes(&world, 80)).await;
    let texts: Vec<String> = states(&agent).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["cnp/shop/web", "kcnp/admin", "kcnp/base"]);

    // An invalid one leaves its previous version in force.
    let mut wrong = cluster_rule("Admin", "Deny", "web", 80);
    wrong["priority"] = json!(1001);
    world.write_cluster_network_policy("admin", &wrong);
    let state = ("kcnp/admin".to_owned(), ObjectState::RefusedPreviousInForce);
    agent.hive.until("the refusal", || states(&agent).contains(&state)).await;
    assert!(passes(&world, 80));

    // The last tier alone denies nothing by default.
    world.write(&[("web", Value::Null)], false);
    world.write_cluster_network_policy("admin", &Value::Null);
    agent.hive.until("the end of the others", || passes(&world, 82)).await;
    world.write_cluster_network_policy("base", &cluster_rule("Baseline", "Deny", "web", 81));
    agent.hive.until("the deny of the last tier", || !passes(&world, 81)).await;
    assert!(passes(&world, 80));
    world.write_cluster_network_policy("base", &Value::Null);
    agent.hive.until("the end", || passes(&world, 81)).await;
    agent.end().await;
}

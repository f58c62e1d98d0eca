//! A node whose addresses are listed in its CiliumNode, at a real API server. The test is the user and the operator.

use std::net::IpAddr;
use std::time::Duration;

use integration_tests::{Cluster, Pod};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

use crate::join::{object, spawn};

const LIMIT: Duration = Duration::from_secs(120);

fn cluster() -> Cluster {
    let mut cluster = Cluster::new(&custom_resource_definitions());
    let options = [("ipam", "crd"), ("ipam-min-allocate", "3"), ("ipam-cilium-node-update-rate", "1s")];
    for (key, value) in options {
        cluster.node.config.insert(key.to_owned(), value.to_owned());
    }
    cluster
}

/// Changes fields over whatever the agent has written meanwhile.
fn patch(cluster: &Cluster, part: &[&str], patch: &Value) {
    let patch = patch.to_string();
    let words = [&["patch", "ciliumnode", Cluster::NODE, "--type=merge", "-p", &patch], part].concat();
    cluster.stage.kubectl(&words).unwrap();
}

fn list(cluster: &Cluster, ipv4: &Value, ipv6: &Value) {
    patch(cluster, &[], &json!({"spec": {"ipam": {"pool": ipv4, "ipv6-pool": ipv6}}}));
}

fn release(cluster: &Cluster, address: &str, state: &str) {
    let releases = json!({"status": {"ipam": {"release-ips": {address: state}}}});
    patch(cluster, &["--subresource=status"], &releases);
}

fn owner(cluster: &Cluster, field: &str, address: IpAddr) -> Option<String> {
    let used = object(cluster)["status"]["ipam"][field][address.to_string()].clone();
    used["owner"].as_str().map(str::to_owned)
}

fn state(cluster: &Cluster, address: &str) -> Option<String> {
    object(cluster)["status"]["ipam"]["release-ips"][address].as_str().map(str::to_owned)
}

fn is_unwell(cluster: &Cluster, text: &str) -> bool {
    cluster.unwell().iter().any(|row| row.contains(text))
}

/// The error of an allocation by the API, as the CNI plugin asks for it.
fn refusal(cluster: &Cluster, owner: &str) -> String {
    let path = format!("/v1/ipam?family=ipv4&owner={owner}");
    let answer = cluster.node.request("POST", &path, None).unwrap();
    assert_ne!(answer.status, 201, "{answer:?}");
    answer.body
}

fn add(cluster: &mut Cluster, name: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": Cluster::NODE, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none"}],
        },
    });
    cluster.stage.apply(&pod.to_string()).unwrap();
    cluster.node.add_unknown_pod("default", name)
}

#[test]
fn a_pod_has_an_address_that_the_ciliumnode_lists_until_it_goes() {
    require_root!();
    let mut cluster = cluster();
    spawn(&mut cluster);
    wait_until("the CiliumNode is there", LIMIT, || object(&cluster)["spec"]["ipam"]["min-allocate"] == 3);
    wait_until("addresses are missed", LIMIT, || {
        is_unwell(&cluster, "CiliumNode node-1 has 0 of at least 3 addresses in spec.ipam.pool")
    });
    let early = refusal(&cluster, "default/web");
    assert!(early.contains("no IPv4 address can be allocated yet: CiliumNode node-1 has 0 of"), "{early}");

    let ipv4 = json!({
        "10.244.0.10": {"owner": "router"}, "10.244.0.20": {"owner": "default/web"}, "10.244.0.30": {},
    });
    list(&cluster, &ipv4, &json!({"fd00:10:244::10": {}, "fd00:10:244::20": {}}));
    cluster.node.wait_ready();
    let web = add(&mut cluster, "web");
    assert_eq!(web.ipv4.to_string(), "10.244.0.20", "its own");
    let (ipv4, ipv6) = (web.ipv4, web.ipv6);
    wait_until("the status has them", LIMIT, || {
        owner(&cluster, "used", ipv4).as_deref() == Some("default/web")
            && owner(&cluster, "ipv6-used", ipv6).as_deref() == Some("default/web")
            && owner(&cluster, "used", "10.244.0.10".parse().unwrap()).as_deref() == Some("router")
    });

    // One in use and a free one.
    release(&cluster, "10.244.0.20", "marked-for-release");
    release(&cluster, "10.244.0.30", "marked-for-release");
    wait_until("the first is refused", LIMIT, || {
        state(&cluster, "10.244.0.20").as_deref() == Some("do-not-release")
    });
    wait_until("the second is approved", LIMIT, || {
        state(&cluster, "10.244.0.30").as_deref() == Some("ready-for-release")
    });
    let none = refusal(&cluster, "default/other");
    assert!(
        none.contains("no IPs currently available on the node, allocation will be retried once IPs are added to CiliumNode"),
        "{none}"
    );
    list(&cluster, &json!({"10.244.0.30": null}), &json!({}));
    release(&cluster, "10.244.0.30", "released");
    wait_until("the entry is gone", LIMIT, || state(&cluster, "10.244.0.30").is_none());

    // The next agent knows what there is.
    cluster.node.stop();
    cluster.start();
    let restored = |cluster: &Cluster| owner(cluster, "used", ipv4);
    wait_until("the status has the restored one", LIMIT, || {
        restored(&cluster).is_some_and(|owner| owner.starts_with("default/web"))
    });

    // Its address leaves the list: it stays the pod's.
    list(&cluster, &json!({"10.244.0.20": null}), &json!({}));
    wait_until("health names it", LIMIT, || is_unwell(&cluster, "10.244.0.20 of default/web"));
    assert!(restored(&cluster).is_some());
    cluster.stage.kubectl(&["-n", "default", "delete", "pod", "web", "--wait=false"]).unwrap();
    cluster.node.delete_pod(web);
    wait_until("the status has it no more", LIMIT, || restored(&cluster).is_none());
    wait_until("nothing is lost", LIMIT, || !is_unwell(&cluster, "10.244.0.20"));
    assert_eq!(owner(&cluster, "ipv6-used", ipv6), None);
}

//! `apiary connectivity check`: pods that the kubelet runs, probed, and removed, also after an interrupt.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use cluster_stage::User;
use integration_tests::{Cluster, Kubelet, binary};
use k8s_types::schema::custom_resource_definitions;
use serde_json::Value;
use test_kit::{require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// The command as a user runs it.
fn check(cluster: &Cluster, namespace: &str) -> Command {
    let kubectl = cluster.stage.kubectl_command(&[]);
    let mut command = cluster.node.host().command(binary("apiary"));
    command
        .args([
            "connectivity",
            "check",
            "--image=apiary:test",
            "--timeout=20",
            "-o",
            "json",
            "--namespace",
            namespace,
        ])
        .arg("--kubectl")
        .arg(kubectl.get_program())
        .env("KUBECONFIG", cluster.gate.kubeconfig(User::Admin).unwrap())
        .env("KUBECACHEDIR", cluster.node.sandbox().dir().join("kubectl"))
        .env("GOGC", "off")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn names(cluster: &Cluster, namespace: &str, kinds: &str) -> Vec<String> {
    let list = cluster.stage.kubectl(&["get", kinds, "-n", namespace, "-o=name"]).unwrap();
    list.lines().map(str::to_owned).collect()
}

#[test]
fn a_check_finds_what_works_and_leaves_nothing() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    Kubelet::configure(&mut cluster.node);
    let kubelet = Kubelet::start(&cluster);

    cluster.start();

    // Clients wait for the service, which has no backend. An interrupt ends the check and removes its objects.
    let child = check(&cluster, "interrupted").spawn().unwrap();
    wait_until("a client runs", LIMIT, || kubelet.pod("interrupted", "client").is_some());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.contains("interrupted"), "{}: {error}", output.status);
    assert_eq!(names(&cluster, "interrupted", "pods,services,networkpolicies"), [] as [&str; 0]);

    let child = check(&cluster, "works").spawn().unwrap();
    // There is no controller that would select the backend of the service.
    let server = || kubelet.pod("works", "server");
    wait_until("the server runs", LIMIT, || server().is_some());
    let address = server().unwrap().address();
    cluster
        .stage
        .apply(&format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: server, namespace: works, labels: {{kubernetes.io/service-name: server}}}}, \
             ports: [{{name: tcp, protocol: TCP, port: 8080}}, {{name: udp, protocol: UDP, port: 8080}}], \
             endpoints: [{{addresses: [{address}], conditions: {{ready: true}}, nodeName: {}}}]}}",
            Cluster::NODE
        ))
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let outcomes: Vec<BTreeMap<String, Value>> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {output:?}\n{:#?}\n{}", kubelet.failures(), cluster.node.log()));
    let text = |outcome: &BTreeMap<String, Value>, field: &str| outcome[field].as_str().unwrap().to_owned();
    for outcome in &outcomes {
        assert_eq!(outcome["expected"], outcome["result"], "{outcomes:#?}\n{error}");
    }
    assert!(output.status.success(), "{}: {error}", output.status);
    for (from, to, result) in [
        ("client", "pod on the same node", "allowed"),
        ("client", "ClusterIP of a service", "allowed"),
        ("client", "pod that a policy closes to the client", "denied"),
        ("friend", "pod that a policy opens to the client", "allowed"),
    ] {
        let is_flow =
            |outcome: &&BTreeMap<String, Value>| text(outcome, "from") == from && text(outcome, "to") == to;
        let of_flow: Vec<_> = outcomes.iter().filter(is_flow).collect();
        let has =
            |protocol: &str| of_flow.iter().any(|outcome| text(outcome, "address").starts_with(protocol));
        assert!(has("tcp://") && has("udp://"), "{from} -> {to}: {outcomes:#?}");
        assert!(
            of_flow.iter().all(|outcome| text(outcome, "result") == result),
            "{from} -> {to}: {of_flow:#?}"
        );
    }
    assert_eq!(names(&cluster, "works", "pods,services,networkpolicies"), [] as [&str; 0]);
    wait_until("all containers are gone", LIMIT, || kubelet.pods() == 0);
}

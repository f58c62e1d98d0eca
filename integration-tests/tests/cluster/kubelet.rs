//! Pods made with kubectl: scheduled, run and deleted as in a cluster, with the agent's own CNI configuration.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use integration_tests::soak::Inventory;
use integration_tests::{Cluster, Kubelet, RunningPod};
use k8s_types::schema::custom_resource_definitions;
use serde_json::Value;
use test_kit::{require_command, require_root, try_wait_until, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const PODS: [&str; 3] = ["client", "stranger", "server"];

/// Only clients reach servers.
const POLICY: &str = "
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: only-clients}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: client}}]
";

/// Makes a pod as a person does: it has no node yet.
fn run(cluster: &Cluster, name: &str) {
    let label = format!("--labels=app={name}");
    cluster.stage.kubectl(&["run", name, "--image=none", "--restart=Never", &label]).unwrap();
}

/// Waits until kubectl calls all pods ready; returns them as the kubelet knows them.
fn until_ready<const N: usize>(cluster: &Cluster, kubelet: &Kubelet, names: [&str; N]) -> [RunningPod; N] {
    let arguments = [&["wait", "--for=condition=Ready", "--timeout=120s", "pod"], &names[..]].concat();
    if let Err(error) = cluster.stage.kubectl(&arguments) {
        panic!("{error}\n{:#?}\n{}", kubelet.failures(), cluster.node.log());
    }
    // The kubelet writes the status before its own record of the pod.
    names.map(|name| {
        let pod = || kubelet.pod("default", name).ok_or_else(|| format!("{name} has no container"));
        try_wait_until(LIMIT, pod).unwrap()
    })
}

/// Names of all objects of a kind in namespace `default`.
fn names(cluster: &Cluster, kind: &str) -> Vec<String> {
    let list = cluster.stage.kubectl(&["get", kind, "-n", "default", "-o=name"]).unwrap();
    list.lines().map(|line| line.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

fn pings(from: &RunningPod, to: &RunningPod) -> bool {
    let family = if to.address().is_ipv6() { "-6" } else { "-4" };
    from.ns.exec(&format!("ping {family} -c 1 -W 1 {}", to.address())).is_ok()
}

/// Whether a datagram arrives, and its answer at the sender.
fn talks(from: &RunningPod, to: &RunningPod) -> bool {
    let exchange = || {
        let bind = |pod: &RunningPod| pod.ns.run(|| UdpSocket::bind(SocketAddr::new(pod.address(), 0)));
        let (receiver, sender) = (bind(to)?, bind(from)?);
        for socket in [&receiver, &sender] {
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        }
        sender.send_to(b"question", receiver.local_addr()?)?;
        let (_, source) = receiver.recv_from(&mut [0; 16])?;
        receiver.send_to(b"answer", source)?;
        sender.recv_from(&mut [0; 16]).map(drop)
    };
    let result: io::Result<()> = exchange();
    result.is_ok()
}

fn until_reaches(cluster: &Cluster, from: &RunningPod, to: &RunningPod, expected: bool) {
    let is_so = || match (pings(from, to), talks(from, to)) {
        (ping, udp) if ping == expected && udp == expected => Ok(()),
        found => Err(format!("(ping, UDP) from {} to {}: {found:?}", from.address(), to.address())),
    };
    try_wait_until(LIMIT, is_so).unwrap_or_else(|error| panic!("{error}\n{}", cluster.node.log()));
}

/// Asserts that the pod's object, its CiliumEndpoint and its interface have the same address, and its identity its labels.
fn assert_joined(cluster: &Cluster, name: &str, pod: &RunningPod) {
    let object = cluster.stage.get(&["pod", name]).unwrap();
    assert_eq!(object["metadata"]["uid"], *pod.uid);
    assert_eq!(
        (&object["spec"]["nodeName"], &object["status"]["phase"]),
        (&Cluster::NODE.into(), &"Running".into())
    );
    let listed: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
    let ips: Vec<&str> =
        object["status"]["podIPs"].as_array().unwrap().iter().map(|ip| ip["ip"].as_str().unwrap()).collect();
    assert_eq!(ips, listed);
    let links = pod.ns.ip("-o addr show dev eth0 scope global").unwrap();
    assert!(listed.iter().all(|ip| links.contains(&format!(" {ip}/"))), "{links}");

    let endpoint = |_: ()| cluster.stage.get(&["ciliumendpoint", name]);
    wait_until("the CiliumEndpoint is ready", LIMIT, || {
        endpoint(()).is_ok_and(|found| found["status"]["state"] == "ready")
    });
    let endpoint = endpoint(()).unwrap();
    let addressing = &endpoint["status"]["networking"]["addressing"][0];
    let of_endpoint: Vec<&str> =
        ["ipv4", "ipv6"].iter().filter_map(|family| addressing[family].as_str()).collect();
    assert_eq!(of_endpoint, listed);
    assert_eq!(endpoint["metadata"]["ownerReferences"][0]["uid"], *pod.uid);
    assert_eq!(endpoint["status"]["external-identifiers"]["container-id"], *pod.container);
    let identity =
        cluster.stage.get(&["ciliumidentity", &endpoint["status"]["identity"]["id"].to_string()]).unwrap();
    assert_eq!(identity["security-labels"]["k8s:app"], name);
}

/// Returns the node's inventory once it no longer differs from that of `start`, which has no pods.
fn until_as_at(cluster: &Cluster, start: &Inventory) {
    let is_so = || match Inventory::of(&cluster.node)?.beyond(start) {
        found if found.is_empty() => Ok(()),
        found => Err(found.join("\n")),
    };
    try_wait_until(LIMIT, is_so).unwrap_or_else(|error| panic!("{error}\n{}", cluster.node.log()));
}

#[test]
fn pods_made_with_kubectl_talk_and_leave_nothing() {
    require_root!();
    require_command!("ping");
    require_command!("bpftool");
    let mut cluster = Cluster::new(&custom_resource_definitions());
    Kubelet::configure(&mut cluster.node);
    let socket = cluster.node.sandbox().dir().join("hubble.sock").display().to_string();
    let options =
        [("enable-hubble", "true"), ("hubble-drop-events", "true"), ("hubble-socket-path", &*socket)];
    cluster.node.config.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let kubelet = Kubelet::start(&cluster);
    // A pod that is there before the agent: the runtime has no network yet.
    run(&cluster, "server");
    wait_until("it is tried", LIMIT, || {
        kubelet.failures().iter().any(|why| why.contains("ADD of default/server"))
    });
    cluster.start();
    run(&cluster, "client");
    run(&cluster, "stranger");
    let [client, stranger, server] = until_ready(&cluster, &kubelet, PODS);
    for (name, pod) in PODS.iter().zip([&client, &stranger, &server]) {
        assert_joined(&cluster, name, pod);
    }
    for from in [&client, &stranger] {
        until_reaches(&cluster, from, &server, true);
        until_reaches(&cluster, &server, from, true);
    }

    cluster.stage.apply(POLICY).unwrap();
    until_reaches(&cluster, &stranger, &server, false);
    let describe = || cluster.stage.kubectl(&["describe", "pod", "server"]).unwrap();
    let event = "Incoming packet dropped (policy_denied) from default/stranger (";
    wait_until("kubectl shows the drops with their pod", LIMIT, || describe().contains(event));
    assert!(pings(&client, &server) && talks(&client, &server), "the client is let in");
    until_reaches(&cluster, &stranger, &client, true);
    cluster.stage.kubectl(&["delete", "cnp", "only-clients"]).unwrap();
    until_reaches(&cluster, &stranger, &server, true);

    // A graceful deletion: kubectl waits for the kubelet.
    cluster.stage.kubectl(&["delete", "pod", "server", "--timeout=60s"]).unwrap();
    wait_until("its CiliumEndpoint is gone", LIMIT, || {
        names(&cluster, "ciliumendpoint") == ["client", "stranger"]
    });
    assert!(!server.ns.path().exists(), "its namespace was removed after the DEL");
    // One of the same name is another pod.
    run(&cluster, "server");
    let [again] = until_ready(&cluster, &kubelet, ["server"]);
    assert_ne!(again.uid, server.uid);
    assert_joined(&cluster, "server", &again);
    until_reaches(&cluster, &client, &again, true);

    // A forced deletion takes the objects at once, before the DEL.
    drop((client, stranger, server, again));
    cluster.stage.kubectl(&["delete", "pod", "--all", "--force", "--grace-period=0"]).unwrap();
    wait_until("all containers are gone", LIMIT, || kubelet.pods() == 0);
    wait_until("all CiliumEndpoints are gone", LIMIT, || names(&cluster, "ciliumendpoint").is_empty());
    let failures: Vec<String> = kubelet
        .failures()
        .into_iter()
        .filter(|why| !why.contains("not initialized") && !why.contains("No such file"))
        .collect();
    assert_eq!(failures, Vec::<String>::new());

    // Their identities stay for the operator. With these known, a second life of the same pods leaves nothing at all.
    let start = try_wait_until(LIMIT, || {
        let first = Inventory::of(&cluster.node)?;
        std::thread::sleep(Duration::from_secs(1));
        let second = Inventory::of(&cluster.node)?;
        if first == second { Ok(first) } else { Err(second.beyond(&first).join("\n")) }
    })
    .unwrap();
    let links = start.items("link").count();
    assert!(
        start.items("link").all(|link| !link.contains("lxc")),
        "{:?}",
        start.items("link").collect::<Vec<_>>()
    );
    for name in PODS {
        run(&cluster, name);
    }
    let [client, _, server] = until_ready(&cluster, &kubelet, PODS);
    until_reaches(&cluster, &client, &server, true);
    let busy = Inventory::of(&cluster.node).unwrap();
    assert_eq!(busy.items("link").count(), links + PODS.len(), "a link of each pod");
    drop((client, server));
    cluster.stage.kubectl(&["delete", "pod", "--all", "--timeout=60s"]).unwrap();
    wait_until("all containers are gone", LIMIT, || kubelet.pods() == 0);
    until_as_at(&cluster, &start);
    assert_eq!(names(&cluster, "ciliumendpoint"), Vec::<String>::new());
    let pods: Value = cluster.stage.get(&["pods", "-A"]).unwrap();
    assert_eq!(pods["items"], Value::Array(Vec::new()));
    cluster.until_well();
}

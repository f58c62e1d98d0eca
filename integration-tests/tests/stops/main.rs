//! The agent and the plugin are killed (kill -9) after their first write, their second, and so on without gaps: the
//! next start makes tables, maps, files and verdicts what they are without that stop, and no packet in between is
//! judged in a way that is neither the old nor the new one. Of starts, which have over a hundred writes, a run of `make
//! test` has every third, of first starts, which have hundreds of one kind, every eighth; which ones changes with the
//! commit.

mod driver;
mod kernel;
mod names;
mod snapshot;
mod stage;
mod verdicts;

use bpf::Map;
use datapath_abi::{EndpointInfo, EndpointKey, PolicyEntry, PolicyKey};
use driver::{PluginScenario, Scenario};
use integration_tests::{Pod, ServiceFixture, pod_manifest, state_file};
use snapshot::Snapshot;
use stage::Stage;
use test_kit::require_root;
use verdicts::{Actor, Actors};

const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const OTHER_SERVICE: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
const NEW_SERVICE: [&str; 2] = ["10.96.0.12", "fd00:10:96::12"];

/// Only clients and the world's host may reach the server, and clients may reach nothing else.
const POLICY: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: server, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
    - fromEndpoints: [{matchLabels: {app: client}}]
    - fromCIDR: [192.0.2.2/32]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: client, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
    - toEndpoints: [{matchLabels: {app: server}}]
"#;

/// One more rule, for a pod that had none and of prefixes that no rule has named.
const OTHERS_POLICY: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: other, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: other}}
  ingress:
    - fromCIDR: [192.0.2.0/24, "2001:db8::2/128"]
"#;

/// A started node with a server, a client and another pod, a policy and two services; actors are these, the world and
/// the given guests, which are not added yet.
fn cast(guests: &[&str]) -> Stage {
    let mut stage = Stage::empty();
    stage.node.apply("policy.yaml", POLICY);
    stage.start();
    let mut actors = vec![Actor::new("world", stage.node.world(), "eth0").unwrap()];
    let mut pods = Vec::new();
    for name in ["server", "client", "other"] {
        let pod = stage.node.add_pod_with("default", name, &[("app", name)]);
        actors.push(Actor::new(name, &pod.ns, "eth0").unwrap());
        pods.push(pod);
    }
    for name in guests {
        stage.node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", name, &[("app", "client")]));
        actors.push(stage.guest(name));
    }
    stage.node.wait_policies(&["server", "client"]);
    stage.node.serve(&old_services(&pods));
    stage.actors = Actors::new(actors, &[SERVICE, OTHER_SERVICE, NEW_SERVICE].concat());
    stage.pods = pods;
    stage
}

fn backends(pod: &Pod) -> [String; 2] {
    pod.addresses().map(|ip| ip.to_string())
}

fn service(name: &str, addresses: [&str; 2], pods: &[&Pod]) -> ServiceFixture {
    let ips: Vec<String> = pods.iter().flat_map(|pod| backends(pod)).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    ServiceFixture::new(name, &addresses, &ips)
}

fn old_services(pods: &[Pod]) -> [ServiceFixture; 2] {
    [service("one", SERVICE, &[&pods[0]]), service("two", OTHER_SERVICE, &[&pods[0]])]
}

/// One has another backend more, one is gone, one is new.
fn new_services(pods: &[Pod]) -> [ServiceFixture; 2] {
    [service("one", SERVICE, &[&pods[2]]), service("three", NEW_SERVICE, &[&pods[0]])]
}

fn no_op(_: &Stage) {}

// The longest by far, as each slot of the pool is a write: two tests side by side, first by name.
#[test]
fn a_first_start_and_odd_writes() {
    require_root!();
    first_start(1);
}

#[test]
fn a_first_start_and_even_writes() {
    require_root!();
    first_start(2);
}

fn first_start(first: u64) {
    Scenario {
        name: "first start",
        build: &Stage::empty,
        act: &|stage, k| {
            stage.start_armed(k);
            None
        },
        repeat: &no_op,
        undo: None,
    }
    .run_slice(first, 2, 8);
}

#[test]
fn a_start_with_endpoints_policy_and_services() {
    require_root!();
    Scenario {
        name: "start with endpoints, policy and services",
        build: &|| cast(&[]),
        act: &|stage, k| {
            stage.kill();
            stage.start_armed(k);
            None
        },
        repeat: &no_op,
        undo: Some(&no_op),
    }
    .run_slice(1, 1, 3);
}

#[test]
fn an_endpoint_is_created() {
    require_root!();
    Scenario {
        name: "endpoint created",
        build: &|| cast(&["guest"]),
        act: &|stage, k| {
            stage.agent().arm(k);
            Some(stage.call("ADD", "guest"))
        },
        repeat: &|stage| {
            stage.called("DEL", "guest").unwrap();
            stage.called("ADD", "guest").unwrap();
        },
        undo: Some(&|stage| stage.called("DEL", "guest").unwrap()),
    }
    .run();
}

#[test]
fn an_endpoint_is_deleted() {
    require_root!();
    Scenario {
        name: "endpoint deleted",
        build: &|| {
            let stage = cast(&["guest"]);
            stage.called("ADD", "guest").unwrap();
            stage
        },
        act: &|stage, k| {
            stage.agent().arm(k);
            Some(stage.call("DEL", "guest"))
        },
        repeat: &|stage| stage.called("DEL", "guest").unwrap(),
        undo: Some(&|stage| stage.called("ADD", "guest").unwrap()),
    }
    .run();
}

/// Files of the cluster folder in the place of others.
fn files_change(name: &str, file: &str, before: &str, after: &str) {
    let apply = |stage: &Stage, text: &str| match text {
        "" => stage.node.withdraw(file),
        text => drop(stage.node.apply(file, text)),
    };
    Scenario {
        name,
        build: &|| cast(&[]),
        act: &|stage, k| {
            stage.agent().arm(k);
            apply(stage, after);
            None
        },
        repeat: &no_op,
        undo: Some(&|stage| apply(stage, before)),
    }
    .run();
}

#[test]
fn a_policy_changes_in_place() {
    require_root!();
    let after = POLICY.replacen("{app: client}", "{app: other}", 1);
    files_change("policy changed in place", "policy.yaml", POLICY, &after);
}

#[test]
fn a_policy_with_new_prefixes_is_added() {
    require_root!();
    files_change("policy with new prefixes added", "others.yaml", "", OTHERS_POLICY);
}

#[test]
fn a_policy_is_removed() {
    require_root!();
    let after = POLICY.split("---").next().unwrap();
    files_change("policy removed", "policy.yaml", POLICY, after);
}

#[test]
fn a_pod_has_other_labels() {
    require_root!();
    let manifest = |app: &str| pod_manifest("default", "other", &[("app", app)]);
    files_change("labels changed", "pod-other.yaml", &manifest("other"), &manifest("client"));
}

#[test]
fn services_change() {
    require_root!();
    Scenario {
        name: "services changed",
        build: &|| cast(&[]),
        act: &|stage, k| {
            stage.agent().arm(k);
            stage.node.write_services(&state_file(&new_services(&stage.pods)));
            None
        },
        repeat: &no_op,
        undo: Some(&|stage| stage.node.write_services(&state_file(&old_services(&stage.pods)))),
    }
    .run();
}

#[test]
fn the_plugin_adds() {
    require_root!();
    PluginScenario {
        verb: "ADD",
        pod: "guest",
        build: &|| cast(&["guest"]),
        repeat: &|stage| {
            stage.called("DEL", "guest").unwrap();
            stage.called("ADD", "guest").unwrap();
        },
        undo: &|stage| stage.called("DEL", "guest").unwrap(),
    }
    .run();
}

#[test]
fn the_plugin_deletes() {
    require_root!();
    PluginScenario {
        verb: "DEL",
        pod: "guest",
        build: &|| {
            let stage = cast(&["guest"]);
            stage.called("ADD", "guest").unwrap();
            stage
        },
        repeat: &|stage| stage.called("DEL", "guest").unwrap(),
        undo: &|stage| stage.called("ADD", "guest").unwrap(),
    }
    .run();
}

/// The control: each thing that a stop might leave is seen, and so is a packet that arrives where none may.
#[test]
fn what_is_left_behind_is_seen() {
    require_root!();
    let stage = cast(&[]);
    let expected = stage.settled();
    let sections = || {
        let diff = expected.0.diff(&Snapshot::take(&stage.node).unwrap());
        diff.lines().filter(|line| !line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(sections(), Vec::<String>::new());

    let folder = stage.node.endpoint_files().join("7");
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(sections(), ["files:"]);
    std::fs::remove_dir(&folder).unwrap();

    let ids = Map::<u32, u32>::open(&stage.node.pin("ep_ids")).unwrap();
    ids.update(&7, &1).unwrap();
    assert_eq!(sections(), ["map ep_ids:"]);
    ids.delete(&7).unwrap();

    let rows = Map::<EndpointKey, EndpointInfo>::open(&stage.node.pin("cilium_lxc")).unwrap();
    let key = EndpointKey::from(stage.pods[0].ipv4);
    let row = rows.lookup(&key).unwrap().unwrap();
    rows.update(&key, &EndpointInfo { sec_id: 7, ..row }).unwrap();
    assert_eq!(sections(), ["map cilium_lxc:"]);
    rows.update(&key, &row).unwrap();

    let server = stage.node.get("/v1/endpoint/cni-attachment-id:container-server:eth0");
    let pin = format!("cilium_policy_v2_{:05}", server["id"].as_u64().unwrap());
    let policy = Map::<PolicyKey, PolicyEntry>::open(&stage.node.pin(&pin)).unwrap();
    policy.update(&PolicyKey::any(false), &PolicyEntry::allow(0)).unwrap();
    assert_eq!(sections(), ["map cilium_policy_v2 of server:"]);
    let error = stage.actors.judge(&[&expected.1]).unwrap_err();
    assert!(error.starts_with("other to server over IPv4: reaches server"), "{error}");
    policy.delete(&PolicyKey::any(false)).unwrap();
    stage.actors.judge(&[&expected.1]).unwrap();

    let pending = stage.node.pin(&format!("{pin}_pending"));
    policy.pin(&pending).unwrap();
    assert_eq!(sections(), ["pins:"]);
    std::fs::remove_file(pending).unwrap();

    stage.node.host().ip("link add lxcleft type veth peer name left").unwrap();
    let links = sections();
    assert!(links.contains(&"links:".to_owned()), "{links:?}");
}

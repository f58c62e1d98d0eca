//! The leftovers of an agent of Cilium are taken over while packets flow: maps and links stay and get our programs,
//! endpoints keep their ids, traffic denied by policy stays denied. A node that cannot be taken over is refused
//! entirely.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bpf::{Link, LinkInfo, MapType, Program, RawMap, UpdateMode};
use integration_tests::cast::{
    self, Flows, SHORT, assert_nothing, assert_perfect, eventually, flows, flows_through_service,
};
use integration_tests::{pod_manifest, state_file};
use serde_json::Value;
use test_kit::{UdpFlow, require_root};

mod cilium_node;
mod cluster;
mod service;

use cilium_node::{ON_DEVICES, Original, PINS, ROUTER, parse};

/// As Cilium has it in its policy maps.
const POLICY: &str = r#"
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: server, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
    - fromEndpoints: [{matchLabels: {app: client}}]
"#;

/// Flows that are allowed, and were with Cilium: from the client to the server, and through the service in front of it.
fn old_flows(original: &Original) -> Flows {
    let (from, to) = (&original.client.ns, &original.server.ns);
    let (mut udp, mut tcp) = flows(from, to, &original.server.ips);
    let (udp_behind, tcp_behind) = service::flows(&original.node, &original.client, &original.server);
    udp.extend(udp_behind);
    tcp.extend(tcp_behind);
    (udp, tcp)
}

fn denied(original: &Original) -> Vec<UdpFlow> {
    let flow = |ip| UdpFlow::start(&original.stranger.ns, &original.server.ns, ip).unwrap();
    original.server.ips.map(flow).into()
}

fn links(original: &Original) -> BTreeMap<String, LinkInfo> {
    let pods = original.pods().map(|pod| original.link(pod));
    let devices = ON_DEVICES.map(|(device, program, _)| original.device_link(device, program));
    let info = |pin: &std::path::PathBuf| Link::open(pin).unwrap().info().unwrap();
    pods.iter().chain(&devices).map(|pin| (pin.display().to_string(), info(pin))).collect()
}

/// Kernel ids of maps with our layout: these must be reused.
fn reused(original: &Original) -> BTreeMap<String, u32> {
    let names = ["cilium_lxc", "cilium_ipcache_v2", "cilium_lb4_services_v2", "cilium_call_policy"];
    let pins = names.map(|name| original.node.pin(name));
    let policies = original.pods().map(|pod| original.policy_pin(pod));
    let id = |pin: &std::path::PathBuf| RawMap::open(pin).unwrap().info().unwrap().id;
    pins.iter().chain(&policies).map(|pin| (pin.display().to_string(), id(pin))).collect()
}

#[test]
fn a_node_of_the_original_is_taken_over() {
    require_root!();
    let mut original = Original::new();
    original.node.apply("policy.yaml", POLICY);
    for pod in original.pods() {
        original.node.apply(
            &format!("pod-{}.yaml", pod.name),
            &pod_manifest("default", pod.name, &[("app", pod.name)]),
        );
    }
    // A connection to another destination in Cilium's table.
    let connection = ([7u8; 14], [0x7fu8; 56]);
    let connections = RawMap::open(&original.node.pin("cilium_ct4_global")).unwrap();
    connections.update(&connection.0, &connection.1, UpdateMode::Any).unwrap();

    let server = original.server.ips;
    original.node.write_services(&state_file(&[cast::service(server)]));
    let (flows, never) = (old_flows(&original), denied(&original));
    let numbers = service::numbers(&original.node);
    sleep(Duration::from_millis(200));
    let (old_links, old_maps) = (links(&original), reused(&original));
    original.node.start();
    eventually(|| links(&original).iter().all(|(pin, link)| old_links[pin].program != link.program));
    sleep(Duration::from_millis(300));
    assert_perfect(flows, "taken over", &original.node);
    assert_nothing(never, "taken over", &original.node);

    for (pin, link) in links(&original) {
        assert_eq!(link.id, old_links[&pin].id, "{pin}: the link stays, at its place");
        let name = Program::open_id(link.program).unwrap().info().unwrap().name;
        assert!(pin.rsplit('/').next().unwrap().starts_with(&name), "{pin}: {name}");
    }
    assert_eq!(reused(&original), old_maps, "these maps stay");
    assert_eq!(service::numbers(&original.node), numbers, "services and backends keep their numbers");
    let connections = RawMap::open(&original.node.pin("cilium_ct4_global")).unwrap();
    let mut value = [0; 56];
    assert!(
        connections.lookup(&connection.0, &mut value).unwrap() && value == connection.1,
        "connections stay"
    );

    // The maps still have the form that Cilium's tools read.
    for (name, layout) in PINS.lines().map(parse) {
        let found = RawMap::open(&original.node.pin(name)).unwrap().layout();
        let form = |layout: bpf::Layout| (layout.map_type, layout.key_size, layout.value_size);
        assert_eq!(form(found), form(layout), "{name}");
        if layout.map_type != MapType::LruHash {
            // Cilium always uses these flags for this map, independent of its options.
            let flags = if name == "cilium_devices" { bpf::MapFlags(1) } else { layout.flags };
            assert_eq!(found.flags, flags, "{name}");
        }
    }
    for pod in original.pods() {
        let endpoint = &original.node.get(&format!("/v1/endpoint/{}", pod.id))["status"];
        assert_eq!(endpoint["identity"]["id"], pod.identity, "{}: {}", pod.name, endpoint["identity"]);
        let addressing = &endpoint["networking"]["addressing"][0];
        assert_eq!(addressing["ipv4"], pod.ips[0].to_string());
        assert_eq!(addressing["ipv6"], pod.ips[1].to_string());
        let path = original.node.endpoint_files().join(pod.id.to_string()).join("ep_config.json");
        let record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!((&record["ID"], &record["IfName"]), (&pod.id.into(), &pod.interface.into()));
        assert_eq!(record["SecLabel"]["id"], pod.identity);
    }
    let addresses = original.node.host().ip("-o addr show dev cilium_host").unwrap();
    assert!(ROUTER.iter().all(|ip| addresses.contains(&format!("{ip}/"))), "{addresses}");
    // Cilium's program arrays are no longer needed; the agent's has two pins.
    let calls = || {
        let names = fs::read_dir(original.node.pin("")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("cilium_calls_")).count()
    };
    eventually(|| calls() == 2);

    // New flows, a start more, and the control: without the policy the stranger gets through.
    original.node.serve(&[cast::service(server)]);
    let flows = flows_through_service(&original.client.ns, &original.server.ns, &server, SHORT);
    let never = denied(&original);
    sleep(Duration::from_millis(100));
    original.node.kill();
    original.node.start();
    sleep(Duration::from_millis(200));
    assert_perfect(flows, "restarted", &original.node);
    assert_nothing(never, "restarted", &original.node);
    original.node.withdraw("policy.yaml");
    original.node.wait_policies(&[] as &[&str]);
    let flows = denied(&original);
    sleep(Duration::from_millis(200));
    assert!(flows.into_iter().all(|flow| flow.stop().received > 0));
}

#[test]
fn a_node_of_a_cluster_is_taken_over_and_goes_back_with_its_links_maps_records_and_objects() {
    require_root!();
    let mut original = Original::new();
    let cluster = cluster::joined(&mut original);
    let relied_on = cluster::relied_on(&cluster, &original);
    original.node.write_services(&state_file(&[cast::service(original.server.ips)]));
    let (flows, never) = (old_flows(&original), denied(&original));
    let (old_links, old_maps) = (links(&original), reused(&original));
    cluster.spawn(&mut original.node);
    original.node.wait_ready();
    eventually(|| links(&original).iter().all(|(pin, link)| old_links[pin].program != link.program));
    let ours = links(&original);
    sleep(Duration::from_millis(200));
    assert_eq!(cluster::relied_on(&cluster, &original), relied_on, "taken over: {}", original.node.log());
    eventually(|| cluster::has_written(&cluster));
    original.node.stop();
    let programs = original.come_back();
    assert!(ours.values().all(|link| !programs.contains(&link.program)), "control: {programs:?}");
    sleep(Duration::from_millis(300));
    assert_perfect(flows, "back again", &original.node);
    assert_nothing(never, "back again", &original.node);

    let ids =
        |links: &BTreeMap<String, LinkInfo>| -> Vec<u32> { links.values().map(|link| link.id).collect() };
    assert_eq!(ids(&links(&original)), ids(&old_links), "the links are those of before");
    assert_eq!(reused(&original), old_maps);
    for (name, layout) in PINS.lines().map(parse) {
        let found = RawMap::open(&original.node.pin(name)).unwrap().layout();
        assert_eq!(
            (found.map_type, found.key_size, found.value_size),
            (layout.map_type, layout.key_size, layout.value_size),
            "{name}"
        );
    }
    for pod in original.pods() {
        let path = original.node.endpoint_files().join(pod.id.to_string()).join("ep_config.json");
        let record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!((&record["ID"], &record["IfName"]), (&pod.id.into(), &pod.interface.into()));
        assert_eq!(record["SecLabel"]["id"], pod.identity);
    }
    assert!(!original.node.sandbox().run_dir().join("cilium.pid").exists(), "Cilium's agent may start");
    assert_eq!(cluster::relied_on(&cluster, &original), relied_on, "back again: {}", original.node.log());
    assert_eq!(cluster::take_replacements(&cluster), [""; 0]);
}

#[test]
fn what_cannot_be_taken_over_is_listed_and_goes_on() {
    require_root!();
    let original = Original::new();
    let flows = old_flows(&original);
    sleep(Duration::from_millis(100));
    for (name, size) in [("cilium_lxc", "val=48"), ("cilium_ct4_global", "key=14")] {
        let line = PINS.lines().find(|line| line.starts_with(&format!("{name}\t"))).unwrap();
        let line = line.replace(size, &format!("{}=16", &size[..3]));
        let (_, layout) = parse(&line);
        fs::remove_file(original.node.pin(name)).unwrap();
        let spec = bpf::MapSpec { name: name.to_owned().into(), layout, inner: None };
        RawMap::create(&spec).unwrap().pin(&original.node.pin(name)).unwrap();
    }
    let before = (links(&original), reused(&original));
    let reported = original.node.refused_start();
    for part in [
        "cilium_lxc is hash key 20 value 16",
        "cilium_ct4_global is lru_hash key 16",
        "nothing was changed",
        "agent cleanup --dry-run",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!((links(&original), reused(&original)), before, "nothing was changed");
    assert_perfect(flows, "refused", &original.node);

    // The command that it names removes everything, and the next start begins without state.
    let output =
        original.node.agent_command().args(["cleanup", "--force"]).stdout(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut left = original.node.agent_command();
    let left = left.args(["cleanup", "--dry-run"]).stdout(Stdio::piped()).output().unwrap();
    assert!(left.status.success() && left.stdout.is_empty(), "{left:?}");
    let names: Vec<_> = fs::read_dir(original.node.sandbox().bpf_root()).unwrap().flatten().collect();
    assert!(names.iter().all(|entry| !entry.path().is_dir()), "{names:?}");
    assert!(!original.node.host().ip("-o link show").unwrap().contains("cilium_"));
    let mut node = original.node;
    node.start();
    node.stop();
}

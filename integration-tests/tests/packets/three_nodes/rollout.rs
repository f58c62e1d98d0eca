//! A label of a node selects a CiliumNodeConfig and another build: rolled out and back under traffic of other nodes.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::cast::{assert_nothing, identity};
use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{binary, other_build};
use k8s_types::{Key, Kind};
use serde_json::{Value, json};
use test_kit::require_root;

use super::cluster::{Cluster, MEMBERS, Routing};
use super::{WHILE, policy, refused_flows};

/// The index of the node with the label.
const CHANGED: usize = 1;
const NAMESPACE: &str = "kube-system";
/// Options with the values of all nodes and of those with the label: sizes of maps of programs, of the agent, and of
/// policies, and the MTU.
const OPTIONS: [(&str, [&str; 2]); 5] = [
    ("bpf-ct-global-any-max", ["8192", "32768"]),
    ("bpf-ct-global-tcp-max", ["65536", "8192"]),
    ("bpf-lb-map-max", ["1024", "4096"]),
    ("bpf-policy-map-max", ["4096", "16384"]),
    ("mtu", ["1500", "1400"]),
];

/// Runs the command of the init container. Returns the folder that the agent is started with.
fn build_config(cluster: &Cluster, objects: &SimulatedCluster) -> BTreeMap<String, String> {
    let node = &cluster.nodes[CHANGED];
    let folder = node.sandbox().dir().join("config-map");
    let output = node
        .host()
        .command(binary("agent").to_str().unwrap())
        .arg("build-config")
        .arg(format!("--dest={}", folder.display()))
        .arg(format!("--k8s-api-server-urls={}", objects.url()))
        .env("CILIUM_K8S_NAMESPACE", NAMESPACE)
        .env("K8S_NODE_NAME", MEMBERS[CHANGED].name)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let keys = files.filter(|entry| !entry.file_name().to_string_lossy().starts_with(".."));
    keys.map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}

/// The ConfigMap of the cluster, a CiliumNodeConfig for nodes with the label, and the node, which does not have it yet.
fn objects(config: &BTreeMap<String, String>) -> [Value; 3] {
    let next: BTreeMap<&str, &str> = OPTIONS.into_iter().map(|(key, [_, next])| (key, next)).collect();
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": NAMESPACE, "name": "cilium-config"}, "data": config,
        }),
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig",
            "metadata": {"namespace": NAMESPACE, "name": "next"},
            "spec": {"nodeSelector": {"matchLabels": {"version": "next"}}, "defaults": next},
        }),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": MEMBERS[CHANGED].name, "labels": {}}}),
    ]
}

/// The numbers that other nodes know the changed one by, which its values must not change.
fn identifiers(cluster: &Cluster) -> Vec<String> {
    let pods = &cluster.pods[CHANGED];
    let identities = [&pods.client, &pods.server].map(|pod| identity(&cluster.nodes[CHANGED], pod));
    let mut ids: Vec<String> = identities.iter().map(ToString::to_string).collect();
    ids.extend(cluster.nodes.iter().map(|node| node.get("/v1/node/ids").to_string()));
    ids
}

fn a_label_chooses_the_values_of_a_node(routing: Routing) {
    let mut cluster = Cluster::new(routing);
    cluster.apply("policy.json", &[policy("clients", "client")]);
    for node in &cluster.nodes {
        node.wait_policies(&["clients"]);
    }
    let objects_of_all = {
        let node = &mut cluster.nodes[CHANGED];
        node.config.insert("bpf-map-dynamic-size-ratio".to_owned(), "0".to_owned());
        node.config.extend(OPTIONS.map(|(key, [all, _])| (key.to_owned(), all.to_owned())));
        let objects_of_all = SimulatedCluster::new(node.host(), Size::nodes(0), &[]);
        objects(&node.config).iter().for_each(|object| objects_of_all.add(object));
        objects_of_all
    };
    let set_label = |value: Option<&str>| {
        let key = Key { namespace: "".into(), name: MEMBERS[CHANGED].name.into() };
        let labels = value.map_or(json!({}), |value| json!({"version": value}));
        objects_of_all.edit(Kind::Node, &key, |node| node["metadata"]["labels"] = labels);
    };
    let builds =
        [cluster.nodes[CHANGED].program.clone(), other_build(cluster.nodes[CHANGED].sandbox().dir())];
    let identifiers_before = identifiers(&cluster);

    // The values of all nodes, those of the label by a regular stop, back by a kill, and once more the other way round.
    for (round, is_next) in [false, true, false, true, false].into_iter().enumerate() {
        set_label(is_next.then_some("next"));
        let config = build_config(&cluster, &objects_of_all);
        for (key, values) in OPTIONS {
            assert_eq!(config[key], values[usize::from(is_next)], "{key}");
        }
        assert_eq!(config["cluster-folder"], cluster.nodes[CHANGED].config["cluster-folder"]);

        let allowed = [cluster.flows(0, CHANGED), cluster.flows(CHANGED, 0), cluster.flows(CHANGED, 2)];
        let (own, other) = (&cluster.pods[CHANGED], cluster.flows(0, 2));
        let within = integration_tests::cast::flows(&own.client.ns, &own.server.ns, &own.server.addresses());
        let refused = [refused_flows(&cluster, 0, CHANGED), refused_flows(&cluster, CHANGED, 0)];
        std::thread::sleep(WHILE);
        let node = &mut cluster.nodes[CHANGED];
        match round % 4 {
            0 | 1 => node.stop(),
            _ => drop(node.kill()),
        }
        node.config = config;
        node.program.clone_from(&builds[usize::from(is_next)]);
        cluster.start(CHANGED);

        // The options that the label selects are in force.
        let expected = if is_next { 1400 } else { 1500 };
        cluster.until("the MTU", || {
            let mtu = cluster.nodes[CHANGED].get("/v1/config")["status"]["deviceMTU"].clone();
            if mtu == expected { Ok(()) } else { Err(mtu.to_string()) }
        });
        let map = cluster.nodes[CHANGED].pin("cilium_ct4_global");
        let size = bpf::RawMap::open(&map).unwrap().info().unwrap().layout.max_entries;
        assert_eq!(size.to_string(), OPTIONS[1].1[usize::from(is_next)]);
        assert_eq!(identifiers(&cluster), identifiers_before, "{round}");

        std::thread::sleep(WHILE);
        let situation = format!("round {round}, values of the label: {is_next}");
        for flows in allowed.into_iter().chain([other, within]) {
            cluster.assert_perfect(flows, &situation);
        }
        for flows in refused {
            assert_nothing(flows, &situation, &cluster.nodes[CHANGED]);
        }
    }
}

#[test]
fn a_label_rolls_a_node_with_a_tunnel_out_and_back_without_a_loss() {
    require_root!();
    a_label_chooses_the_values_of_a_node(Routing::Tunnel);
}

#[test]
fn a_label_rolls_a_node_with_direct_routes_out_and_back_without_a_loss() {
    require_root!();
    a_label_chooses_the_values_of_a_node(Routing::Native);
}

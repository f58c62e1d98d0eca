//! A node with several pools, its ranges given by the operator, at a real API server.

use std::fs::File;
use std::time::Duration;

use cluster_stage::User;
use integration_tests::{Cluster, binary};
use k8s_types::Kind;
use k8s_types::schema::custom_resource_definition;
use serde_json::{Value, json};
use test_kit::{Process, require_root, try_wait_until, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// The label of a definition with the version of its schema.
const VERSION: &str = "io.cilium.k8s.crd.schema.version";

/// A field of CiliumNodes that only a later version has.
const NEXT_FIELD: &str = "ofTheNextVersion";

/// Returns the definition of CiliumNodes as an operator of a later version registers it.
fn next_ciliumnode() -> Value {
    let mut definition = custom_resource_definition(Kind::CiliumNode);
    definition["metadata"]["labels"][VERSION] = "1.34.0".into();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"][NEXT_FIELD] = json!({"type": "string"});
    definition
}

/// Returns the definition of pools as an operator of an earlier version has registered it.
fn previous_pool() -> Value {
    let mut definition = custom_resource_definition(Kind::CiliumPodIPPool);
    definition["metadata"]["labels"][VERSION] = "1.33.0".into();
    definition
}

struct Network {
    cluster: Cluster,
    operator: Option<Process>,
}

impl Network {
    /// Returns the operator's error about the node.
    fn error(&self) -> String {
        self.object()["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default().to_owned()
    }

    /// A cluster whose operator creates the pool `default`, of two ranges of 14 addresses. Definitions are of other versions.
    fn new() -> Network {
        let mut cluster = Cluster::new(&[next_ciliumnode(), previous_pool()]);
        for option in ["ipv4-range", "ipv6-range"] {
            cluster.node.config.remove(option);
        }
        let options =
            [("ipam", "multi-pool"), ("enable-ipv6", "false"), ("ipam-cilium-node-update-rate", "1s")];
        for (key, value) in options {
            cluster.node.config.insert(key.to_owned(), value.to_owned());
        }
        let mut network = Network { cluster, operator: None };
        network.start_operator();
        let defined = || network.cluster.stage.get(&["ciliumpodippool", "default"]).is_ok();
        wait_until("the operator has created the pool", LIMIT, defined);
        network
    }

    fn start_operator(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = self.cluster.node.host().command(binary("operator"));
        let kubeconfig = self.cluster.gate.kubeconfig(User::Operator).unwrap();
        command
            .arg(format!("--k8s-kubeconfig-path={}", kubeconfig.display()))
            .args([
                "--k8s-namespace=kube-system",
                "--shell-sock-path=",
                "--operator-api-serve-addr=127.0.0.1:9234",
            ])
            .args(["--ipam=multi-pool", "--enable-ipv6=false"])
            .arg("--auto-create-cilium-pod-ip-pools=default=ipv4-cidrs:10.50.0.0/27;ipv4-mask-size:28")
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.operator = Some(Process::start(&mut command).unwrap());
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.cluster.node.sandbox().dir().join("operator.log")
    }

    fn object(&self) -> Value {
        self.cluster.stage.get(&["ciliumnode", Cluster::NODE]).unwrap_or_default()
    }

    fn allocated(&self, pool: &str) -> Vec<String> {
        let object = self.object();
        let pools = object["spec"]["ipam"]["pools"]["allocated"].as_array().cloned().unwrap_or_default();
        let cidrs =
            pools.iter().filter(|held| held["pool"] == pool).map(|held| held["cidrs"].as_array().cloned());
        cidrs.flatten().flatten().map(|cidr| cidr.as_str().unwrap().to_owned()).collect()
    }

    /// An address by the API, as the CNI plugin asks for it; else the error.
    fn allocate(&self, owner: &str) -> Result<Value, String> {
        let path = format!("/v1/ipam?family=ipv4&owner={owner}");
        let answer = self.cluster.node.request("POST", &path, None).map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        if body["address"]["ipv4"].is_string() { Ok(body) } else { Err(body.to_string()) }
    }

    fn until_allocated(&self, owner: &str) -> Value {
        try_wait_until(LIMIT, || self.allocate(owner)).unwrap_or_else(|error| {
            let operator = std::fs::read_to_string(self.log_path()).unwrap_or_default();
            panic!("{owner}: {error}\n{}\n{}\n{operator}", self.object(), self.cluster.node.log())
        })
    }
}

#[test]
fn pods_get_addresses_of_their_pools_which_are_requested_exhausted_and_given_back() {
    require_root!();
    let mut network = Network::new();
    network.cluster.start();
    assert!(
        network.allocated("default").iter().all(|cidr| cidr.starts_with("10.50.0.")),
        "{}",
        network.object()
    );

    // The field of another version stays through all writes of agent and operator.
    let patch = json!({"spec": {NEXT_FIELD: "kept"}}).to_string();
    network
        .cluster
        .stage
        .kubectl(&["patch", "ciliumnode", Cluster::NODE, "--type=merge", "-p", &patch])
        .unwrap();

    // A pod by its annotation: its pool is requested for it, of a CiliumPodIPPool that comes later.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "annotations": {"ipam.cilium.io/ip-pool": "blue"}},
        "spec": {"nodeName": Cluster::NODE, "containers": [{"name": "c", "image": "none"}]},
    });
    network.cluster.stage.apply(&pod.to_string()).unwrap();
    let missing = "unable to allocate from pool \\\"blue\\\" (family ipv4): pool not (yet) available";
    wait_until("the pool is missed", LIMIT, || {
        network.allocate("default/web").is_err_and(|e| e.contains(missing))
    });
    wait_until("the operator names it", LIMIT, || {
        network.error().ends_with("cannot allocate from non-existing pool: blue")
    });
    let blue = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "blue", "annotations": {"ipam.cilium.io/skip-masquerade": "true"}},
        "spec": {"ipv4": {"cidrs": ["10.60.0.0/24"], "maskSize": 29}},
    });
    network.cluster.stage.apply(&blue.to_string()).unwrap();
    let web = network.until_allocated("default/web");
    assert!(web["address"]["ipv4"].as_str().unwrap().starts_with("10.60.0."), "{web}");
    assert_eq!(
        (&web["address"]["ipv4-pool-name"], &web["ipv4"]["skip-masquerade"]),
        (&json!("blue"), &json!(true))
    );
    wait_until("the error is gone", LIMIT, || network.error().is_empty());
    let routes = network.cluster.node.host().ip("route show dev cilium_host").unwrap();
    assert!(routes.contains(&network.allocated("blue")[0]), "{routes}");

    // The default pool to its last address: 28, of which the router has one.
    for at in 0..27 {
        network.until_allocated(&format!("owner-{at}"));
    }
    let full = network.allocate("one-more").unwrap_err();
    assert!(full.contains("all CIDR ranges are exhausted"), "{full}");
    wait_until("the operator names it", LIMIT, || network.error().contains("pool default is exhausted"));
    wait_until("health does as well", LIMIT, || {
        network.cluster.unwell().iter().any(|row| row.contains("pool default is exhausted"))
    });

    // Both start again in the middle, and go on.
    let before = network.allocated("default");
    network.operator.take().unwrap().terminate().unwrap();
    network.cluster.node.stop();
    network.cluster.start();
    network.start_operator();
    assert_eq!(network.allocated("default"), before);

    // Addresses without an endpoint end with the agent: ranges are given back, but what is pre-allocated.
    network.cluster.stage.kubectl(&["delete", "pod", "web", "--wait=false"]).unwrap();
    wait_until("the range of the pool is given back", LIMIT, || network.allocated("blue").is_empty());
    wait_until("one range is enough", LIMIT, || network.allocated("default").len() <= 2);
    wait_until("nothing is missed", LIMIT, || network.error().is_empty());
    network.cluster.until_well();

    let version = |kind: Kind| {
        let definition =
            network.cluster.stage.get(&["crd", &format!("{}.cilium.io", kind.plural())]).unwrap();
        definition["metadata"]["labels"][VERSION].as_str().unwrap().to_owned()
    };
    assert_eq!(network.object()["spec"][NEXT_FIELD], "kept", "{}", network.object());
    assert_eq!(version(Kind::CiliumNode), "1.34.0", "a later definition is left alone");
    assert_eq!(version(Kind::CiliumPodIPPool), version(Kind::CiliumIdentity), "an earlier one is replaced");
}

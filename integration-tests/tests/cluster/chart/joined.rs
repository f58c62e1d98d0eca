//! A cluster in which the chart is applied: agent and operator run with what it gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Node, Right, asked, binary, granted};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{Process, require_root, try_wait_until, wait_until};

use super::{config, helm, objects, render, require_helm, root};

const LIMIT: Duration = Duration::from_secs(120);

/// In the network namespace of the node.
const OPERATOR_METRICS: u16 = 9963;

/// Requests of the operator that need a restarted agent or objects without an owner, which are not part of this test.
const OF_OTHER_TESTS: [&str; 8] = [
    "delete ciliumendpoints",
    "delete ciliumendpointslices",
    "delete ciliumidentities",
    "delete ciliumnodes",
    "delete pods",
    "patch nodes",
    "patch nodes/status",
    "update ciliumidentities",
];

/// Writes a ConfigMap's data as it is mounted.
fn mount(folder: &Path, data: &BTreeMap<String, String>) {
    fs::create_dir_all(folder).unwrap();
    for (key, value) in data {
        fs::write(folder.join(key), value).unwrap();
    }
}

fn in_pod(command: &mut Command) -> &mut Command {
    command
        .env("K8S_NODE_NAME", Cluster::NODE)
        .env("CILIUM_K8S_NAMESPACE", "kube-system")
        .stdin(Stdio::null())
}

/// Starts the operator as its Deployment does.
fn start_operator(cluster: &Cluster, data: &BTreeMap<String, String>) -> Process {
    let dir = cluster.node.sandbox().dir();
    mount(&dir.join("operator"), data);
    let log = File::create(dir.join("operator.log")).unwrap();
    let mut command = cluster.node.host().command(binary("operator"));
    in_pod(&mut command)
        .arg(format!("--config-dir={}", dir.join("operator").display()))
        .arg(format!("--k8s-kubeconfig-path={}", cluster.gate.kubeconfig(User::Operator).unwrap().display()))
        .arg("--shell-sock-path=") // a container has a folder of its own for it
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Process::start(&mut command).unwrap()
}

/// Runs the step `config` of the agent's pod; returns the folder's keys.
fn build_config(cluster: &Cluster) -> BTreeMap<String, String> {
    let folder = cluster.node.sandbox().dir().join("config-map");
    let mut command = cluster.node.host().command(binary("agent"));
    let output = in_pod(&mut command)
        .args(["build-config", "--timeout=60s"])
        .arg(format!("--dest={}", folder.display()))
        .arg(format!("--k8s-kubeconfig-path={}", cluster.gate.kubeconfig(User::Agent).unwrap().display()))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let keys = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with(".."));
    keys.map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect()
}

/// A definition of a version that the operator updates.
fn old_definition() -> Value {
    let is_group = |definition: &Value| definition["metadata"]["name"] == "ciliumcidrgroups.cilium.io";
    let mut definition = custom_resource_definitions().into_iter().find(is_group).unwrap();
    definition["metadata"]["labels"]["io.cilium.k8s.crd.schema.version"] = json!("1.0.0");
    definition
}

/// Has a node claim a range outside of the pool, until the operator reports it in the node's status.
fn claim_foreign_range(cluster: &Cluster) {
    let node = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "other"},
        "spec": {"addresses": [{"type": "InternalIP", "ip": "192.0.2.77"}], "ipam": {"podCIDRs": ["192.168.0.0/24"]}},
    });
    cluster.stage.apply(&node.to_string()).unwrap();
    let error = || {
        let node = cluster.stage.get(&["ciliumnode", "other"]).unwrap_or_default();
        node["status"]["ipam"]["operator-status"]["error"].as_str().is_some_and(|error| !error.is_empty())
    };
    wait_until("the operator reports the range", LIMIT, error);
}

/// Has the operator create a slice and then update it.
fn slice_endpoints(cluster: &Cluster) {
    for (id, count) in [(300, 1), (301, 2)] {
        let endpoint = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
            "metadata": {"name": format!("web-{id}"), "namespace": "default"},
            "status": {"id": 7, "identity": {"id": id, "labels": ["k8s:app=web"]}, "state": "ready",
                "networking": {"addressing": [{"ipv4": "10.9.0.1"}], "node": "192.0.2.77"}},
        });
        cluster.stage.apply(&endpoint.to_string()).unwrap();
        let is_sliced = || {
            let list = cluster.stage.get(&["ciliumendpointslices"]).unwrap_or_default();
            list["items"][0]["endpoints"].as_array().is_some_and(|endpoints| endpoints.len() == count)
        };
        wait_until("the endpoint is in a slice", LIMIT, is_sliced);
    }
}

/// Has a load balancer get an address of a pool.
fn serve_load_balancer(cluster: &Cluster) {
    let pool = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool", "metadata": {"name": "blue"},
        "spec": {"blocks": [{"cidr": "192.0.2.128/30"}]},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pool, service]});
    cluster.stage.apply(&list.to_string()).unwrap();
    let is_served = || {
        let service = cluster.stage.get(&["-n=default", "service", "web"]).unwrap_or_default();
        service["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()
    };
    wait_until("the load balancer has an address", LIMIT, is_served);
    let is_counted = || {
        let pool = cluster.stage.get(&["ciliumloadbalancerippool", "blue"]).unwrap_or_default();
        pool["status"]["conditions"].is_array()
    };
    wait_until("the addresses of the pool are counted", LIMIT, is_counted);
}

/// Has policies of both kinds get their statuses.
fn validate_policies(cluster: &Cluster) {
    for kind in ["CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"] {
        let policy = json!({
            "apiVersion": "cilium.io/v2", "kind": kind, "metadata": {"name": "none"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "none"}}, "ingress": [{}]},
        });
        cluster.stage.apply(&policy.to_string()).unwrap();
        let is_valid = || {
            let policy = cluster.stage.get(&[&kind.to_lowercase(), "none"]).unwrap_or_default();
            policy["status"]["conditions"][0]["status"] == "True"
        };
        wait_until("the policy is valid", LIMIT, is_valid);
    }
}

/// Runs a command of helm for a release `second` of the chart, which asks the server and changes nothing.
fn try_second_release(cluster: &Cluster, verb: &str, words: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = cluster.node.host().command(helm().unwrap());
    command
        .args([verb, "--dry-run=server", "second", "helm/apiary", "--namespace", "second"])
        .args(words)
        .current_dir(root())
        .env("KUBECONFIG", cluster.gate.kubeconfig(User::Admin).unwrap())
        .envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, home.path())))
        .output()
        .unwrap()
}

/// `k8sServiceHost: auto` is the address that kubeadm has written for nodes that join.
fn find_api_server(cluster: &Cluster) {
    let words = ["--set=k8sServiceHost=auto", "--show-only=templates/operator-deployment.yaml"];
    let render = || try_second_release(cluster, "template", &words);
    let refused = String::from_utf8(render().stderr).unwrap();
    assert!(refused.contains("k8sServiceHost: auto needs a ConfigMap cluster-info"), "{refused}");
    for (server, host, port) in
        [("192.0.2.7:6443", "192.0.2.7", "6443"), ("[fd00::7]:8443/", "fd00::7", "8443")]
    {
        let kubeconfig =
            json!({"clusters": [{"cluster": {"server": format!("https://{server}")}}]}).to_string();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": kubeconfig},
            "metadata": {"name": "cluster-info", "namespace": "kube-public"}});
        cluster.stage.apply(&map.to_string()).unwrap();
        let output = render();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let deployment = objects(&text)["Deployment/cilium-operator"].clone();
        let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        let value = |name: &str| {
            let found = env.as_array().unwrap().iter().find(|variable| variable["name"] == name);
            found.map(|variable| variable["value"].as_str().unwrap().to_owned())
        };
        assert_eq!(value("KUBERNETES_SERVICE_HOST").as_deref(), Some(host), "{server}");
        assert_eq!(value("KUBERNETES_SERVICE_PORT").as_deref(), Some(port), "{server}");
    }
}

/// A second release is refused by the name of the first one.
fn install_second_release(cluster: &Cluster) {
    let install = || {
        let output = try_second_release(cluster, "install", &[]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let refusal = "this cluster has the release first in the namespace kube-system already";
    assert!(!install().contains(refusal), "no release has installed these objects");
    let of_release = ["meta.helm.sh/release-name=first", "meta.helm.sh/release-namespace=kube-system"];
    cluster.stage.kubectl(&[&["annotate", "clusterrole", "cilium"][..], &of_release].concat()).unwrap();
    let error = install();
    assert!(error.contains(refusal), "{error}");
}

/// The queries of the operator's dashboard find their metrics, with the labels by which they group.
fn read_dashboard(cluster: &Cluster) {
    let dashboard = fs::read_to_string(root().join("helm/apiary/dashboards/operator.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    // The first endpoint is collected after 5 minutes.
    let queries: Vec<&str> = queries
        .map(|target| target["expr"].as_str().unwrap())
        .filter(|query| !query.contains("cilium_operator_endpoint_gc_objects"))
        .collect();
    assert!(queries.len() >= 9, "{queries:?}");
    let missing = |text: &str| -> Vec<String> {
        let is_shown = |query: &&&str| {
            let mut words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let name = words.find(|word| word.starts_with("cilium_operator_")).unwrap();
            let labels = query.split("by (").nth(1).map(|rest| rest.split(')').next().unwrap().split(", "));
            let mut samples =
                text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name)).peekable();
            samples.peek().is_some()
                && samples.all(|line| {
                    labels.clone().into_iter().flatten().all(|label| line.contains(&format!("{label}=\"")))
                })
        };
        queries.iter().filter(|query| !is_shown(query)).map(|query| (*query).to_owned()).collect()
    };
    let shown = || {
        let text = metrics(cluster).unwrap_or_default();
        let missing = missing(&text);
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} in {text}")) }
    };
    try_wait_until(LIMIT, shown).unwrap_or_else(|error| panic!("{error}"));
}

fn metrics(cluster: &Cluster) -> io::Result<String> {
    let mut stream = cluster.node.host().run(|| TcpStream::connect(("127.0.0.1", OPERATOR_METRICS)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Has the copy of a secret created, updated and deleted.
fn copy_secret(cluster: &Cluster) {
    let header = json!({"name": "x-token", "mismatch": "REPLACE", "secret": {"name": "token"}});
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "token", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"app": "none"}}, "egress": [{"toPorts": [{
            "ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"headerMatches": [header]}]},
        }]}]},
    });
    cluster.stage.apply(&policy.to_string()).unwrap();
    for value in ["MQ==", "Mg=="] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "default"},
            "data": {"value": value},
        });
        cluster.stage.apply(&secret.to_string()).unwrap();
        let is_copied = || {
            let copy =
                cluster.stage.get(&["-n=cilium-secrets", "secret", "default-token"]).unwrap_or_default();
            copy["data"]["value"] == value && copy["type"] == "Opaque"
        };
        wait_until("the secret has a copy", LIMIT, is_copied);
    }
    let delete = ["-n=default", "delete", "ciliumnetworkpolicy", "token"];
    cluster.stage.kubectl(&delete).unwrap();
    let is_gone = || {
        let secrets = cluster.stage.get(&["-n=cilium-secrets", "secrets"]).unwrap_or_default();
        secrets["items"].as_array().is_some_and(Vec::is_empty)
    };
    wait_until("the copy is deleted", LIMIT, is_gone);
}

/// Has both programs join; returns the requests of the operator and what its roles grant.
fn join(values: &Value) -> [BTreeSet<Right>; 2] {
    let options = StageOptions { rbac: true, audit: true, ..StageOptions::default() };
    let mut cluster = Cluster::with(&options, &[]);
    let rendered = render(values).unwrap();
    cluster.stage.apply(&rendered).unwrap();
    cluster.stage.define(&[old_definition()]).unwrap();
    let status =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": Node::IPV4}]}}).to_string();
    cluster
        .stage
        .kubectl(&["patch", "node", Cluster::NODE, "--subresource=status", "--type=merge", "-p", &status])
        .unwrap();

    let operator = start_operator(&cluster, &config(&rendered));
    let kinds = ["get", "ciliumnodes,ciliumendpoints,ciliumidentities,ciliumnodeconfigs", "-A"];
    let registered = || cluster.stage.kubectl(&kinds).map(drop).map_err(|error| error.to_string());
    if let Err(error) = try_wait_until(LIMIT, registered) {
        let log = fs::read_to_string(cluster.node.sandbox().dir().join("operator.log")).unwrap();
        panic!("kinds are not registered: {error}\n{log}");
    }

    let mut built = build_config(&cluster);
    let sources: Value = serde_json::from_str(&built["config-sources"]).unwrap();
    assert_eq!(sources[0]["name"], "cilium-config", "{sources}");
    // Folders of the sandbox instead of those of a container.
    let cni = cluster.node.sandbox().dir().join("cni/05-cilium.conflist");
    for key in ["state-dir", "socket-path", "shell-sock-path", "bpf-root", "k8s-kubeconfig-path"] {
        built.insert(key.to_owned(), cluster.node.config[key].clone());
    }
    built.insert("procfs".to_owned(), "/proc".to_owned());
    built.insert("write-cni-conf-when-ready".to_owned(), cni.to_str().unwrap().to_owned());
    cluster.node.config = built;
    let mut command = cluster.node.agent_command();
    in_pod(&mut command);
    cluster.node.spawn_command(command);
    cluster.node.wait_ready();
    wait_until("the configuration of the plugin is there", LIMIT, || cni.is_file());
    let object = || cluster.stage.get(&["ciliumnode", Cluster::NODE]).unwrap_or_default();
    let is_router = |address: &Value| address["type"] == "CiliumInternalIP";
    let has_router =
        || object()["spec"]["addresses"].as_array().is_some_and(|list| list.iter().any(is_router));
    wait_until("the node has the address of its router", LIMIT, has_router);
    let options: Vec<String> =
        cluster.unwell().into_iter().filter(|row| row.contains("no effect in this agent")).collect();
    assert_eq!(options, [""; 0]);

    if cluster.node.config["ipam"] == "cluster-pool" {
        claim_foreign_range(&cluster);
    }
    if cluster.node.config.get("enable-cilium-endpoint-slice").is_some_and(|value| value == "true") {
        slice_endpoints(&cluster);
    }
    serve_load_balancer(&cluster);
    validate_policies(&cluster);
    if cluster.node.config.get("external-envoy-proxy").is_some_and(|value| value == "true") {
        copy_secret(&cluster);
        read_dashboard(&cluster);
        find_api_server(&cluster);
        install_second_release(&cluster);
    }

    let (of_agent, refused) = asked(&cluster.stage, User::Agent);
    assert_eq!(refused, BTreeSet::new(), "the agent's roles do not allow it");
    assert_eq!(
        of_agent.difference(&granted(&cluster.stage, User::Agent)).next(),
        None,
        "another role allows it"
    );
    drop(operator);
    let (of_operator, refused) = asked(&cluster.stage, User::Operator);
    assert_eq!(refused, BTreeSet::new(), "the operator's roles do not allow it");
    let granted = granted(&cluster.stage, User::Operator);
    assert_eq!(of_operator.difference(&granted).next(), None, "another role allows it");
    [of_operator, granted]
}

#[test]
fn agent_and_operator_join_with_the_charts_options_and_its_roles_allow_no_more() {
    require_root!();
    require_helm!();
    let pools = json!({"ipam": {"mode": "multi-pool", "operator": {
        "autoCreateCiliumPodIPPools": {"default": {"ipv4": {"cidrs": ["10.50.0.0/16"], "maskSize": 27}}},
    }}});
    let (mut used, mut allowed) = (BTreeSet::new(), BTreeSet::new());
    // An Envoy of others, which this stage does not have: secrets are copied for it.
    let slices = json!({"ciliumEndpointSlice": {"enabled": true}, "extraConfig": {"external-envoy-proxy": "true"},
        "operator": {"identityGCInterval": "5s"}});
    for values in [slices, pools] {
        let [asked, granted] = join(&values);
        used.extend(asked);
        allowed.extend(granted);
    }
    let text = |right: &Right| format!("{} {}", right.verb, right.resource);
    let unused: Vec<String> = allowed.difference(&used).filter(|right| !right.follows()).map(text).collect();
    let unused: Vec<String> =
        unused.into_iter().filter(|right| !OF_OTHER_TESTS.contains(&right.as_str())).collect();
    assert_eq!(unused, [""; 0], "the roles allow what the operator does not do");
}

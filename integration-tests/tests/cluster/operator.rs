//! Operators at a real API server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster_stage::{Gate, Stage, User};
use integration_tests::binary;
use serde_json::{Value, json};
use test_kit::{Process, Sandbox, require_root, try_wait_until, wait_until};

/// How long something may take that needs no lease to end.
const LIMIT: Duration = Duration::from_secs(120);

/// A cluster in which operators are started and killed.
struct Cluster {
    stage: Stage,
    gate: Gate,
    sandbox: Sandbox,
}

/// A running operator.
struct Operator {
    process: Process,
    log: PathBuf,
}

impl Operator {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Cluster {
    fn new() -> Cluster {
        let stage = Stage::start().unwrap();
        let sandbox = Sandbox::new().unwrap();
        let gate = stage.gate().unwrap();
        Cluster { stage, gate, sandbox }
    }

    /// Starts an operator that listens on this port, with further options.
    fn start(&self, port: u16, options: &[&str]) -> Operator {
        let log = self.sandbox.dir().join(format!("operator-{port}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = self.sandbox.host().command(binary("operator"));
        command
            .arg(format!("--k8s-kubeconfig-path={}", self.gate.kubeconfig(User::Operator).unwrap().display()))
            .arg(format!("--operator-api-serve-addr=127.0.0.1:{port}"))
            .args(["--k8s-namespace=kube-system", "--shell-sock-path="])
            .args(["--cluster-pool-ipv4-cidr=10.0.0.0/16", "--enable-ipv6=false"])
            .args(options)
            .stdin(std::process::Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        Operator { process: Process::start(&mut command).unwrap(), log }
    }

    /// The holder of the lease; empty if there is none.
    fn holder(&self) -> String {
        let lease = self.stage.get(&["-n", "kube-system", "lease", "cilium-operator-resource-lock"]);
        let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        lease.as_ref().map(holder).unwrap_or_default()
    }

    fn until_holder(&self, operator: &Operator, limit: Duration, is: impl Fn(&str) -> bool) -> String {
        let found = || match self.holder() {
            holder if !holder.is_empty() && is(&holder) => Ok(holder),
            holder => Err(format!("{holder:?} holds the lease")),
        };
        try_wait_until(limit, found).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()))
    }

    /// Waits until the cells of the leader have started.
    fn until_leads(&self, operator: &Operator) {
        let leads = || operator.log().contains("Leading the operator HA deployment");
        let started = || {
            let definitions = self.stage.kubectl(&["get", "crd", "-o", "name"]);
            let count = definitions.map(|names| names.lines().count()).unwrap_or_default();
            if leads() && count >= 10 { Ok(()) } else { Err(format!("{count} definitions")) }
        };
        try_wait_until(LIMIT, started).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()));
    }
}

/// The status and the message of the condition `Valid` of a policy.
fn validity(stage: &Stage, kind: &str, name: &str) -> (String, String) {
    let policy = stage.get(&[kind, name]).unwrap();
    let condition = &policy["status"]["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    assert!(condition.is_null() || condition["type"] == "Valid", "{condition}");
    (text("status"), text("message"))
}

/// Makes a valid policy of each kind, and an invalid one that the schema accepts.
fn make_policies(stage: &Stage) {
    let policy = |kind: &str, name: &str, peers: Value| {
        let spec = json!({"endpointSelector": {}, "ingress": [peers]});
        json!({"apiVersion": "cilium.io/v2", "kind": kind, "metadata": {"name": name}, "spec": spec})
    };
    let both = json!({"fromEndpoints": [{}], "fromCIDR": ["10.0.0.0/8"]});
    let policies = [
        policy("CiliumNetworkPolicy", "right", json!({"fromEntities": ["world"]})),
        policy("CiliumNetworkPolicy", "wrong", both),
        policy("CiliumClusterwideNetworkPolicy", "all", json!({"fromEntities": ["cluster"]})),
    ];
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": policies}).to_string()).unwrap();
}

fn until_validated(stage: &Stage, operator: &Operator) {
    let valid = ("True".to_owned(), "Policy validation succeeded".to_owned());
    let validated = || {
        let [right, wrong] = ["right", "wrong"].map(|name| validity(stage, "ciliumnetworkpolicy", name));
        let all = validity(stage, "ciliumclusterwidenetworkpolicy", "all");
        let is_named = wrong.0 == "False" && wrong.1.starts_with("spec.ingress[0]");
        if right == valid && all == valid && is_named {
            Ok(())
        } else {
            Err(format!("{right:?} {wrong:?} {all:?}"))
        }
    };
    try_wait_until(LIMIT, validated).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()));
}

#[test]
fn one_operator_leads_registers_kinds_and_is_followed_when_it_dies() {
    require_root!();
    let cluster = Cluster::new();
    let mut one = cluster.start(9234, &[]);
    let first = cluster.until_holder(&one, LIMIT, |_| true);
    cluster.until_leads(&one);
    let label = "-L=io.cilium.k8s.crd.schema.version";
    let definitions = cluster.stage.kubectl(&["get", "crd", "--no-headers", label]).unwrap();
    assert!(definitions.lines().all(|line| line.ends_with("1.33.9")), "{definitions}");
    let conditions = "-o=jsonpath={.items[*].status.conditions[?(@.type==\"Established\")].status}";
    // A definition that was just created has no conditions, which kubectl refuses to filter, and is established a moment later.
    let established = || cluster.stage.kubectl(&["get", "crd", conditions]).unwrap_or_default();
    wait_until("all definitions are established", LIMIT, || established() == ["True"; 10].join(" "));

    // The second one is as healthy, and waits.
    let two = cluster.start(9235, &[]);
    let health = |port: u16| {
        let fetch = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let output = cluster.sandbox.host().command("bash").args(["-c", &fetch]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for port in [9234, 9235] {
        wait_until("it is healthy", LIMIT, || {
            let answer = health(port);
            answer.starts_with("HTTP/1.0 200") && answer.ends_with("\r\nok")
        });
    }
    assert_eq!(cluster.holder(), first);
    assert!(!two.log().contains("Leading"), "{}", two.log());

    // Killed, the first one is followed when its lease has ended, and not before.
    one.process.kill().unwrap();
    let killed = Instant::now();
    let second = cluster.until_holder(&two, 2 * LIMIT, |holder| holder != first);
    assert!(killed.elapsed() > Duration::from_secs(11), "{:?}", killed.elapsed());

    // Policies that came meanwhile get their statuses.
    make_policies(&cluster.stage);
    until_validated(&cluster.stage, &two);

    // Stopped, the second one hands over at once.
    let three = cluster.start(9236, &[]);
    wait_until("the third waits", LIMIT, || three.log().contains("Leader re-election complete"));
    let stopped = Instant::now();
    two.process.terminate().unwrap();
    cluster.until_holder(&three, LIMIT, |holder| holder != second);
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
    assert!(two.log().contains("Leader lease is released"), "{}", two.log());
    let is_unwell = |line: &&str| !line.contains("level=info") && !line.contains("Agents refuse a policy");
    let unwell: Vec<String> = three.log().lines().filter(is_unwell).map(str::to_owned).collect();
    assert_eq!(unwell, Vec::<String>::new());
}

#[test]
fn an_operator_stays_off_while_another_program_holds_the_lease_and_ends_when_it_loses_it() {
    require_root!();
    let cluster = Cluster::new();
    // As Cilium's operator writes it, by a clock that is years behind.
    let lease = |holder: &str, renewed: &str| {
        format!(
            "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: cilium-operator-resource-lock, \
             namespace: kube-system}}, spec: {{holderIdentity: {holder}, leaseDurationSeconds: 15, \
             acquireTime: '2020-01-01T00:00:00.000000Z', renewTime: '{renewed}', leaseTransitions: 1}}}}"
        )
    };
    cluster.stage.apply(&lease("vm-knsv4rv4zj", "2020-01-01T00:00:00.000000Z")).unwrap();
    let mut operator = cluster.start(9234, &[]);
    for second in 1..10 {
        std::thread::sleep(Duration::from_secs(2));
        cluster
            .stage
            .apply(&lease("vm-knsv4rv4zj", &format!("2020-01-01T00:00:{second:02}.000000Z")))
            .unwrap();
    }
    assert_eq!(cluster.holder(), "vm-knsv4rv4zj");
    assert_eq!(cluster.stage.kubectl(&["get", "crd", "-o", "name"]).unwrap(), "");
    cluster.until_holder(&operator, 2 * LIMIT, |holder| holder != "vm-knsv4rv4zj");
    cluster.until_leads(&operator);

    // Another program takes the lease by force.
    cluster.stage.apply(&lease("intruder", "2020-01-01T00:01:00.000000Z")).unwrap();
    let status = operator.process.wait(LIMIT).unwrap();
    assert_eq!(status.code(), Some(255), "{}", operator.log());
    let log = operator.log();
    assert!(log.contains("level=fatal") && log.contains("another process holds the lease"), "{log}");
    assert_eq!(cluster.holder(), "intruder", "its lease is not released");
}

/// CIDRs of nodes by name, of those that have one.
fn cidrs(stage: &Stage) -> BTreeMap<String, String> {
    let nodes = stage.get(&["ciliumnodes"]).unwrap();
    let cidr = |node: &Value| {
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        Some((name, node["spec"]["ipam"]["podCIDRs"][0].as_str()?.to_owned()))
    };
    nodes["items"].as_array().unwrap().iter().filter_map(cidr).collect()
}

/// Makes CiliumNodes as agents do.
fn join(stage: &Stage, nodes: std::ops::Range<usize>) {
    let node = |i: usize| {
        let spec = json!({"addresses": [{"type": "InternalIP", "ip": format!("192.0.2.{i}")}], "ipam": {"pools": {}}});
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": format!("n{i}")}, "spec": spec})
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes.map(node).collect::<Vec<_>>()});
    stage.apply(&list.to_string()).unwrap();
}

/// The nodes of these tests are CiliumNodes alone, which the operator would collect.
const KEEP_NODES: [&str; 1] = ["--nodes-gc-interval=0s"];

fn until_served(stage: &Stage, count: usize, operator: &Operator) -> BTreeMap<String, String> {
    let served = || match cidrs(stage) {
        all if all.len() == count => Ok(all),
        all => Err(format!("{all:?}")),
    };
    try_wait_until(2 * LIMIT, served).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()))
}

#[test]
fn nodes_get_cidrs_of_their_own_whichever_operator_leads() {
    require_root!();
    let cluster = Cluster::new();
    let mut one = cluster.start(9234, &KEEP_NODES);
    cluster.until_leads(&one);
    join(&cluster.stage, 0..1);
    until_served(&cluster.stage, 1, &one);
    join(&cluster.stage, 1..40);
    let before = until_served(&cluster.stage, 40, &one);

    // Killed while nodes join; what it had begun is the next one's to keep.
    let two = cluster.start(9235, &KEEP_NODES);
    join(&cluster.stage, 40..80);
    one.process.kill().unwrap();
    join(&cluster.stage, 80..100);
    let all = until_served(&cluster.stage, 100, &two);
    assert!(before.iter().all(|(node, cidr)| all.get(node) == Some(cidr)), "{before:?}\n{all:?}");
    let distinct: std::collections::BTreeSet<&String> = all.values().collect();
    assert_eq!(distinct.len(), 100, "{all:?}");

    // A deleted node's CIDR is free, and the others' stay over a restart. An agent's change of its object changes nothing.
    cluster.stage.kubectl(&["delete", "ciliumnode", "n7"]).unwrap();
    two.process.terminate().unwrap();
    let three = cluster.start(9236, &KEEP_NODES);
    join(&cluster.stage, 100..101);
    cluster.stage.kubectl(&["label", "ciliumnode", "n8", "zone=a"]).unwrap();
    let after = until_served(&cluster.stage, 100, &three);
    assert!(after.iter().filter(|(node, _)| *node != "n100").all(|(node, cidr)| all[node] == *cidr));
    let distinct: std::collections::BTreeSet<&String> = after.values().collect();
    assert_eq!(distinct.len(), 100, "{after:?}");
    let problems: Vec<String> =
        three.log().lines().filter(|line| !line.contains("level=info")).map(str::to_owned).collect();
    assert_eq!(problems, Vec::<String>::new());
}

/// The taint of nodes without a ready agent.
const TAINT: &str = "node.cilium.io/agent-not-ready";

/// Short intervals; a watch that lags by less than ten seconds costs nothing that is in use.
const COLLECT_OFTEN: [&str; 7] = [
    "--identity-allocation-mode=crd",
    "--identity-gc-interval=3s",
    "--identity-heartbeat-timeout=10s",
    "--cilium-endpoint-gc-interval=10s",
    "--nodes-gc-interval=10s",
    "--unmanaged-pod-watcher-interval=0s",
    "--set-cilium-node-taints=true",
];

/// Makes the agent's pod of a node, not ready yet.
fn agent_pod(node: &str) -> Value {
    let metadata = json!({"name": format!("cilium-{node}"), "namespace": "kube-system", "labels": {"k8s-app": "cilium"}});
    let spec =
        json!({"nodeName": node, "hostNetwork": true, "containers": [{"name": "agent", "image": "none"}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn set_ready(stage: &Stage, node: &str, ready: &str) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    let pod = format!("cilium-{node}");
    let arguments = ["-n=kube-system", "patch", "pod", &pod, "--subresource=status", "--type=merge", "-p"];
    stage.kubectl(&[&arguments[..], &[&status.to_string()]].concat()).unwrap();
}

fn taints(stage: &Stage, node: &str) -> Vec<String> {
    let node = stage.get(&["node", node]).unwrap();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

fn until_taints(stage: &Stage, operator: &Operator, node: &str, expected: &[&str]) {
    let as_expected = || match taints(stage, node) {
        // Others of the API server itself are left out.
        found if found.iter().filter(|key| !key.starts_with("node.kubernetes.io/")).eq(expected) => Ok(()),
        found => Err(format!("{node} has taints {found:?}, expected {expected:?}")),
    };
    try_wait_until(2 * LIMIT, as_expected).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()));
}

fn names(stage: &Stage, kind: &str) -> Vec<String> {
    let list = stage.kubectl(&["get", kind, "-o=name"]).unwrap();
    list.lines().filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned())).collect()
}

fn until_names(stage: &Stage, operator: &Operator, kind: &str, expected: &[&str]) {
    let as_expected = || match names(stage, kind) {
        found if found == expected => Ok(()),
        found => Err(format!("{kind}: {found:?}, expected {expected:?}")),
    };
    try_wait_until(2 * LIMIT, as_expected).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()));
}

/// Makes an endpoint with an identity of its own.
fn used_identity(stage: &Stage, name: &str, id: u32) {
    let endpoint = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": name, "namespace": "default"},
        "status": {"id": 7, "identity": {"id": id, "labels": ["k8s:app=web"]}, "state": "ready"},
    });
    stage.apply(&endpoint.to_string()).unwrap();
    unused_identity(stage, id);
}

fn unused_identity(stage: &Stage, id: u32) {
    let labels = json!({"k8s:app": format!("app-{id}")});
    let metadata = json!({"name": id.to_string()});
    let identity = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": metadata, "security-labels": labels,
    });
    stage.apply(&identity.to_string()).unwrap();
}

#[test]
fn what_agents_left_is_collected_and_taints_follow_them_whichever_operator_leads() {
    require_root!();
    let cluster = Cluster::new();
    let stage = &cluster.stage;
    let mut one = cluster.start(9234, &COLLECT_OFTEN);
    cluster.until_leads(&one);
    let two = cluster.start(9235, &COLLECT_OFTEN);

    // A node that waits for its agent, with a taint of another owner; one that has lost its agent.
    let foreign = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    let own = json!({"key": TAINT, "effect": "NoExecute"});
    for (name, taints) in [("n1", json!([foreign, own])), ("n2", json!([]))] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}});
        stage.apply(&node.to_string()).unwrap();
        stage.apply(&agent_pod(name).to_string()).unwrap();
    }
    until_taints(stage, &one, "n2", &[TAINT]);
    until_taints(stage, &one, "n1", &["dedicated", TAINT]);
    for name in ["n1", "n2"] {
        set_ready(stage, name, "True");
    }
    until_taints(stage, &one, "n1", &["dedicated"]);
    until_taints(stage, &one, "n2", &[]);
    wait_until("the network of the node is up", LIMIT, || {
        let node = stage.get(&["node", "n1"]).unwrap();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "NetworkUnavailable" && c["reason"] == "CiliumIsUp")
    });

    // Objects that are in use, and some that are not.
    let web = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "none"}]},
    });
    stage.apply(&web.to_string()).unwrap();
    join(stage, 1..4);
    used_identity(stage, "web", 1001);
    used_identity(stage, "gone", 1002);
    unused_identity(stage, 1003);
    until_names(stage, &one, "ciliumnodes", &["n1", "n2"]);
    until_names(stage, &one, "ciliumendpoints", &["web"]);
    until_names(stage, &one, "ciliumidentities", &["1001"]);

    // The leader is killed while more are left: the other one goes on.
    join(stage, 4..5);
    used_identity(stage, "gone", 1004);
    let first = cluster.holder();
    one.process.kill().unwrap();
    set_ready(stage, "n1", "False");
    cluster.until_holder(&two, 2 * LIMIT, |holder| holder != first);
    until_taints(stage, &two, "n1", &["dedicated", TAINT]);
    until_names(stage, &two, "ciliumnodes", &["n1", "n2"]);
    until_names(stage, &two, "ciliumendpoints", &["web"]);
    until_names(stage, &two, "ciliumidentities", &["1001"]);
    let problems: Vec<String> =
        two.log().lines().filter(|line| !line.contains("level=info")).map(str::to_owned).collect();
    assert_eq!(problems, Vec::<String>::new());
}

/// Makes an endpoint with addresses.
fn sliced_endpoint(namespace: &str, name: &str, id: u32) -> Value {
    let status = json!({
        "id": 7, "identity": {"id": id, "labels": ["k8s:app=web"]}, "state": "ready",
        "networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"},
    });
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": metadata, "status": status})
}

/// Returns once each of these apps has exactly one identity.
fn until_identified(stage: &Stage, operator: &Operator, apps: &[&str]) {
    let identified = || {
        let identities = stage.get(&["ciliumidentities"]).unwrap();
        let items = identities["items"].as_array().cloned().unwrap_or_default();
        let app =
            |object: &Value| object["security-labels"]["k8s:app"].as_str().unwrap_or_default().to_owned();
        let mut found: Vec<String> = items.iter().map(app).collect();
        found.sort();
        if found == apps { Ok(()) } else { Err(format!("{found:?}, expected {apps:?}")) }
    };
    try_wait_until(2 * LIMIT, identified).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()));
}

fn labelled_pod(stage: &Stage, name: &str, app: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app, "pod-template-hash": name}},
        "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "none"}]},
    });
    stage.apply(&pod.to_string()).unwrap();
}

/// Returns the endpoints of all slices, each with its slice.
fn sliced(stage: &Stage) -> Vec<(String, String)> {
    let slices = stage.get(&["ciliumendpointslices"]).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<(String, String)> = Vec::new();
    for slice in slices["items"].as_array().unwrap() {
        for endpoint in slice["endpoints"].as_array().unwrap() {
            let name =
                format!("{}/{}/{}", text(&slice["namespace"]), text(&endpoint["name"]), endpoint["id"]);
            found.push((name, text(&slice["metadata"]["name"])));
        }
    }
    found.sort();
    found
}

#[test]
fn endpoints_are_in_one_slice_and_labels_have_one_identity_each_whichever_operator_leads() {
    require_root!();
    let cluster = Cluster::new();
    let stage = &cluster.stage;
    let options = [
        "--enable-cilium-endpoint-slice=true",
        "--ces-max-ciliumendpoints-per-ces=4",
        "--cilium-endpoint-gc-interval=0s",
        "--identity-allocation-mode=crd",
        "--identity-management-mode=operator",
    ];
    let mut one = cluster.start(9234, &options);
    cluster.until_leads(&one);
    let two = cluster.start(9235, &options);
    let list = |numbers: std::ops::Range<u32>| {
        let items: Vec<Value> =
            numbers.map(|i| sliced_endpoint("default", &format!("web-{i}"), 300 + i)).collect();
        json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
    };
    let expected = |numbers: &mut dyn Iterator<Item = u32>| {
        let mut names: Vec<String> = numbers.map(|i| format!("default/web-{i}/{}", 300 + i)).collect();
        names.sort();
        names
    };
    let until_sliced = |operator: &Operator, names: &[String]| {
        let as_expected = || match sliced(stage) {
            found if found.iter().map(|(name, _)| name).eq(names) => Ok(found),
            found => Err(format!("{found:?}, expected {names:?}")),
        };
        try_wait_until(2 * LIMIT, as_expected).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()))
    };
    stage.apply(&list(0..6)).unwrap();
    [("a-1", "a"), ("a-2", "a"), ("b-1", "b")].iter().for_each(|(name, app)| labelled_pod(stage, name, app));
    until_identified(stage, &one, &["a", "b"]);
    let before = until_sliced(&one, &expected(&mut (0..6)));

    // Killed while endpoints come; two go while no operator leads.
    stage.apply(&list(6..12)).unwrap();
    one.process.kill().unwrap();
    stage.kubectl(&["delete", "ciliumendpoint", "web-0", "web-7"]).unwrap();
    [("a-3", "a"), ("c-1", "c")].iter().for_each(|(name, app)| labelled_pod(stage, name, app));
    let after = until_sliced(&two, &expected(&mut (1..12).filter(|i| *i != 7)));
    assert!(
        before.iter().filter(|(name, _)| !name.contains("web-0/")).all(|moved| after.contains(moved)),
        "{before:?}\n{after:?}"
    );
    until_identified(stage, &two, &["a", "b", "c"]);

    // Another client deletes a slice; it is there again, under its name.
    stage.kubectl(&["delete", "ciliumendpointslice", &after[0].1]).unwrap();
    assert_eq!(until_sliced(&two, &expected(&mut (1..12).filter(|i| *i != 7))), after);
    stage.kubectl(&["delete", "ciliumendpoints", "--all"]).unwrap();
    until_names(stage, &two, "ciliumendpointslices", &[]);
}

/// Addresses and the condition of load balancers by name.
fn load_balancers(stage: &Stage) -> BTreeMap<String, (Vec<String>, String)> {
    let services = stage.get(&["-n=default", "services", "-l=lb"]).unwrap();
    let outcome = |service: &Value| {
        let name = service["metadata"]["name"].as_str().unwrap().to_owned();
        let status = &service["status"];
        let ingress = status["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        let ips =
            ingress.iter().map(|ingress| ingress["ip"].as_str().unwrap_or_default().to_owned()).collect();
        (name, (ips, status["conditions"][0]["reason"].as_str().unwrap_or_default().to_owned()))
    };
    services["items"].as_array().unwrap().iter().map(outcome).collect()
}

/// Makes load balancers with these annotations.
fn make_load_balancers(
    stage: &Stage,
    names: impl Iterator<Item = String>,
    annotations: &Value,
    class: Option<&str>,
) {
    let service = |name: String| {
        let metadata =
            json!({"name": name, "namespace": "default", "labels": {"lb": "1"}, "annotations": annotations});
        let mut spec =
            json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]});
        if let Some(class) = class {
            spec["loadBalancerClass"] = class.into();
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": names.map(service).collect::<Vec<_>>()});
    stage.apply(&list.to_string()).unwrap();
}

fn until_balancers(
    stage: &Stage,
    operator: &Operator,
    is: impl Fn(&BTreeMap<String, (Vec<String>, String)>) -> bool,
) -> BTreeMap<String, (Vec<String>, String)> {
    let found = || match load_balancers(stage) {
        all if is(&all) => Ok(all),
        all => Err(format!("{all:?}")),
    };
    try_wait_until(2 * LIMIT, found).unwrap_or_else(|error| panic!("{error}\n{}", operator.log()))
}

fn pool_conditions(stage: &Stage, name: &str) -> BTreeMap<String, String> {
    let pool = stage.get(&["ciliumloadbalancerippool", name]).unwrap();
    let conditions = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let pair = |condition: &Value| {
        let [kind, status, message] = ["type", "status", "message"].map(|of| condition[of].as_str().unwrap());
        let text = if kind == "cilium.io/PoolConflict" { status } else { message };
        (kind.trim_start_matches("cilium.io/").to_owned(), text.to_owned())
    };
    conditions.iter().map(pair).collect()
}

#[test]
fn load_balancers_get_addresses_of_pools_and_nodes_whichever_operator_leads() {
    require_root!();
    let cluster = Cluster::new();
    let stage = &cluster.stage;
    let options = ["--enable-node-ipam=true", "--nodes-gc-interval=0s"];
    let mut one = cluster.start(9234, &options);
    cluster.until_leads(&one);
    let pool = |name: &str, cidr: &str| {
        let spec = json!({"blocks": [{"cidr": cidr}], "allowFirstLastIPs": "No"});
        let pool = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool",
            "metadata": {"name": name}, "spec": spec});
        stage.apply(&pool.to_string()).unwrap();
    };
    pool("blue", "192.0.2.0/26");
    let shared = json!({"lbipam.cilium.io/sharing-key": "k", "lbipam.cilium.io/ips": "192.0.2.60"});
    make_load_balancers(stage, (0..40).map(|i| format!("s{i}")), &json!({}), None);
    make_load_balancers(stage, ["asks".to_owned()].into_iter(), &shared, None);
    make_load_balancers(stage, ["collides".to_owned()].into_iter(), &shared, None);
    let is_served = |count: usize| {
        move |all: &BTreeMap<String, (Vec<String>, String)>| {
            all.values().filter(|(ips, reason)| ips.len() == 1 && reason == "satisfied").count() == count
        }
    };
    let incompatible = "already_allocated_incompatible_service";
    let before = until_balancers(stage, &one, |all| is_served(41)(all) && all["collides"].1 == incompatible);

    // Killed while services come; what it had given is kept by the next one, and nothing is given twice.
    let two = cluster.start(9235, &options);
    make_load_balancers(stage, (40..55).map(|i| format!("s{i}")), &json!({}), None);
    one.process.kill().unwrap();
    make_load_balancers(stage, (55..70).map(|i| format!("s{i}")), &json!({}), None);
    let all = until_balancers(stage, &two, |all| {
        is_served(62)(all) && all.values().filter(|(_, reason)| reason == "out_of_ips").count() == 9
    });
    assert!(before.iter().all(|(name, outcome)| all.get(name) == Some(outcome)), "{before:?}\n{all:?}");
    let distinct: std::collections::BTreeSet<&String> = all.values().flat_map(|(ips, _)| ips).collect();
    assert_eq!(distinct.len(), 62, "{all:?}");
    let counted = [("IPsAvailable", "0"), ("IPsTotal", "62"), ("IPsUsed", "62"), ("PoolConflict", "False")];
    let expected: BTreeMap<String, String> = counted.map(|(kind, text)| (kind.into(), text.into())).into();
    wait_until("the pool counts its addresses", LIMIT, || pool_conditions(stage, "blue") == expected);

    // Another pool serves those that wait; one that overlaps is marked.
    pool("green", "198.51.100.0/24");
    until_balancers(stage, &two, is_served(71));
    pool("red", "198.51.100.128/25");
    wait_until("the younger pool is in conflict", LIMIT, || {
        pool_conditions(stage, "red").get("PoolConflict").is_some_and(|status| status == "True")
    });
    assert_eq!(pool_conditions(stage, "green")["PoolConflict"], "False");

    // Addresses of nodes.
    stage.apply(r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}"#).unwrap();
    let status =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "203.0.113.1"}]}}).to_string();
    stage.kubectl(&["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", &status]).unwrap();
    make_load_balancers(stage, ["of-nodes".to_owned()].into_iter(), &json!({}), Some("io.cilium/node"));
    until_balancers(stage, &two, |all| all["of-nodes"] == (vec!["203.0.113.1".to_owned()], String::new()));

    // A service that is none any more keeps neither address nor condition.
    let plain = r#"{"spec": {"type": "ClusterIP", "allocateLoadBalancerNodePorts": null}}"#;
    stage.kubectl(&["-n=default", "patch", "service", "s1", "--type=merge", "-p", plain]).unwrap();
    until_balancers(stage, &two, |all| all["s1"] == (vec![], String::new()));
    let is_expected = |line: &str| line.contains("level=info") || line.contains("Pool conflicts since range");
    let problems: Vec<String> =
        two.log().lines().filter(|line| !is_expected(line)).map(str::to_owned).collect();
    assert_eq!(problems, Vec::<String>::new());
}

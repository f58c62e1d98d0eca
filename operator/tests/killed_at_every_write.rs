//! The operator is killed after each of its writes in turn, and so is the one that follows it. In the end the cluster is what it
//! is without kills, and on the way no identity in use is deleted and no CIDR is given twice. In virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use hive::Scope;
use hive::prelude::*;
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::{Api, Key, Kind, Preconditions};
use operator::Leader;
use operator_election::{ElectionConfig, Leadership};
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_kit::Slice;
use tokio::time::{Instant, sleep};

/// A time in which all is written that is ever written, also that of collections after several intervals.
const SETTLED: Duration = Duration::from_secs(12 * 60);

/// How long a process with a stalled clock leads beside another one: until identities were marked and deleted by both.
const BOTH: Duration = Duration::from_secs(5 * 60);

/// The interval at which agents act.
const STEP: Duration = Duration::from_secs(10);

/// Operators that follow a killed one are killed after one of so many writes.
const SECOND: u64 = 23;

/// A run of the tests covers one in so many writes.
const SLICES: u64 = 4;

const MAX_ENDPOINTS_PER_SLICE: usize = 2;

/// The identity that is marked as unused, and then used.
const LATE: &str = "1004";

const HEARTBEAT: &str = "io.cilium.heartbeat";

const OPTIONS: &[(&str, &str)] = &[
    ("k8s-namespace", "kube-system"),
    ("skip-crd-creation", "true"),
    ("leader-election-lease-duration", "40s"),
    ("leader-election-renew-deadline", "30s"),
    ("leader-election-retry-period", "10s"),
    ("enable-ipv6", "false"),
    ("cluster-pool-ipv4-cidr", "10.0.0.0/21"),
    ("enable-cilium-endpoint-slice", "true"),
    ("ces-max-ciliumendpoints-per-ces", "2"),
    // Two leaders make and delete slices as fast as they may.
    ("ces-rate-limits", r#"[{"nodes":0,"limit":0.5,"burst":5}]"#),
    ("identity-allocation-mode", "crd"),
    ("identity-management-mode", "both"),
    ("identity-gc-interval", "1m"),
    ("identity-heartbeat-timeout", "90s"),
    ("cilium-endpoint-gc-interval", "1m"),
    ("nodes-gc-interval", "1m"),
    ("set-cilium-node-taints", "true"),
    ("enable-policy-secrets-sync", "true"),
    ("policy-secrets-namespace", "copies"),
    ("external-envoy-proxy", "true"),
];

/// The kinds that operators write, and those that agents write meanwhile.
const KINDS: [Kind; 11] = [
    Kind::CiliumClusterwideNetworkPolicy,
    Kind::CiliumEndpoint,
    Kind::CiliumEndpointSlice,
    Kind::CiliumIdentity,
    Kind::CiliumLoadBalancerIPPool,
    Kind::CiliumNetworkPolicy,
    Kind::CiliumNode,
    Kind::Node,
    Kind::Pod,
    Kind::Secret,
    Kind::Service,
];

/// The writes of the running operator.
#[derive(Default)]
struct Writes {
    done: u64,
    permitted: u64,
    last: String,
    /// Writes that no operator may send.
    violations: Vec<String>,
}

impl Writes {
    fn are_over(&self) -> bool {
        self.done >= self.permitted
    }
}

/// A cluster whose objects outlive its operators.
struct Cluster {
    server: FakeServer,
    writes: Arc<Mutex<Writes>>,
}

impl Cluster {
    fn new() -> Cluster {
        let server = FakeServer::default();
        objects().iter().for_each(|object| server.add(object));
        let writes = Arc::<Mutex<Writes>>::default();
        let (view, counted) = (server.clone(), writes.clone());
        server.on_request(move |_, request| {
            let mut writes = counted.lock();
            if writes.are_over() {
                return Err(Request::unreachable());
            }
            if request.verb != "get" && request.kind != Kind::Lease {
                writes.done += 1;
                writes.last = request.to_string();
                writes.violations.extend(violation(&view, request));
            }
            Ok(())
        });
        Cluster { server, writes }
    }

    /// Runs an operator, which is killed after so many writes. Returns whether it was.
    async fn run(&self, permitted: u64) -> bool {
        *self.writes.lock() = Writes { permitted, violations: self.violations(), ..Writes::default() };
        let hive =
            TestHive::new([statedb::cell(), metrics::cell(), self.server.cell(), operator::control_plane()]);
        let mut hive = OPTIONS.iter().fold(hive, |hive, (key, value)| hive.set(key, value));
        hive.start().await;
        let end = Instant::now() + SETTLED;
        while Instant::now() < end {
            if self.writes.lock().are_over() {
                hive.kill();
                return true;
            }
            act_as_agents(&self.server);
            sleep(STEP).await;
        }
        hive.stop().await;
        false
    }

    /// Starts a process that leads whatever the lease says: its clock stands still.
    async fn leader(&self) -> TestHive {
        let hive = TestHive::new([
            statedb::cell(),
            metrics::cell(),
            self.server.cell(),
            config::<ElectionConfig>(),
            supply(Arc::new(Leadership::permanent())),
            operator::leader(),
            invoke(|_: Arc<Scope<Leader>>| ()),
        ]);
        let mut hive = OPTIONS.iter().fold(hive, |hive, (key, value)| hive.set(key, value));
        hive.start().await;
        hive.get::<Scope<Leader>>().start().await.unwrap();
        hive
    }

    fn violations(&self) -> Vec<String> {
        self.writes.lock().violations.clone()
    }

    /// Returns the objects without what differs between two clusters that are the same: uids, versions, times, and which of
    /// several free ids, addresses and names was chosen.
    fn state(&self) -> BTreeMap<String, Value> {
        let apps: BTreeMap<u64, Value> = self.apps_by_identity();
        let app = |id: &Value| id.as_u64().and_then(|id| apps.get(&id)).cloned().unwrap_or(Value::Null);
        let mut state = BTreeMap::new();
        let mut sliced = Vec::new();
        let mut addresses = BTreeSet::new();
        for (kind, mut object) in KINDS.iter().flat_map(|kind| of_kind(&self.server, *kind)) {
            let mut name = text(&object["metadata"]["name"]).to_owned();
            match kind {
                Kind::CiliumNode => count(&mut object["spec"]["ipam"]["podCIDRs"]),
                Kind::Service => {
                    let ingress = &mut object["status"]["loadBalancer"]["ingress"];
                    let is_new =
                        ingress.as_array().into_iter().flatten().all(|ip| addresses.insert(ip.to_string()));
                    assert!(is_new, "{name} has the address of another service: {ingress}");
                    count(ingress);
                }
                Kind::CiliumEndpoint => {
                    object["status"]["identity"]["id"] = app(&object["status"]["identity"]["id"]);
                }
                Kind::CiliumIdentity => {
                    name = text(&object["security-labels"]["k8s:app"]).to_owned();
                    object["metadata"]["name"] = Value::Null;
                }
                Kind::CiliumEndpointSlice => {
                    let endpoints = object["endpoints"].as_array().cloned().unwrap_or_default();
                    assert!((1..=MAX_ENDPOINTS_PER_SLICE).contains(&endpoints.len()), "{object}");
                    sliced.extend(endpoints.into_iter().map(|mut endpoint| {
                        endpoint["id"] = app(&endpoint["id"]);
                        endpoint.to_string()
                    }));
                    continue;
                }
                _ => {}
            }
            strip(&mut object);
            let twin = state.insert(format!("{kind} {name}"), object);
            assert!(twin.is_none(), "{kind} {name} is there twice: {twin:?}");
        }
        sliced.sort();
        state.insert("endpoints in slices".to_owned(), json!(sliced));
        state
    }

    fn apps_by_identity(&self) -> BTreeMap<u64, Value> {
        let identities = self.server.objects(Kind::CiliumIdentity);
        let pair = |object: &Value| {
            let id = text(&object["metadata"]["name"]).parse().unwrap();
            (id, object["security-labels"]["k8s:app"].clone())
        };
        identities.iter().map(pair).collect()
    }
}

fn of_kind(server: &FakeServer, kind: Kind) -> Vec<(Kind, Value)> {
    server.objects(kind).into_iter().map(|object| (kind, object)).collect()
}

/// Replaces a list by its length.
fn count(list: &mut Value) {
    *list = list.as_array().map_or(0, Vec::len).into();
}

/// Removes what a server sets, and times.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for name in
                ["uid", "resourceVersion", "creationTimestamp", "lastTransitionTime", "lastHeartbeatTime"]
            {
                members.remove(name);
            }
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns why no operator may send this write; none of one that the server refuses, as it is about another version.
fn violation(server: &FakeServer, request: &Request) -> Option<String> {
    let name = request.key.name.as_str();
    let versions =
        [request.object["metadata"]["resourceVersion"].as_str(), request.only_if.resource_version.as_deref()];
    let present = server.find(request.kind, name)?["metadata"]["resourceVersion"].take();
    if versions.into_iter().flatten().any(|version| present != version) {
        return None;
    }
    match (request.kind, request.verb) {
        (Kind::CiliumIdentity, "delete") => {
            let app = server.object(request.kind, name)["security-labels"]["k8s:app"].clone();
            let id: u64 = name.parse().ok()?;
            let uses = |user: &Value| {
                user["status"]["identity"]["id"].as_u64().is_some_and(|of| of == id)
                    || user["metadata"]["labels"]["app"] == app
            };
            let users = [server.objects(Kind::CiliumEndpoint), server.objects(Kind::Pod)].concat();
            let user = users.iter().find(|user| uses(user))?;
            Some(format!("{request}, which {} {} uses", text(&user["kind"]), user["metadata"]["name"]))
        }
        (Kind::CiliumNode, "update") => {
            let given: BTreeSet<&str> = cidrs(&request.object).collect();
            let nodes = server.objects(Kind::CiliumNode);
            let others = nodes.iter().filter(|node| node["metadata"]["name"] != name);
            let twin = others.into_iter().find(|node| cidrs(node).any(|cidr| given.contains(cidr)))?;
            Some(format!("{request} with {given:?}, which {} has", twin["metadata"]["name"]))
        }
        _ => None,
    }
}

fn cidrs(node: &Value) -> impl Iterator<Item = &str> {
    node["spec"]["ipam"]["podCIDRs"].as_array().into_iter().flatten().map(text)
}

/// Does what agents do: each pod gets an endpoint once its labels have an identity, and an identity that is marked as unused is
/// taken up again by a pod that has just come.
fn act_as_agents(server: &FakeServer) {
    let is_marked = |identity: &Value| !identity["metadata"]["annotations"][HEARTBEAT].is_null();
    if server.find(Kind::CiliumIdentity, LATE).as_ref().is_some_and(is_marked)
        && server.find(Kind::Pod, "late").is_none()
    {
        server.add(&pod("late", "late"));
        server.edit(Kind::CiliumIdentity, LATE, |identity| {
            identity["metadata"]["annotations"] = json!({});
        });
    }
    let identities = server.objects(Kind::CiliumIdentity);
    for pod in server.objects(Kind::Pod) {
        let (name, app) = (text(&pod["metadata"]["name"]), &pod["metadata"]["labels"]["app"]);
        let identity = identities.iter().find(|identity| identity["security-labels"]["k8s:app"] == *app);
        if let Some(identity) = identity.filter(|identity| !is_marked(identity))
            && server.find(Kind::CiliumEndpoint, name).is_none()
        {
            server.add(&endpoint(name, text(&identity["metadata"]["name"]).parse().unwrap()));
        }
    }
}

fn object(kind: Kind, name: &str, more: &Value) -> Value {
    let mut object =
        json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name}});
    if kind.namespaced() {
        object["metadata"]["namespace"] = "default".into();
    }
    for (member, value) in more.as_object().into_iter().flatten() {
        object[member] = value.clone();
    }
    object
}

fn pod(name: &str, app: &str) -> Value {
    let mut pod = object(
        Kind::Pod,
        name,
        &json!({
            "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "none"}]},
            "status": {"phase": "Running"},
        }),
    );
    pod["metadata"]["labels"] = json!({"app": app});
    pod
}

fn endpoint(name: &str, identity: u64) -> Value {
    let status = json!({
        "id": 7, "identity": {"id": identity, "labels": []}, "state": "ready",
        "networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"},
    });
    object(Kind::CiliumEndpoint, name, &json!({"status": status}))
}

/// An identity as agents and operators create it.
fn identity(id: &str, app: &str) -> Value {
    let labels = json!({
        "k8s:app": app, "k8s:io.cilium.k8s.namespace.labels.team": "a",
        "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.kubernetes.pod.namespace": "default",
    });
    object(Kind::CiliumIdentity, id, &json!({"security-labels": labels}))
}

/// The objects at the start: of each duty of an operator something that is to do, and something to leave alone.
fn objects() -> Vec<Value> {
    let mut namespace = object(Kind::Namespace, "default", &json!({}));
    namespace["metadata"]["labels"] = json!({"team": "a"});
    let mut all = vec![namespace];

    // Nodes: of n4 only the agent's object is left, n5 has its range, agents of n1 and n2 are ready.
    let taint = json!({"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"});
    for name in ["n1", "n2", "n3", "n5"] {
        all.push(object(
            Kind::Node,
            name,
            &json!({"spec": {"taints": [taint]}, "status": {"conditions": []}}),
        ));
    }
    for name in ["n1", "n2", "n3", "n4"] {
        all.push(object(Kind::CiliumNode, name, &json!({"spec": {"ipam": {"pools": {}}}})));
    }
    let range = json!({"spec": {"ipam": {"podCIDRs": ["10.0.1.0/24"], "pools": {}}}});
    all.push(object(Kind::CiliumNode, "n5", &range));
    for (node, is_ready) in [("n1", "True"), ("n2", "True"), ("n3", "False")] {
        let mut agent = object(
            Kind::Pod,
            &format!("cilium-{node}"),
            &json!({
                "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"name": "agent", "image": "none"}]},
                "status": {"conditions": [{"type": "Ready", "status": is_ready}]},
            }),
        );
        agent["metadata"]["namespace"] = "kube-system".into();
        agent["metadata"]["labels"] = json!({"k8s-app": "cilium", "app": "cilium"});
        all.push(agent);
    }

    // Identities: used by the pod `held`, unused, used by an endpoint without a pod, and used by a pod that comes late.
    all.extend([pod("held", "held"), endpoint("held", 1001), identity("1001", "held")]);
    all.extend([identity("1002", "unused"), identity("1003", "left"), endpoint("left", 1003)]);
    all.push(identity(LATE, "late"));
    for (name, app) in [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("c-1", "c"), ("c-2", "c")] {
        all.push(pod(name, app));
    }

    // Load balancers: one of three has its address already.
    let blocks = json!({"spec": {"blocks": [{"cidr": "192.0.2.0/29"}]}});
    all.push(object(Kind::CiliumLoadBalancerIPPool, "blue", &blocks));
    for (name, ingress) in
        [("s1", json!([])), ("s2", json!([])), ("s3", json!([{"ip": "192.0.2.2", "ipMode": "VIP"}]))]
    {
        let spec = json!({
            "type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
        });
        let status = json!({"loadBalancer": {"ingress": ingress}});
        all.push(object(Kind::Service, name, &json!({"spec": spec, "status": status})));
    }

    // Policies: valid, invalid, and one that names a secret.
    let ports = |port: &str| json!([{"ports": [{"port": port, "protocol": "TCP"}]}]);
    for (name, port) in [("right", "80"), ("wrong", "70000")] {
        let spec = json!({"endpointSelector": {}, "ingress": [{"toPorts": ports(port)}]});
        all.push(object(Kind::CiliumNetworkPolicy, name, &json!({"spec": spec})));
    }
    let header = json!({"name": "x-token", "mismatch": "REPLACE", "secret": {"namespace": "default", "name": "token"}});
    let mut to_ports = ports("80");
    to_ports[0]["rules"] = json!({"http": [{"headerMatches": [header]}]});
    let spec = json!({"endpointSelector": {}, "egress": [{"toPorts": to_ports}]});
    all.push(object(Kind::CiliumClusterwideNetworkPolicy, "secret", &json!({"spec": spec})));
    all.push(object(Kind::Secret, "token", &json!({"type": "Opaque", "data": {"value": "MQ=="}})));
    all
}

/// Describes the first differences of two states.
fn differences(expected: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> String {
    let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differing = names.into_iter().filter(|name| expected.get(*name) != found.get(*name));
    let line = |name: &String| {
        let of =
            |state: &BTreeMap<String, Value>| state.get(name).map_or("nothing".to_owned(), Value::to_string);
        format!("{name}\n  expected {}\n  found    {}\n", of(expected), of(found))
    };
    differing.map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn a_kill_after_any_write_changes_nothing_in_the_end() {
    let cluster = Cluster::new();
    assert!(!cluster.run(u64::MAX).await);
    let (expected, all) = (cluster.state(), cluster.writes.lock().done);
    assert_eq!(cluster.violations(), Vec::<String>::new());
    is_complete(&cluster, &expected);
    violations_are_seen(&cluster).await;

    let slice = Slice::of(SLICES);
    let mut kills = 0;
    for k in (1 + slice.index..).step_by(slice.count as usize) {
        let cluster = Cluster::new();
        if !cluster.run(k).await {
            break;
        }
        kills += 1;
        let last = cluster.writes.lock().last.clone();
        let second = 1 + k * 7 % SECOND;
        cluster.run(second).await;
        assert!(!cluster.run(u64::MAX).await);
        let place = format!("killed after write {k}, {last}, and the next one after {second}");
        let differences = differences(&expected, &cluster.state());
        assert!(differences.is_empty(), "{place}:\n{differences}");
        assert_eq!(cluster.violations(), Vec::<String>::new(), "{place}");
    }
    let _ = writeln!(std::io::stdout(), "killed at every write: n = {kills} of {all}");
    assert!(kills >= all / slice.count / 2, "{kills} of {all}");
}

#[tokio::test(start_paused = true)]
async fn two_leaders_at_once_give_nothing_twice_and_delete_nothing_in_use() {
    let cluster = Cluster::new();
    *cluster.writes.lock() = Writes { permitted: u64::MAX, ..Writes::default() };
    let (stalled, mut leader) = (cluster.leader().await, cluster.leader().await);
    let (mut stalled, mut steps) = (Some(stalled), 0);
    let begin = Instant::now();
    while begin.elapsed() < SETTLED {
        if steps < 3 {
            // Both see them at once.
            let name = format!("m{steps}");
            cluster.server.add(&object(
                Kind::Node,
                &name,
                &json!({"spec": {}, "status": {"conditions": []}}),
            ));
            cluster.server.add(&object(Kind::CiliumNode, &name, &json!({"spec": {"ipam": {"pools": {}}}})));
            cluster.server.add(&pod(&format!("d-{steps}"), &format!("d{steps}")));
        }
        // Both make slices meanwhile, and take each other's for superfluous: the one that is left ends that.
        if begin.elapsed() > BOTH
            && let Some(stalled) = stalled.take()
        {
            stalled.kill();
        }
        steps += 1;
        act_as_agents(&cluster.server);
        sleep(STEP).await;
    }
    leader.stop().await;
    assert_eq!(cluster.violations(), Vec::<String>::new());
    let state = cluster.state();
    is_complete(&cluster, &state);
    for step in 0..3 {
        assert_eq!(state[&format!("CiliumNode m{step}")]["spec"]["ipam"]["podCIDRs"], 1);
        assert!(state.contains_key(&format!("CiliumIdentity d{step}")), "{state:?}");
    }
}

/// Asserts that the undisturbed run did something of each duty.
fn is_complete(cluster: &Cluster, state: &BTreeMap<String, Value>) {
    let server = &cluster.server;
    let has = |name: &str| state.contains_key(name);
    assert!(has("CiliumIdentity a") && has("CiliumIdentity held") && has("CiliumIdentity late"), "{state:?}");
    assert!(!has("CiliumIdentity unused") && !has("CiliumIdentity left") && !has("CiliumEndpoint left"));
    assert!(!has("CiliumNode n4") && has("Secret default-token"), "{state:?}");
    for name in ["n1", "n2", "n3", "n5"] {
        assert_eq!(state[&format!("CiliumNode {name}")]["spec"]["ipam"]["podCIDRs"], 1);
    }
    let taints =
        |name: &str| server.object(Kind::Node, name)["spec"]["taints"].as_array().map_or(0, Vec::len);
    assert_eq!(["n1", "n2", "n3"].map(taints), [0, 0, 1]);
    let sliced = state["endpoints in slices"].as_array().unwrap();
    assert_eq!(sliced.len(), server.objects(Kind::CiliumEndpoint).len());
    for name in ["s1", "s2", "s3"] {
        assert_eq!(state[&format!("Service {name}")]["status"]["loadBalancer"]["ingress"], 1);
    }
    let valid = |name: &str| state[name]["status"]["conditions"][0]["status"].clone();
    assert_eq!(valid("CiliumNetworkPolicy right"), "True");
    assert_eq!(valid("CiliumNetworkPolicy wrong"), "False");
}

/// The control: the deletion of an identity in use and a CIDR of another node are seen.
async fn violations_are_seen(cluster: &Cluster) {
    *cluster.writes.lock() = Writes { permitted: u64::MAX, ..Writes::default() };
    let api: &dyn Api = &cluster.server;
    let only_if = Preconditions::default();
    api.delete(Kind::CiliumIdentity, &Key::new("", "1001"), only_if.clone()).await.unwrap();
    api.delete(Kind::CiliumNode, &Key::new("", "n3"), only_if).await.unwrap();
    let mut node = cluster.server.object(Kind::CiliumNode, "n1");
    node["spec"]["ipam"]["podCIDRs"] = json!(["10.0.1.0/24"]);
    api.update(Kind::CiliumNode, node.to_string().into()).await.unwrap();
    let found = cluster.violations();
    assert_eq!(found.len(), 2, "{found:?}");
}

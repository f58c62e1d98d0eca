//! The commands against an agent with fixed responses, and against pinned maps.

mod ui;

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// An agent with a list of responses to GETs that accepts every other request.
struct FakeAgent {
    folder: tempfile::TempDir,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeAgent {
    fn new(answers: Vec<(&'static str, u16, Value)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("agent.sock")).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let serve = move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &answers, &log);
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Self { folder, requests }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// Runs a command line (split at blanks); returns its output, and its exit code if that is not 0.
    fn run(&self, line: &str) -> String {
        run(&self.socket(), line)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn run(socket: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apiary"));
    let output = command.env("CILIUM_SOCK", socket).args(line.split(' ')).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap() + std::str::from_utf8(&output.stderr).unwrap();
    if !output.status.success() {
        text += &format!("[exit code {}]\n", output.status.code().unwrap());
    }
    // Cilium prints trailing blanks, but editors strip them from snapshots.
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn serve(stream: UnixStream, answers: &[(&str, u16, Value)], log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let request = line.trim().trim_end_matches(" HTTP/1.1").replacen("/v1", "", 1);
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            match header.trim().split_once(": ") {
                Some(("Content-Length", value)) => length = value.parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        log.lock()
            .unwrap()
            .push(format!("{request} {}", String::from_utf8(body).unwrap()).trim_end().to_owned());
        // A PUT is answered like a GET: that of a probe returns its result.
        let asked = request.strip_prefix("GET ").or(request.strip_prefix("PUT "));
        let found = answers.iter().find(|(path, ..)| asked == Some(path));
        let (status, body) = match found {
            Some((_, status, body)) if body.is_null() => (*status, String::new()),
            Some((_, status, body)) => (*status, body.to_string()),
            None if request.starts_with("GET") => (404, String::new()),
            None => (200, String::new()),
        };
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

fn endpoint(id: u32, ipv4: &str, ipv6: &str, labels: &[&str]) -> Value {
    json!({"id": id, "status": {
        "identity": {"id": 5, "labels": labels},
        "labels": {"security-relevant": labels},
        "networking": {"addressing": [{"ipv4": ipv4, "ipv6": ipv6}]},
        "policy": {"realized": {"policy-enabled": "none"}},
        "state": "ready",
    }})
}

#[test]
fn endpoints() {
    let list = json!([
        endpoint(2386, "10.244.183.160", "fd00::5", &["reserved:init"]),
        endpoint(135, "10.244.57.201", "", &["k8s:app=p1", "k8s:a=b"]),
        {"id": 7},
    ]);
    let agent = FakeAgent::new(vec![
        ("/endpoint", 200, list),
        ("/endpoint/135", 200, endpoint(135, "10.244.57.201", "", &["k8s:app=p1"])),
        (
            "/endpoint/pod-name:default%2Fp1/healthz",
            200,
            json!({"bpf":"OK","connected":true,"overallHealth":"OK","policy":"Bootstrap"}),
        ),
        (
            "/endpoint/135/log",
            200,
            json!([{"code":"OK","message":"Set identity","state":"ready","timestamp":"2026-11-21T12:10:42Z"}]),
        ),
        (
            "/endpoint/135/labels",
            200,
            json!({"spec":{"user":["k8s:x=y"]},"status":{"security-relevant":["k8s:app=p1"],"disabled":["k8s:b"]}}),
        ),
        (
            "/endpoint/135/config",
            200,
            json!({"realized":{"options":{"Debug":"Disabled","MonitorAggregationLevel":"None"}}}),
        ),
    ]);
    insta::assert_snapshot!("endpoint-list", agent.run("endpoint list"));
    insta::assert_snapshot!("endpoint-health", agent.run("endpoint health pod-name:default/p1"));
    insta::assert_snapshot!("endpoint-log", agent.run("endpoint log 135"));
    insta::assert_snapshot!("endpoint-labels", agent.run("endpoint labels 135"));
    insta::assert_snapshot!("endpoint-config", agent.run("endpoint config 135"));
    assert_eq!(
        agent.run("endpoint get 135 -o jsonpath={[0].status.networking.addressing[0].ipv4}"),
        "10.244.57.201\n"
    );
    assert_eq!(agent.run("endpoint list -o jsonpath={[*].id}"), "7 135 2386\n");
    assert_eq!(agent.run("endpoint get 9"), "Error: cannot get endpoint 9: status 404\n[exit code 1]\n");

    agent.requests();
    agent.run("endpoint labels 135 --add k8s:new=1 --delete k8s:x=y");
    assert!(agent.requests().contains(&r#"PATCH /endpoint/135/labels {"user":["k8s:new=1"]}"#.to_owned()));
    agent.run("endpoint config 135 Debug=true");
    assert!(
        agent.requests().contains(&r#"PATCH /endpoint/135/config {"options":{"Debug":"true"}}"#.to_owned())
    );
    assert_eq!(agent.run("endpoint disconnect 135"), "Successfully disconnected endpoint 135\n");
    assert_eq!(agent.requests(), ["DELETE /endpoint/135"]);
}

fn healthz(state: &str) -> Value {
    json!({
        "attach-mode": "tcx",
        "bandwidth-manager": {"devices": null},
        "bpf-maps": {"dynamic-size-ratio": 0.0025, "maps": [{"name": "Endpoints", "size": 65535}, {"name": "IP cache", "size": 512_000}]},
        "cilium": {"msg": "1.20.0-dev", "state": state},
        "cluster": {"ciliumHealth": {"state": "Ok"}, "nodes": null, "self": "n1"},
        "cni-chaining": {"mode": "none"},
        "cni-file": {"msg": "CNI configuration management disabled", "state": "Disabled"},
        "clock-source": {"mode": "ktime"},
        "controllers": [
            {"name": "good", "status": {"last-success-timestamp": "0001-01-01T00:00:00.000Z", "success-count": 1}},
            {"name": "bad", "status": {"consecutive-failure-count": 2, "last-failure-msg": "no route"}},
        ],
        "datapath-mode": "veth",
        "encryption": {"mode": "Disabled"},
        "host-firewall": {"devices": ["ext0"], "mode": "Disabled"},
        "identity-range": {"max-identity": 65535, "min-identity": 256},
        "ipam": {"allocations": {"10.0.0.2": "default/p1", "10.0.0.1": "router"}, "status": "IPv4: 2/254 allocated from 10.0.0.0/24, "},
        "kubernetes": {"k8s-api-versions": null, "state": "Disabled"},
        "masquerading": {"enabled": true, "enabledProtocols": {"ipv4": true}, "mode": "iptables"},
        "nodeMonitor": {"cpus": 2, "npages": 64, "pagesize": 4096},
        "proxy": {"envoy-deployment-mode": "embedded", "ip": "10.0.0.1", "port-range": "10000-20000", "redirects": null},
        "routing": {"inter-host-routing-mode": "Tunnel", "intra-host-routing-mode": "Legacy", "tunnel-protocol": "vxlan"},
        "srv6": {"srv6EncapMode": "reduced"},
    })
}

#[test]
fn status() {
    let agent = FakeAgent::new(vec![("/healthz", 200, healthz("Ok"))]);
    insta::assert_snapshot!("status", agent.run("status"));
    insta::assert_snapshot!("status-verbose", agent.run("status --verbose"));
    assert_eq!(agent.run("status --brief"), "error in controller bad: no route\n");
    assert_eq!(agent.run("status -o jsonpath={.cilium.state}"), "Ok\n");

    let agent = FakeAgent::new(vec![("/healthz", 200, healthz("Failure"))]);
    assert_eq!(agent.run("status --brief"), "error in cilium: 1.20.0-dev\n[exit code 1]\n");
    assert!(agent.run("status").ends_with("[exit code 1]\n"));
}

#[test]
fn health_between_nodes() {
    let check = |latency: u64| json!({"lastProbed": "2026-11-21T12:10:32Z", "latency": latency});
    let failed = json!({"lastProbed": "2026-11-21T12:10:32Z", "status": "Connection timed out"});
    let node = |name: &str, ip: &str, icmp: Value, http: Value| {
        let path = json!({"http": http, "icmp": icmp, "ip": ip});
        let host = json!({"primary-address": path, "secondary-addresses": []});
        json!({"health-endpoint": {"secondary-addresses": []}, "host": host, "name": name})
    };
    let nodes = [
        node("n0", "192.0.2.9", failed, check(300_000)),
        node("n1", "192.0.2.1", check(315_254), check(368_579)),
    ];
    let status = json!({
        "local": {"name": "n1"}, "nodes": nodes, "probeInterval": "1m5.9s", "timestamp": "2026-11-21T12:10:32Z",
    });
    let load = json!({"last15min": "2.26", "last1min": "0.77", "last5min": "1.59"});
    let health = json!({"cilium": healthz("Ok"), "system-load": load, "uptime": "27.9s"});
    // The prefix of the other API is cut off up to its version: `/v1beta` is `beta`.
    let agent = FakeAgent::new(vec![
        ("beta/status", 200, status.clone()),
        ("beta/status/probe", 200, status),
        ("beta/healthz", 200, health),
    ]);
    let run = |words: &str| agent.run(&format!("--host {} health {words}", agent.socket().display()));
    let line = |cells: [&str; 4]| format!("{:<19}{:<16}{:<25}{}\n", cells[0], cells[1], cells[2], cells[3]);
    let lines = [
        ["Cluster health:", "1/2 reachable", "(2026-11-21T12:10:32Z)", "(Probe interval: 1m5.9s)"],
        ["Name", "IP", "Node", "Endpoints"],
        ["  n1 (localhost)", "192.0.2.1", "1/1", "0/0"],
        ["  n0", "192.0.2.9", "0/1", "0/0"],
    ];
    assert_eq!(run("status --probe"), lines.map(line).concat());
    assert_eq!(agent.requests(), ["PUT beta/status/probe"]);
    let lines = run("status --verbose");
    assert!(
        lines.contains("OK, RTT=315.254\u{b5}s   (Last probed: 20")
            && lines.contains("timed out   (Last probed: 20"),
        "{lines}"
    );
    assert_eq!(run("status -o jsonpath={.local.name}"), "n1\n");
    assert_eq!(run("ping"), "OK\n");
    let lines = run("get");
    assert!(lines.contains(" 0.77 1.59 2.26\n") && lines.contains("Cilium:"), "{lines}");
    let gone = agent.run("--host /nonexistent/health.sock health ping");
    assert!(gone.starts_with("Error: dial unix:///nonexistent/health.sock: "), "{gone}");
    assert!(gone.ends_with("[exit code 1]\n"), "{gone}");
}

#[test]
fn inventories() {
    let agent = FakeAgent::new(vec![
        (
            "/ip",
            200,
            json!([
                {"cidr": "fd00::5/128", "identity": 5},
                {"cidr": "10.244.183.160/32", "hostIP": "10.99.0.1", "identity": 6592, "metadata": {"name": "p1", "source": "k8s"}},
                {"cidr": "0.0.0.0/0", "identity": 2},
                {"cidr": "9.0.0.1/32", "identity": 77},
            ]),
        ),
        ("/identity/6592", 200, json!({"id": 6592, "labels": ["k8s:app=p1", "k8s:ns=default"]})),
        (
            "/identity",
            200,
            json!([{"id": 6592, "labels": ["k8s:b", "k8s:a"]}, {"id": 1, "labels": ["reserved:host"]}]),
        ),
        (
            "/cluster/nodes",
            200,
            json!({"nodes-added": [{"name": "n1", "primary-address": {"ipv4": {"alloc-range": "10.244.0.0/16", "enabled": true, "ip": "10.99.0.1"}, "ipv6": {}}, "source": "local"}], "self": "n1"}),
        ),
        (
            "/map",
            200,
            json!({"maps": [
                {"cache": [{"desired-action": "sync", "key": "a", "value": "b", "last-error": "x"}], "path": "/sys/fs/bpf/tc/globals/cilium_lxc"},
                {"cache": null, "path": "/sys/fs/bpf/tc/globals/cilium_metrics"},
            ]}),
        ),
        (
            "/map/cilium_lxc",
            200,
            json!({"cache": [{"desired-action": "sync", "key": "10.0.0.1:0", "value": "(localhost)"}], "path": "/x/cilium_lxc"}),
        ),
    ]);
    insta::assert_snapshot!("ip-list", agent.run("ip list"));
    insta::assert_snapshot!("ip-list-verbose-numeric", agent.run("ip list -v -n"));
    insta::assert_snapshot!("identity-list", agent.run("identity list"));
    insta::assert_snapshot!("node-list", agent.run("node list"));
    insta::assert_snapshot!("map-list", agent.run("map list"));
    insta::assert_snapshot!("map-get", agent.run("map get cilium_lxc"));
    insta::assert_snapshot!("node-list-json", agent.run("node list -o json"));
}

#[test]
fn services() {
    let backend = |ip: &str, state: &str| json!({"ip": ip, "port": 8080, "protocol": "TCP", "state": state, "preferred": state == "active"});
    let service = |id: u16, ip: &str, scope: &str, backends: Vec<Value>| {
        let spec = json!({"id": id, "backend-addresses": backends, "flags": {"type": "ClusterIP", "name": "web"},
            "frontend-address": {"ip": ip, "port": 80, "protocol": "TCP", "scope": scope}});
        json!({"spec": spec, "status": {"realized": spec}})
    };
    let list = json!([
        service(12, "fd10::1", "internal", vec![]),
        service(
            3,
            "10.96.0.1",
            "external",
            vec![backend("10.0.0.1", "active"), backend("10.0.0.2", "terminating")]
        ),
    ]);
    let agent = FakeAgent::new(vec![("/service", 200, list)]);
    let expected = [
        "ID   Frontend             Service Type   Backend",
        "3    10.96.0.1:80/TCP     ClusterIP      1 => 10.0.0.1:8080/TCP (active)",
        "                                         2 => 10.0.0.2:8080/TCP (terminating)",
        "12   [fd10::1]:80/TCP/i   ClusterIP",
        "",
    ];
    assert_eq!(agent.run("service list"), expected.join("\n"));
    assert!(agent.run("service get 3").contains("2 => 10.0.0.2:8080/TCP (terminating)"));
    assert_eq!(agent.run("service get 3 -o jsonpath={.spec.flags.name}"), "web\n");
    assert!(agent.run("service list --clustermesh-affinity").contains("(active) (preferred)\n"));
    assert_eq!(agent.run("service get 4"), "Error: there is no service 4\n[exit code 1]\n");
}

#[test]
fn services_of_each_type_are_listed() {
    let service = |id: u16, kind: &str, cluster: &str| {
        let spec = json!({"id": id, "backend-addresses": [], "flags": {"type": kind, "cluster": cluster},
            "frontend-address": {"ip": "10.96.0.1", "port": 80 + id, "protocol": "TCP", "scope": "external"}});
        json!({"spec": spec, "status": {"realized": spec}})
    };
    let list =
        json!([service(1, "NodePort", ""), service(2, "ClusterIP", "far"), service(3, "HostPort", "")]);
    let agent = FakeAgent::new(vec![("/service", 200, list)]);
    let expected = [
        "ID   Frontend           Service Type         Backend",
        "1    10.96.0.1:81/TCP   NodePort",
        "2    10.96.0.1:82/TCP   ClusterIP (Remote)",
        "3    10.96.0.1:83/TCP   HostPort",
        "",
    ];
    assert_eq!(agent.run("service list"), expected.join("\n"));
    assert_eq!(agent.run("service list -o jsonpath={[*].spec.id}"), "1 2 3\n");
}

#[test]
fn policy_and_its_selectors() {
    let rules = |name: &str| {
        json!([[
            {"key": "io.cilium.k8s.policy.name", "source": "k8s", "value": name},
            {"key": "io.cilium.k8s.policy.namespace", "source": "k8s", "value": "default"},
        ]])
    };
    let agent = FakeAgent::new(vec![
        ("/policy", 200, json!({"policy": "[\n  {}\n]", "revision": 7})),
        (
            "/policy/selectors",
            200,
            json!([
                {"identities": [6592, 51071], "labels": rules("web"), "selector": "&LabelSelector{any:app: p1}", "users": 1},
                {"identities": null, "labels": [], "selector": "cidr:192.0.2.0/24", "users": 2},
            ]),
        ),
        (
            "/policy/subject-selectors",
            200,
            json!([{"identities": [1], "labels": rules("a"), "selector": "s", "users": 1}]),
        ),
    ]);
    assert_eq!(agent.run("policy get"), "[\n  {}\n]\nRevision: 7\n");
    assert_eq!(agent.run("policy get -o jsonpath={.revision}"), "7\n");
    assert_eq!(agent.run("policy get -o yaml"), "policy: |-\n  [\n    {}\n  ]\nrevision: 7\n");
    insta::assert_snapshot!("policy-selectors", agent.run("policy selectors"));
    insta::assert_snapshot!("policy-selectors-verbose", agent.run("policy selectors -v"));
    insta::assert_snapshot!("policy-subject-selectors", agent.run("policy subject-selectors -o yaml"));
}

#[test]
fn waiting_for_a_policy_revision() {
    let with = |state: &str, revision: i64| {
        let mut endpoint = endpoint(7, "10.0.0.1", "", &[]);
        endpoint["status"]["policy"]["realized"]["policy-revision"] = revision.into();
        endpoint["status"]["state"] = state.into();
        endpoint
    };
    let agent = |endpoints: Value| FakeAgent::new(vec![("/endpoint", 200, endpoints)]);
    assert_eq!(agent(json!([with("ready", 5), with("disconnecting", 0)])).run("policy wait 5"), "");
    let late = agent(json!([with("ready", 5), with("ready", 4)])).run("policy wait 5 --max-wait-time 0");
    let text = "Error: policy revision 5 is not everywhere after 0 s: 1 of 2 endpoints have it, 0 failed\n[exit code 1]\n";
    assert_eq!(late, text);
    let failed = agent(json!([with("not-ready", 5)])).run("policy wait 5 --fail-wait-time 0");
    assert!(failed.contains("0 of 1 endpoints have it, 1 failed"), "{failed}");
}

#[test]
fn why_reports_verdict_and_rule() {
    let party = |name: &str, pod: Value, endpoint: Value, identity: u32| json!({"name": name, "pod": pod, "endpoint": endpoint, "addresses": ["10.0.0.1"], "identity": identity, "labels": ["k8s:app=a"]});
    let denied = json!({
        "source": party("10.0.0.1", Value::Null, Value::Null, 2),
        "destination": party("8", json!("default/b"), json!(8), 300),
        "protocol": "TCP", "port": 80, "allowed": false, "egress": null,
        "ingress": {
            "endpoint": 8, "allowed": false, "drop": {"code": 181, "text": "Policy denied by denylist"},
            "reason": "a rule denies it", "enforced": true,
            "rules": [{"object": "cnp/default/web", "origins": ["web.yaml, document 2"], "path": "spec.ingressDeny[0]",
                       "action": "deny", "selector": "reserved:world", "labels": []}],
            "entry": {"identity": 2, "protocol": "TCP", "first_port": 80, "last_port": 81, "deny": true, "precedence": 4294967295_u32},
            "revision": 3, "wanted_revision": 4, "differs": false,
        },
    });
    let allowed = json!({
        "source": party("a/b", json!("a/b"), json!(7), 299),
        "destination": party("10.0.0.9", json!("default/c"), Value::Null, 301),
        "protocol": "TCP", "port": 8080, "allowed": true, "ingress": null,
        "egress": {
            "endpoint": 7, "allowed": true, "drop": null, "reason": "policy is not enforced in this direction",
            "enforced": false, "rules": [], "revision": 3, "wanted_revision": 3, "differs": false,
            "entry": {"identity": 0, "protocol": "ANY", "first_port": 0, "last_port": 65535, "deny": false, "precedence": 1},
        },
    });
    let service = |ip: &str, backends: &[(&str, &str)]| {
        let backend =
            |(ip, state): &(&str, &str)| json!({"ip": ip, "port": 8080, "protocol": "TCP", "state": state});
        json!({"status": {"realized": {
            "id": 1, "flags": {"name": "web", "namespace": "shop"},
            "frontend-address": {"ip": ip, "port": 80, "protocol": "TCP", "scope": "external"},
            "backend-addresses": backends.iter().map(backend).collect::<Vec<_>>(),
        }}})
    };
    let agent = FakeAgent::new(vec![
        ("/apiary/why?src=10.0.0.1&dst=8&port=80&protocol=tcp", 200, denied),
        (
            "/service",
            200,
            json!([
                service("10.96.0.1", &[("10.0.0.1", "terminating"), ("10.0.0.9", "active")]),
                service("10.96.0.2", &[])
            ]),
        ),
        ("/apiary/why?src=a%2Fb&dst=10.0.0.9&port=8080&protocol=tcp", 200, allowed),
        ("/apiary/why?src=x%2Fy&dst=8&port=0&protocol=icmp", 404, json!("nothing is known of 'x/y'")),
    ]);
    insta::assert_snapshot!("why-denied", agent.run("why 10.0.0.1 8 80/TCP"));
    assert_eq!(
        agent.run("why 10.0.0.1 8 80/TCP -o jsonpath={.ingress.rules[0].path}"),
        "spec.ingressDeny[0]\n[exit code 2]\n"
    );
    insta::assert_snapshot!("why-service", agent.run("why a/b 10.96.0.1 80/TCP"));
    assert_eq!(
        agent.run("why a/b 10.96.0.2 80/TCP"),
        "10.96.0.2:80/TCP is service shop/web, which has no active backend\nDENIED: a/b -> 10.96.0.2:80/TCP\n  \
         drop: Service backend not found (158)\n[exit code 2]\n"
    );
    assert_eq!(
        agent.run("why x/y 8 0/ICMP"),
        "Error: status 404: nothing is known of 'x/y'\n[exit code 1]\n"
    );
}

#[test]
fn tables_as_they_are() {
    let agent = FakeAgent::new(vec![
        ("/statedb/dump", 200, json!({"a": [{"x": 1}], "b": []})),
        ("/statedb/dump/a", 200, json!({"a": [{"x": 1}]})),
        ("/statedb/dump/c", 200, json!({})),
    ]);
    assert_eq!(agent.run("statedb").trim(), r#"{"a":[{"x":1}],"b":[]}"#);
    assert_eq!(agent.run("statedb a -o jsonpath={.a[0].x}"), "1\n");
    assert_eq!(agent.run("statedb a -o yaml"), "a:\n- x: 1\n");
    assert_eq!(agent.run("statedb c"), "Error: there is no table c\n[exit code 1]\n");
}

#[test]
fn labels_and_prefixes_select() {
    let agent = FakeAgent::new(vec![
        ("/ip?cidr=10.0.0.1%2F32", 200, json!([{"cidr": "10.0.0.1/32", "identity": 2}])),
        ("/ip", 200, json!([{"cidr": "fd00::1/128", "identity": 1}])),
        ("/identity", 200, json!([{"id": 300, "labels": ["k8s:app=a"]}])),
        (
            "/identity/endpoints",
            200,
            json!([{"identity": {"id": 300, "labels": ["k8s:b=c", "k8s:app=a"]}, "refCount": 2}]),
        ),
    ]);
    let of_endpoints = "ID    LABELS      REFCOUNT\n300   k8s:app=a   2\n      k8s:b=c\n";
    assert_eq!(agent.run("identity list --endpoints"), of_endpoints);
    assert_eq!(agent.run("identity list k8s:app=a"), "ID    LABELS\n300   k8s:app=a\n");
    let of_labels = "===========================\nLabels:\n    reserved:host\n===========================\n\
        IP            HOST   IDENTITY   POD   NAMESPACE\nfd00::1/128          1\n";
    assert_eq!(agent.run("ip get --labels reserved:host"), of_labels);
    agent.requests();
    assert_eq!(agent.run("ip get 10.0.0.1 -o jsonpath={[*].cidr}"), "10.0.0.1/32\n");
    assert_eq!(agent.run("ip get -l reserved:host -o jsonpath={[*].cidr}"), "fd00::1/128\n");
    assert_eq!(agent.run("identity get --label k8s:app=a -o jsonpath={[*].id}"), "300\n");
    let sent = agent.requests();
    assert_eq!(sent[1..], [r#"GET /ip ["reserved:host"]"#, r#"GET /identity ["k8s:app=a"]"#]);
    assert!(
        agent.run("ip get 10.0.0.2").starts_with("Error: cannot get ipcache entries of 10.0.0.2: not found")
    );
}

#[test]
fn config_and_version() {
    let config = json!({"status": {
        "daemonConfigurationMap": {"EnableIPv4": true, "Devices": ["ext0", "ext1"], "HiveConfig": {"StartTimeout": 5}},
        "nodeMonitor": {"npages": 64},
        "realized": {"options": {"Debug": "Disabled", "MonitorAggregationLevel": "None"}, "policy-enforcement": "default"},
    }});
    let agent = FakeAgent::new(vec![
        ("/config", 200, config),
        (
            "/debuginfo",
            200,
            json!({"cilium-version": "1.20.0 abcdef 2026-06-01T00:00:00+00:00 go version go1.26 linux/amd64"}),
        ),
    ]);
    insta::assert_snapshot!("config", agent.run("config"));
    insta::assert_snapshot!("config-all", agent.run("config --all"));
    assert_eq!(agent.run("config get enableipv4"), "true\n");
    assert_eq!(agent.run("config get StartTimeout -o json"), "5\n");
    assert_eq!(agent.run("config get nothing"), "Error: key nothing does not exist\n[exit code 1]\n");
    agent.requests();
    assert_eq!(agent.run("config Debug=Enabled PolicyEnforcement=always"), "");
    let sent = r#"PATCH /config {"options":{"Debug":"Enabled"},"policy-enforcement":"always"}"#;
    assert_eq!(agent.requests(), ["GET /config", sent]);
    let improper = "Error: improper configuration format \"Debug\", want OPTION=VALUE\n[exit code 1]\n";
    assert_eq!(agent.run("config Debug"), improper);
    assert!(agent.run("config --list-options").starts_with("Debug                    Enable debugging "));
    let pages = "Error: the ring of events has 64 pages, which does not change\n[exit code 1]\n";
    assert_eq!((agent.run("config -n 64"), agent.run("config -n 8").as_str()), (agent.run("config"), pages));
    let daemon = "{.Daemon.Version}/{.Daemon.AuthorDate}/{.Daemon.GoRuntimeVersion}/{.Daemon.Arch}";
    let expected = "1.20.0/2026-06-01T00:00:00+00:00/go1.26/linux/amd64\n";
    assert_eq!(agent.run(&format!("-D --log-driver=syslog version -o jsonpath={daemon}")), expected);
}

#[test]
fn an_agent_that_does_not_answer_ends_the_status_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let answer = run(&path, "status --timeout 50ms");
    assert!(answer.starts_with("Error: ") && answer.ends_with("[exit code 1]\n"), "{answer}");
}

#[test]
fn bad_input_and_an_unreachable_agent() {
    let nowhere = Path::new("/nonexistent/agent.sock");
    let mut output = String::new();
    for line in [
        "endpoint list",
        "status",
        "status --brief",
        "endpoint",
        "endpont list",
        "endpoint list -o xml",
        "endpoint list -o jsonpath={.x",
        "endpoint get",
        "bpf ipcache get 10.0.0",
    ] {
        output += &format!("## {line}\n{}", run(nowhere, line));
    }
    insta::assert_snapshot!("bad-input", output);
}

#[test]
fn it_answers_by_the_name_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("cilium-dbg");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_apiary"), &link).unwrap();
    let help = Command::new(&link).arg("--help").output().unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8(help.stdout).unwrap().contains("Usage: cilium-dbg"));

    let script = Command::new(&link).args(["completion", "bash"]).output().unwrap().stdout;
    let script = String::from_utf8(script).unwrap() + "\nCOMP_WORDS=(cilium-dbg endp); COMP_CWORD=1\n";
    let script = script
        + "set -- $(complete -p cilium-dbg); ${@: -2:1} cilium-dbg endp cilium-dbg; echo \"${COMPREPLY[@]}\"";
    let file = folder.path().join("completion");
    std::fs::write(&file, script).unwrap();
    let completed = Command::new("bash").arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&completed.stdout), "endpoint\n", "{completed:?}");

    let link = folder.path().join("hubble");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_apiary"), &link).unwrap();
    let server = format!("unix://{}", folder.path().join("missing.sock").display());
    let status = Command::new(&link).args(["status", "--server", &server]).output().unwrap();
    let error = String::from_utf8(status.stderr).unwrap();
    assert!(!status.status.success() && error.contains("enable-hubble"), "{error}");
}

#[test]
fn features_and_what_scripts_ask_of_them() {
    let agent = FakeAgent::new(vec![
        ("/healthz", 200, json!({"encryption": {"mode": "Disabled"}})),
        ("/bgp/peers", 501, json!("BGP control plane is disabled")),
        ("/prefilter", 500, json!("prefilter is not enabled in daemon")),
        (
            "/node/ids",
            200,
            json!([{"id": 7, "ips": ["10.0.0.2", "fd00::2"]}, {"id": 0, "ips": ["10.0.0.1"]}]),
        ),
        (
            "/cgroup-dump-metadata",
            200,
            json!({"pod-metadatas": [{"name": "a", "namespace": "x", "ips": null,
                "containers": [{"cgroup-id": 5, "cgroup-path": "/p"}, {"cgroup-id": 6, "cgroup-path": "/q"}]}]}),
        ),
        (
            "/map/cilium_lxc/events?follow=false",
            200,
            json!({"key": "a", "value": "b\"", "action": "update",
            "timestamp": "2026-11-21T12:10:29.950Z", "desired-action": "sync", "last-error": ""}),
        ),
        ("/debuginfo", 200, json!({"cilium-version": "1.20.0"})),
    ]);
    for (line, expected) in [
        ("encrypt status", "Encryption: Disabled\n"),
        ("encrypt status -o jsonpath={.mode}", "Disabled\n"),
        ("bgp peers", "BGP Control Plane is disabled\n"),
        (
            "prefilter list",
            "Error: cannot get CIDR list: status 500: prefilter is not enabled in daemon\n[exit code 1]\n",
        ),
        (
            "nodeid list",
            "NODE ID   IP ADDRESSES   SPI\n0x0       10.0.0.1\n0x7       10.0.0.2\n          fd00::2\n",
        ),
        (
            "cgroups list",
            "POD NAME   POD NAMESPACE   CGROUP IDS\na          x               5\n                           6\n",
        ),
        (
            "map events cilium_lxc",
            "key=\"a\" value=\"b\\\"\" time=2026-11-21T12:10:29.950Z action=update desiredState=sync lastError=\"\"\n",
        ),
        ("map events cilium_none", "Error: the agent keeps no events of map cilium_none\n[exit code 1]\n"),
        ("debuginfo --output=json", "{\n  \"cilium-version\": \"1.20.0\"\n}\n"),
    ] {
        assert_eq!(agent.run(line), expected, "{line}");
    }
}

#[test]
fn envoys_answers_and_features_that_are_absent() {
    let information = json!({"version": "abc/1.35.3/Clean/RELEASE/BoringSSL", "state": "LIVE"});
    let envoy = FakeAgent::new(vec![("/server_info", 200, information)]);
    let admin = |verb: &str| {
        run(Path::new("/none"), &format!("envoy admin {verb} --socket {}", envoy.socket().display()))
    };
    assert_eq!(admin("version"), "abc/1.35.3/Clean/RELEASE/BoringSSL\n");
    assert!(admin("server-info").contains("\"state\":\"LIVE\""), "{}", admin("server-info"));
    assert!(admin("clusters").ends_with("[exit code 1]\n"), "404");
    let silent = run(Path::new("/none"), "envoy admin certs --socket /none/admin.sock");
    assert!(silent.contains("dial unix:///none/admin.sock"), "{silent}");

    for (line, feature) in [
        ("kvstore get cilium/state --recursive -o json", "kvstore"),
        ("troubleshoot kvstore", "kvstore"),
        ("troubleshoot clustermesh --include-local", "cluster mesh"),
        ("encrypt dump-xfrm", "IPsec"),
        ("encrypt flush --force", "IPsec"),
    ] {
        let refused = run(Path::new("/none"), line);
        assert!(refused.starts_with(&format!("Error: {feature}: this agent ")), "{line}: {refused}");
        assert!(refused.ends_with("[exit code 1]\n"), "{line}: {refused}");
    }
    let load = run(Path::new("/none"), "loadinfo");
    assert!(load.starts_with("Load 1-min: ") && load.contains("\nMemory: Total: "), "{load}");
}

#[test]
fn senders_that_are_dropped() {
    let spec = json!({"deny": ["192.0.2.0/24", "2001:db8::1/128"], "revision": 3});
    let agent =
        FakeAgent::new(vec![("/prefilter", 200, json!({"spec": spec, "status": {"realized": spec}}))]);
    assert_eq!(agent.run("prefilter list"), "Revision: 3\n192.0.2.0/24\n2001:db8::1/128\n");
    assert_eq!(agent.run("prefilter list -o jsonpath={.spec.revision}"), "3\n");
    agent.requests();
    for (line, method) in [("update", "PATCH"), ("delete", "DELETE")] {
        let line = format!("prefilter {line} --revision 3 --cidr 192.0.2.0/24,2001:db8::/32");
        assert_eq!(agent.run(&line), "");
        let expected = r#"/prefilter {"deny":["192.0.2.0/24","2001:db8::/32"],"revision":3}"#;
        assert_eq!(agent.requests(), [format!("{method} {expected}")]);
    }
}

#[test]
fn names_and_their_addresses() {
    let row = json!({"fqdn": "db.example.", "ips": ["192.0.2.1", "2001:db8::1"], "ttl": 60, "source": "lookup",
        "lookup-time": "2026-11-21T12:10:29.950Z", "expiration-time": "2026-11-21T12:11:29.950Z", "endpoint-id": 7});
    let agent = FakeAgent::new(vec![
        ("/fqdn/cache", 200, json!([row])),
        ("/fqdn/cache/7?matchpattern=%2A.example&source=lookup", 200, json!([row])),
        ("/fqdn/names", 200, json!({"DNSPollNames": null, "FQDNPolicySelectors": []})),
    ]);
    let table = "\
Endpoint   Source   FQDN          TTL   ExpirationTime             IPs
7          lookup   db.example.   60    2026-11-21T12:11:29.950Z   192.0.2.1,2001:db8::1
";
    assert_eq!(agent.run("fqdn cache list"), table);
    assert_eq!(agent.run("fqdn cache list -e 7 -p *.example -s lookup"), table);
    assert_eq!(agent.run("fqdn cache list -o jsonpath={[0].fqdn}"), "db.example.\n");
    assert!(agent.run("fqdn names").contains("FQDNPolicySelectors"));
    assert_eq!(agent.run("fqdn cache list -e 8").lines().count(), 1, "an endpoint without names");
    agent.requests();
    // Without an answer to the question nothing is removed.
    assert!(agent.run("fqdn cache clean").contains("Nothing is removed"));
    assert_eq!(agent.requests(), [""; 0]);
    assert_eq!(agent.run("fqdn cache clean -f -p *.example"), "FQDN proxy cache cleared\n");
    assert_eq!(agent.requests(), ["DELETE /fqdn/cache?matchpattern=%2A.example"]);
}

#[test]
fn an_interrupted_sysdump_leaves_nothing() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        // An agent that accepts requests and never answers: commands run until they are killed.
        let socket = folder.path().join("silent.sock");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let tmp = folder.path().join("tmp");
        std::fs::create_dir(&tmp).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_apiary"))
            .env("CILIUM_SOCK", &socket)
            .args(["sysdump", "--exec-timeout=600s", "--state-dir=/nonexistent", "--tmp"])
            .arg(&tmp)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let entries = || tmp.read_dir().unwrap().count();
        test_kit::wait_until("the temporary folder", std::time::Duration::from_secs(30), || entries() == 1);
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        assert_eq!(entries(), 0, "{signal}");
    }
}

/// Runs it by the name that Cilium's command line uses, against an agent that knows one endpoint.
#[test]
fn sysdump_makes_one_archive() {
    let agent = FakeAgent::new(vec![(
        "/endpoint",
        200,
        json!([endpoint(12, "10.0.0.7", "fd00::7", &["k8s:app=x"])]),
    )]);
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("cilium-bugtool");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_apiary"), &link).unwrap();
    let state = folder.path().join("state/12");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("ep_config.json"), "{\"ID\":12}\n").unwrap();
    let tmp = folder.path().join("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&link);
        command.env("CILIUM_SOCK", agent.socket()).arg("--state-dir").arg(state.parent().unwrap());
        command
            .args(["--exec-timeout=2s", "--parallel-workers=8", "--tmp"])
            .arg(&tmp)
            .args(words)
            .output()
            .unwrap()
    };
    let output = run(&["--archiveType=gz", "--archive-prefix=cilium-x"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let path = errors.lines().find_map(|line| line.strip_prefix("GZIP at ")).unwrap();
    let name = Path::new(path).file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("cilium-x-cilium-bugtool-20"), "{name}");
    let left: Vec<_> = tmp.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [name], "nothing but the archive is left");

    let file = std::fs::File::open(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut texts = std::collections::BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        // Cilium's command line strips the first folder.
        let below = entry.path().unwrap().iter().skip(1).collect::<PathBuf>();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        texts.insert(below.to_str().unwrap().to_owned(), text);
    }
    let list = &texts["cmd/cilium-dbg-endpoint-list.md"];
    assert!(list.contains("IDENTITY") && list.contains("10.0.0."), "{list}");
    assert_eq!(texts["state/12/ep_config.json"], "{\"ID\":12}\n");
    assert!(texts["cmd/uname--a.md"].contains("Linux"));
    let summary = &texts["summary.tsv"];
    let result = |item: &str| {
        let line = summary.lines().find(|line| line.starts_with(&format!("{item}\t"))).unwrap();
        line.split('\t').nth(1).unwrap().to_owned()
    };
    assert_eq!(result("cilium-dbg endpoint list"), "ok");
    assert_eq!(result("cilium-dbg service list"), "exit status: 1", "what fails does not end it");

    let output = run(&["--archive=false"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    let path = errors.lines().find_map(|line| line.strip_prefix("DIRECTORY at ")).unwrap();
    assert!(Path::new(path).join("summary.tsv").is_file());
    let dry = String::from_utf8(run(&["--dry-run"]).stdout).unwrap();
    assert!(dry.contains("\ncilium-dbg bpf lb list --backends\n"), "{dry}");
    let wrong = run(&["--archiveType=zip"]);
    assert!(
        !wrong.status.success()
            && String::from_utf8_lossy(&wrong.stderr).contains("[possible values: tar, gz]")
    );
    let nowhere = run(&["--tmp", "/nonexistent"]);
    assert!(!nowhere.status.success());
}

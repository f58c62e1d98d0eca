//! Manifests with faults and hostile files in the cluster folder: each is reported with the place of the fault, all others apply.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use integration_tests::Node;
use serde_json::{Value, json};
use test_kit::require_root;

/// A step into a manifest.
#[derive(Clone)]
enum Step {
    Member(String),
    Item(usize),
}

/// Formats a path as in fault reports.
fn text(path: &[Step]) -> String {
    path.iter().fold(String::new(), |text, step| match step {
        Step::Member(name) if text.is_empty() => name.clone(),
        Step::Member(name) => format!("{text}.{name}"),
        Step::Item(at) => format!("{text}[{at}]"),
    })
}

/// Returns the paths of all fields of a manifest.
fn fields(value: &Value, path: &[Step]) -> Vec<Vec<Step>> {
    let below: Vec<(Step, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, v)| (Step::Member(name.clone()), v)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, v)| (Step::Item(at), v)).collect(),
        _ => Vec::new(),
    };
    below
        .into_iter()
        .flat_map(|(step, value)| {
            let path = [path, &[step]].concat();
            [vec![path.clone()], fields(value, &path)].concat()
        })
        .collect()
}

fn at<'v>(value: &'v mut Value, path: &[Step]) -> &'v mut Value {
    path.iter().fold(value, |value, step| match step {
        Step::Member(name) => &mut value[name],
        Step::Item(at) => &mut value[at],
    })
}

/// Returns variants of the manifest with one invalid field: of another type, name, or an impossible value; each with
/// the path at, above or below which the fault must be reported.
fn wrong_manifests(good: &Value) -> Vec<(String, Value)> {
    let mut wrong = Vec::new();
    for path in fields(good, &[]) {
        let (last, parent) = path.split_last().unwrap();
        let mut changed = good.clone();
        let field = at(&mut changed, &path);
        *field = match field {
            Value::String(_) => json!({"wrong": 1}),
            Value::Number(_) => json!("many"),
            Value::Bool(_) => json!("perhaps"),
            _ => json!("wrong"),
        };
        wrong.push((text(&path), changed));
        let free =
            matches!(parent.last(), Some(Step::Member(name)) if name == "matchLabels" || name == "labels");
        if let Step::Member(name) = last
            && !free
        {
            let mut changed = good.clone();
            let members = at(&mut changed, parent).as_object_mut().unwrap();
            let value = members.remove(name).unwrap();
            members.insert(format!("{name}X"), value);
            wrong.push((text(parent), changed));
        }
        let mut changed = good.clone();
        if let field @ Value::String(_) = at(&mut changed, &path) {
            *field = json!("?!");
            wrong.push((text(&path), changed));
        }
    }
    wrong
}

/// Returns the paths of the faults of each file, from the readers of manifests and of rules.
fn reported_faults(node: &Node) -> BTreeMap<String, Vec<String>> {
    let mut reported: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in node.get("/statedb/dump/k8s-sources")["k8s-sources"].as_array().unwrap() {
        for fault in row["faults"].as_array().unwrap() {
            let path = fault["path"].as_str().unwrap().to_owned();
            reported.entry(row["file"].as_str().unwrap().to_owned()).or_default().push(path);
        }
    }
    for row in node.get("/statedb/dump/policies")["policies"].as_array().unwrap() {
        let file = row["Origin"].as_str().unwrap().split(',').next().unwrap().to_owned();
        for problem in row["Problems"].as_array().unwrap() {
            let path = problem.as_str().unwrap().split(": ").next().unwrap().to_owned();
            reported.entry(file.clone()).or_default().push(path);
        }
    }
    reported
}

#[test]
fn every_wrong_field_of_a_manifest_is_refused_with_its_path() {
    require_root!();
    let node = Node::started();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "bad", "namespace": "default", "labels": {"app": "a"}},
        "spec": {
            "hostNetwork": false, "serviceAccountName": "robot", "nodeName": host.trim(),
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}]}],
        },
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    });
    let peers = json!([{"matchLabels": {"app": "b"}, "matchExpressions": [{"key": "env", "operator": "In", "values": ["x"]}]}]);
    let ports = json!([{"ports": [{"port": "80", "endPort": 90, "protocol": "TCP"}]}]);
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "bad", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "nobody"}},
            "enableDefaultDeny": {"ingress": true, "egress": true},
            "ingress": [
                {"fromEndpoints": peers, "toPorts": ports},
                {"fromCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}]},
                {"fromEntities": ["host"], "icmps": [{"fields": [{"type": 8, "family": "IPv4"}]}]},
            ],
            "ingressDeny": [{"fromCIDR": ["192.0.2.0/24"]}],
            "egress": [{"toEndpoints": peers, "toPorts": ports}],
            "egressDeny": [{"toEntities": ["world"]}],
        },
    });
    // Each file has an invalid manifest followed by valid ones.
    let mut files = BTreeMap::new();
    for (kind, good) in [("pod", &pod), ("policy", &policy)] {
        for (n, (path, mut wrong)) in wrong_manifests(good).into_iter().enumerate() {
            let name = format!("{kind}-{n}");
            if wrong["metadata"]["name"] == "bad" {
                wrong["metadata"]["name"] = json!(name);
            }
            let (mut right, mut rule) = (pod.clone(), policy.clone());
            right["metadata"]["name"] = json!(format!("good-{name}"));
            rule["metadata"]["name"] = json!(format!("good-{name}"));
            node.apply(&format!("{name}.yaml"), &format!("{wrong}\n---\n{right}\n---\n{rule}\n"));
            files.insert(format!("{name}.yaml"), (path, wrong));
        }
    }
    assert!(files.len() > 150, "{}", files.len());
    let all_reported = || files.keys().all(|file| reported_faults(&node).contains_key(file));
    let applied = |table: &str| node.get(&format!("/statedb/dump/{table}"))[table].as_array().unwrap().len();
    let right = || {
        let policies = node.get("/statedb/dump/policies");
        policies["policies"].as_array().unwrap().iter().filter(|row| row["State"] == "Applied").count()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline
        && !(all_reported() && applied("k8s-pods") >= files.len() && right() >= files.len())
    {
        std::thread::sleep(Duration::from_millis(200));
    }
    let reported = reported_faults(&node);
    let mut wrong = String::new();
    for (file, (path, manifest)) in &files {
        let near = |fault: &String| {
            !fault.is_empty() && (fault.starts_with(path.as_str()) || path.starts_with(fault.as_str()))
        };
        let faults = reported.get(file).cloned().unwrap_or_default();
        // A fault of the kind itself has the path of the manifest.
        let whole = path.is_empty() || !path.contains('.');
        if faults.is_empty() || !(whole || faults.iter().any(near)) {
            writeln!(wrong, "{file}: {path} is wrong, but the report is {faults:?} of\n  {manifest}")
                .unwrap();
        }
    }
    assert_eq!(wrong, "");
    assert_eq!((applied("k8s-pods"), right()), (files.len(), files.len()), "the rest of each file applies");
}

#[test]
fn hostile_files_in_the_cluster_folder() {
    require_root!();
    let mut node = Node::started();
    node.add_pod("a");
    let folder = node.sandbox().dir().join("cluster");
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..40 {
        let aliases = vec![format!("*a{}", n - 1); 8].join(", ");
        writeln!(bomb, "a{n}: &a{n} [{aliases}]").unwrap();
    }
    node.apply("bomb.yaml", &bomb);
    node.apply("deep.yaml", &"[".repeat(1 << 20));
    node.apply("deep.json", &"{\"a\":".repeat(1 << 18));
    node.apply("wide.yaml", &"- \n".repeat(1 << 18));
    node.apply(
        "kinds.yaml",
        "kind: Deployment\n---\nkind: Secret\n---\nitems: []\n---\nkind: List\nitems: 7\n",
    );
    node.apply("twice.yaml", "kind: Pod\nmetadata: {name: t}\nmetadata: {name: u}\n");
    fs::write(folder.join("binary.yaml"), [0, 159, 146, 150]).unwrap();
    fs::create_dir(folder.join("folder.yaml")).unwrap();
    fs::File::create(folder.join("huge.yaml")).unwrap().set_len(1 << 40).unwrap();
    std::os::unix::fs::symlink("loop.yaml", folder.join("loop.yaml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero.yaml")).unwrap();
    node.host().exec(&format!("mkfifo {}", folder.join("pipe.yaml").display())).unwrap();
    let hostile = 12;
    let rows = || node.get("/statedb/dump/k8s-sources")["k8s-sources"].as_array().unwrap().clone();
    let faulty = || rows().into_iter().filter(|row| row["faults"] != json!([])).collect::<Vec<_>>();
    let deadline = Instant::now() + Duration::from_secs(30);
    while faulty().len() < hostile && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut reported = String::new();
    for row in faulty() {
        for fault in row["faults"].as_array().unwrap() {
            let word = |name: &str| fault[name].as_str().unwrap().to_owned();
            writeln!(
                reported,
                "{} document {} line {}: {} {}",
                row["file"].as_str().unwrap(),
                fault["document"],
                fault["line"],
                word("path"),
                word("reason")
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(reported);
    // The agent continues: a new pod gets its labels.
    node.add_pod("b");
    let pods = node.get("/statedb/dump/k8s-pods");
    assert_eq!(pods["k8s-pods"].as_array().unwrap().len(), 2);
    node.stop();
}

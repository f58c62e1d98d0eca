//! Cilium's Grafana dashboards of agents and of the operator find their series in those of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{Cluster, Node, binary, pod_manifest};
use k8s_types::Kind;
use promql_parser::parser::{Expr, LabelModifier, VectorSelector};
use serde_json::{Value, json};
use test_kit::{NetNs, Process, require_command, require_root, try_wait_until};

/// A line a query, in columns that its head describes.
const DASHBOARDS: &str = include_str!("dashboards.tsv");

const KINDS: &[Kind] = &[Kind::Namespace, Kind::Node, Kind::CiliumNode];

const AGENT_METRICS: &str = "127.0.0.1:9962";

const OPERATOR_METRICS: &str = "127.0.0.1:9963";

/// Until the slowest first round of a job has counted something: that of connection tracking's garbage collection.
const LIMIT: Duration = Duration::from_secs(120);

/// Begins the reason of a query that finds series at times.
const IN_USE: &str = "(in use)";

/// Families by name with their types, and their samples.
struct Exported<'t> {
    types: BTreeMap<&'t str, &'t str>,
    samples: Vec<Sample<'t>>,
}

struct Sample<'t> {
    name: &'t str,
    labels: BTreeMap<&'t str, &'t str>,
}

impl Exported<'_> {
    fn of(text: &str) -> Exported<'_> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Exported { types, samples: lines.map(Sample::of).collect() }
    }

    /// Returns the type of the family that has a series.
    fn kind(&self, series: &str) -> Option<&str> {
        let histogram = || {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
            family.and_then(|family| self.types.get(family)).filter(|kind| **kind == "histogram")
        };
        self.types.get(series).or_else(histogram).copied()
    }
}

impl Sample<'_> {
    fn of(line: &str) -> Sample<'_> {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let pairs = rest.rsplit_once("\"} ").map(|(pairs, _)| pairs);
        let pairs = pairs.into_iter().flat_map(|pairs| pairs.split("\","));
        Sample { name, labels: pairs.map(|pair| pair.split_once("=\"").unwrap()).collect() }
    }
}

/// The surroundings of a selector in its query.
#[derive(Clone, Default)]
struct Use {
    /// The labels by which aggregations around it group.
    groups: BTreeSet<String>,
    /// The functions around it.
    functions: BTreeSet<&'static str>,
}

/// A selector in a query, and the samples that it selects.
struct Selected<'t> {
    selector: VectorSelector,
    r#use: Use,
    samples: Vec<&'t Sample<'t>>,
}

impl Selected<'_> {
    /// Returns the fault that makes a panel wrong although the series is there.
    fn fault(&self, exported: &Exported<'_>) -> Option<String> {
        let name = self.selector.name.as_deref().unwrap_or_default();
        let functions = |names: &[&str]| names.iter().any(|name| self.r#use.functions.contains(name));
        let kind = exported.kind(name).unwrap_or_default();
        if functions(&["rate", "irate"]) && !["counter", "histogram"].contains(&kind) {
            return Some(format!("{name} is a {kind}, which has no rate"));
        }
        let is_bucket = functions(&["histogram_quantile"]);
        let mut labels = self.r#use.groups.iter().map(String::as_str).chain(is_bucket.then_some("le"));
        let missing =
            labels.find(|label| !self.samples.iter().all(|sample| sample.labels.contains_key(label)));
        missing.map(|label| format!("{label} is not a label of all series that {} selects", self.selector))
    }
}

/// Returns the selectors of a query with their samples.
fn select<'t>(query: &str, exported: &'t Exported<'t>) -> Vec<Selected<'t>> {
    let mut found = Vec::new();
    let expression = promql_parser::parser::parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    walk(&expression, &Use::default(), &mut |selector, r#use| {
        let is_selected = |sample: &&Sample<'_>| {
            Some(sample.name) == selector.name.as_deref()
                && selector.matchers.matchers.iter().all(|matcher| {
                    matcher.is_match(sample.labels.get(&*matcher.name).copied().unwrap_or_default())
                })
        };
        let samples = exported.samples.iter().filter(is_selected).collect();
        found.push(Selected { selector: selector.clone(), r#use: r#use.clone(), samples });
    });
    found
}

/// Calls `found` for each selector of an expression.
fn walk(expression: &Expr, within: &Use, found: &mut dyn FnMut(&VectorSelector, &Use)) {
    match expression {
        Expr::VectorSelector(selector) => found(selector, within),
        Expr::MatrixSelector(matrix) => found(&matrix.vs, within),
        Expr::Paren(paren) => walk(&paren.expr, within, found),
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs].iter().for_each(|side| walk(side, within, found)),
        Expr::Call(call) => {
            let mut within = within.clone();
            within.functions.insert(call.func.name);
            call.args.args.iter().for_each(|argument| walk(argument, &within, found));
        }
        Expr::Aggregate(aggregate) => {
            let mut within = within.clone();
            if let Some(LabelModifier::Include(labels)) = &aggregate.modifier {
                within.groups.extend(labels.labels.iter().cloned());
            }
            walk(&aggregate.expr, &within, found);
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        other => panic!("{other}: no query has such a part"),
    }
}

/// Compares the queries of a dashboard with exported text; returns the differences.
fn compare(dashboard: &str, text: &str) -> Result<(), String> {
    let (_, metrics) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    let exported = Exported::of(metrics);
    let mut differences = Vec::new();
    for row in DASHBOARDS.lines().filter(|row| row.split('\t').next() == Some(dashboard)) {
        let [_, query, reason] = row.split('\t').collect::<Vec<_>>().try_into().expect("three columns");
        differences
            .extend(faults(query, reason, &exported).into_iter().map(|fault| format!("{query}: {fault}")));
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// Returns the faults of a query, which finds nothing if there is a reason.
fn faults(query: &str, reason: &str, exported: &Exported<'_>) -> Vec<String> {
    let selected = select(query, exported);
    assert!(!selected.is_empty(), "{query}: it selects nothing");
    let (found, empty): (Vec<_>, Vec<_>) = selected.iter().partition(|selected| !selected.samples.is_empty());
    let mut faults: Vec<String> = found.iter().filter_map(|selected| selected.fault(exported)).collect();
    match (reason, empty.first()) {
        ("", Some(empty)) => faults.push(format!("{} finds no series", empty.selector)),
        (reason, None) if !reason.is_empty() && !reason.starts_with(IN_USE) => {
            faults.push(format!("it finds series, although: {reason}"));
        }
        _ => {}
    }
    faults
}

#[test]
fn queries_that_find_nothing_or_use_a_series_wrongly_are_found() {
    let exported = Exported::of(
        "# TYPE a_total counter\na_total{x=\"1\",y=\"b, c\"} 3\na_total{x=\"2\",y=\"\"} 3\n# TYPE b gauge\nb 1\n\
         # TYPE c_seconds histogram\nc_seconds_bucket{x=\"1\",le=\"+Inf\"} 1\nc_seconds_sum{x=\"1\"} 1\n",
    );
    let is_right = |query: &str| faults(query, "", &exported).is_empty();
    for query in [
        r#"sum by (x, y) (rate(a_total{y="b, c"}[1m])) * 60"#,
        r#"sum(a_total{x!="1", y=~"|d"}) / (b + 1)"#,
        "topk(5, avg by (x) (histogram_quantile(0.9, rate(c_seconds_bucket[5m]))))",
        "rate(c_seconds_sum[1m])",
    ] {
        assert!(is_right(query), "{query}: {:?}", faults(query, "", &exported));
    }
    for query in [
        "sum(d)",
        r#"a_total{x="3"}"#,
        r#"a_total{x=~"1.+"}"#,
        "sum by (z) (a_total)",
        "b + d",
        "rate(b[1m])",
        "histogram_quantile(0.9, rate(c_seconds_sum[1m]))",
    ] {
        assert!(!is_right(query), "{query}");
    }
    assert!(
        faults("d", "not built", &exported).is_empty() && !faults("b", "not built", &exported).is_empty()
    );
    assert!(faults("b", IN_USE, &exported).is_empty() && faults("d", IN_USE, &exported).is_empty());
}

/// Reads the metrics of a process.
fn scrape(ns: &NetNs, address: &str) -> std::io::Result<String> {
    ns.run(|| {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// Adds objects of each kind by which the dashboard selects events; one policy is wrong.
fn add_objects(cluster: &SimulatedCluster) {
    let of = |app: &str| json!({"matchLabels": {"app": app}});
    let nobody = json!([{"fromEndpoints": [of("none")]}]);
    cluster.add(&policy("closed", json!({"endpointSelector": of("closed"), "ingress": nobody})));
    let dns =
        json!({"ports": [{"port": "53", "protocol": "UDP"}], "rules": {"dns": [{"matchName": "a.test"}]}});
    let egress = json!([{"toEndpoints": [of("closed")]}, {"toEntities": ["world"], "toPorts": [dns]}]);
    cluster.add(&policy("client", json!({"endpointSelector": of("client"), "egress": egress})));
    let wrong = json!([{"toPorts": [{"ports": [{"port": "70000", "protocol": "TCP"}]}]}]);
    cluster.add(&policy("wrong", json!({"endpointSelector": of("client"), "egress": wrong})));
    cluster.add(&json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"podSelector": of("closed"), "policyTypes": ["Ingress"]},
    }));
    cluster.add(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "protocol": "TCP"}]},
    }));
}

/// A query for the address of `b.test`, which policy does not allow.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01b\x04test\0\0\x01\0\x01";

/// Sends a packet to each address and port.
fn send(ns: &NetNs, to: &[(IpAddr, u16)]) {
    ns.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // A packet that is dropped may be an error here, too.
        to.iter().for_each(|to| drop(socket.send_to(QUERY, to)));
    });
}

#[test]
fn dashboards_of_cilium_find_series_of_the_agent() {
    require_root!();
    require_command!("iptables");
    let mut node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(1), KINDS);
    cluster.join(&mut node);
    node.config.remove("enable-health-checking");
    node.config.insert("prometheus-serve-addr".to_owned(), AGENT_METRICS.to_owned());
    node.config.insert("metrics".to_owned(), "+cilium_bpf_syscall_duration_seconds".to_owned());
    // For the redirect of DNS.
    node.config.insert("install-iptables-rules".to_owned(), "true".to_owned());
    cluster.spawn(&mut node);
    node.wait_ready();
    add_objects(&cluster);
    let [client, closed] = ["client", "closed"].map(|name| {
        let manifest = pod_manifest("default", name, &[("app", name)]);
        let mut pod: Value = serde_json::from_str(&manifest).unwrap();
        pod["spec"]["nodeName"] = Cluster::NODE.into();
        cluster.add(&pod);
        node.add_unknown_pod("default", name)
    });
    let world: IpAddr = Node::WORLD_IPV4.parse().unwrap();
    let compare = || {
        send(&client.ns, &[(world, 53), (world, 7777), (closed.ipv4, 7777)]);
        compare("agent", &scrape(node.host(), AGENT_METRICS).map_err(|error| error.to_string())?)
    };
    if let Err(differences) = try_wait_until(LIMIT, compare) {
        panic!("{differences}\n{}", node.log());
    }
}

#[test]
fn dashboards_of_cilium_find_series_of_the_operator() {
    require_root!();
    let node = Node::new();
    let cluster = SimulatedCluster::new(node.host(), Size::nodes(1), KINDS);
    let log = node.sandbox().dir().join("operator.log");
    let output = File::create(&log).unwrap();
    let mut command: Command = node.host().command(binary("operator"));
    command
        .args([&format!("--k8s-api-server-urls={}", cluster.url()), "--shell-sock-path="])
        .arg(format!("--operator-prometheus-serve-addr={OPERATOR_METRICS}"))
        .arg("--enable-metrics=true")
        .env("K8S_NODE_NAME", Cluster::NODE)
        .env("CILIUM_K8S_NAMESPACE", "kube-system")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output);
    let _operator = Process::start(&mut command).unwrap();
    let compare =
        || compare("operator", &scrape(node.host(), OPERATOR_METRICS).map_err(|error| error.to_string())?);
    if let Err(differences) = try_wait_until(LIMIT, compare) {
        panic!("{differences}\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }
}

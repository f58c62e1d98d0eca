//! Answers that no API server gives: each is told once with what to do, nothing else suffers, and all of it heals.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use integration_tests::{Cluster, Real, Spoiler, measure};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(40);

/// How long answers are spoiled.
const ATTACK: Duration = Duration::from_secs(6);

type Spoil = Box<dyn Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync>;

/// What is spoiled, how, and what health and log must say of it.
struct Attack {
    plural: &'static str,
    path: &'static str,
    spoil: Spoil,
    told: &'static str,
}

fn attack(
    path: &'static str,
    told: &'static str,
    spoil: impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync + 'static,
) -> Attack {
    let plural = path.rsplit('/').next().unwrap().trim_end_matches('?');
    Attack { plural, path, spoil: Box::new(spoil), told }
}

/// A cluster whose API server is reached through something that spoils its answers.
struct Spoiled {
    spoiler: Spoiler,
    cluster: Cluster,
}

impl Spoiled {
    fn started() -> Self {
        let mut cluster = Cluster::new(&custom_resource_definitions());
        let spoiler = Spoiler::new(&cluster.stage, cluster.node.sandbox().dir());
        let file = cluster.node.sandbox().dir().join("spoiled.kubeconfig");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": spoiler.url()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
        });
        fs::write(&file, kubeconfig.to_string()).unwrap();
        cluster.node.config.insert("k8s-kubeconfig-path".to_owned(), file.to_str().unwrap().to_owned());
        cluster.stage.apply(&objects(80)).unwrap();
        cluster.start();
        cluster.until_equal();
        Self { spoiler, cluster }
    }

    /// Rows of health that are not well.
    fn unwell(&self) -> Vec<String> {
        let health = self.cluster.node.get("/statedb/dump/health");
        let rows = health["health"].as_array().unwrap().iter();
        rows.filter(|row| row["Level"] == "Degraded").map(Value::to_string).collect()
    }

    /// Time that the agent has computed.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.cluster.node.agent_pid())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
        Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    /// All at once, each on another kind, while other kinds change; then nothing is spoiled any more.
    fn withstands(&self, attacks: Vec<Attack>) {
        let node = &self.cluster.node;
        let (read, cpu, memory) = (node.log().len(), self.cpu(), measure::resident(node.agent_pid()));
        let expected: Vec<(&str, &str)> = attacks.iter().map(|attack| (attack.plural, attack.told)).collect();
        for Attack { path, spoil, .. } in attacks {
            self.spoiler.spoil(path, spoil);
        }
        self.cluster
            .stage
            .kubectl(&["label", "namespace", "default", "attacked=yes", "--overwrite"])
            .unwrap();
        self.until("a label of a namespace is seen", || {
            let rows = node.get("/statedb/dump/k8s-namespaces").to_string();
            rows.contains("attacked").then_some(()).ok_or(rows)
        });
        thread::sleep(ATTACK);
        let unwell = self.unwell();
        let log = node.log()[read..].to_owned();
        let warned: Vec<&str> = log.lines().filter(|line| line.contains("level=warn")).collect();
        for (plural, told) in &expected {
            let scope = format!("[\"{plural}\"]");
            let row = unwell.iter().find(|row| row.contains(&scope));
            assert!(row.is_some_and(|row| row.contains(told)), "{plural}: {told}: {unwell:#?}\n{log}");
            let lines = warned.iter().filter(|line| line.contains(&format!("watch={plural} ")));
            assert_eq!(lines.count(), 1, "{plural}: one line\n{log}");
        }
        assert!(warned.len() <= expected.len(), "{log}");
        let (used, memory) = (self.cpu() - cpu, measure::resident(node.agent_pid()) - memory);
        assert!(used < ATTACK, "{used:?} of the processor\n{log}");
        assert!(memory < 48.0, "{memory} MB more\n{log}");
        // What was in force stays.
        let services = node.get("/statedb/dump/k8s-services").to_string();
        assert!(services.contains("first"), "{services}");

        self.spoiler.stop();
        self.cluster.stage.apply(&objects(81)).unwrap();
        self.until("all is well", || match self.unwell() {
            rows if rows.is_empty() => Ok(()),
            rows => Err(rows.join("\n")),
        });
        self.cluster.until_equal();
        let log = node.log()[read..].to_owned();
        for (plural, _) in &expected {
            let line = format!("watch={plural}");
            let healed = log.lines().filter(|l| l.contains("followed again") && l.ends_with(&line)).count();
            assert_eq!(healed, 1, "{plural}: its healing is told once\n{log}");
        }
    }

    fn until(&self, what: &str, done: impl FnMut() -> Result<(), String>) {
        if let Err(error) = try_wait_until(LIMIT, done) {
            panic!("{what}: {error}\n{}", self.cluster.node.log());
        }
    }
}

/// An object of each of some kinds, the same but for a port.
fn objects(port: u16) -> String {
    let object = |version: &str, kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "first"}, "spec": spec});
    let items = [
        object("v1", "Service", json!({"ports": [{"port": port}]})),
        object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}),
        ),
        object("cilium.io/v2", "CiliumCIDRGroup", json!({"externalCIDRs": [format!("10.{port}.0.0/16")]})),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// An answer with a length.
fn whole(
    status: &'static str,
    form: &'static str,
    body: &'static [u8],
) -> impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync {
    move |client, _| {
        let length = body.len();
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Type: {form}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        )?;
        client.write_all(body)
    }
}

/// An answer that ends with the connection: this once, then that for ever.
fn endless(
    begin: &'static str,
    then: &'static str,
) -> impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync {
    move |client, _| {
        client.write_all(OPEN.as_bytes())?;
        client.write_all(begin.as_bytes())?;
        let piece = then.repeat((64 << 10) / then.len());
        loop {
            client.write_all(piece.as_bytes())?;
        }
    }
}

/// The beginning of a stream, and silence.
fn stream(begin: &'static [u8]) -> impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync {
    move |client, _| {
        client.write_all(OPEN.as_bytes())?;
        client.write_all(begin)?;
        // Until the client goes, or has enough of it.
        client.read(&mut [0]).map(drop)
    }
}

const OPEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
const PORTAL: &[u8] = b"<!DOCTYPE html>\n<html><title>Welcome to our WiFi</title></html>";
const SLICES: &str = "/endpointslices?";
const POLICIES: &str = "/networkpolicies?";
const RULES: &str = "/ciliumnetworkpolicies?";
const GROUPS: &str = "/ciliumcidrgroups?";
const IDENTITIES: &str = "/ciliumidentities?";
const ENDPOINTS: &str = "/ciliumendpoints?";
const NODES: &str = "/ciliumnodes?";
const CLUSTERWIDE: &str = "/ciliumclusterwidenetworkpolicies?";

#[test]
fn answers_that_are_none() {
    require_root!();
    let it = Spoiled::started();
    let login = "does something else answer at this address, a proxy or a login page?";
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: https://portal.example/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let packed =
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n\x1f\x8b\x08\x00\x00\x00";
    it.withstands(vec![
        attack(SLICES, login, whole("200 OK", "text/html", PORTAL)),
        attack(POLICIES, "answers 502", whole("502 Bad Gateway", "text/html", PORTAL)),
        attack(GROUPS, "leads to https://portal.example/", |client, _| client.write_all(redirect)),
        attack(IDENTITIES, "a JSON object expected", |client, _| client.write_all(packed)),
        attack(ENDPOINTS, "found \\\"null\\\"", whole("200 OK", "application/json", b"null")),
        attack(
            NODES,
            "a JSON object expected",
            whole("200 OK", "application/vnd.kubernetes.protobuf", b"k8s\0\x0a"),
        ),
        attack(
            RULES,
            "etcd is full",
            stream(br#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is full"}}"#),
        ),
        attack(CLUSTERWIDE, "a type of events expected", stream(br#"{"type":"EXPLODED","object":{}}"#)),
    ]);
}

#[test]
fn answers_without_end_and_of_no_sense() {
    require_root!();
    let it = Spoiled::started();
    let end = "the end of an object within 64 MiB expected";
    it.withstands(vec![
        attack(SLICES, end, endless("", " ")),
        attack(POLICIES, end, endless(r#"{"type":"ADDED","object":{"a":""#, "x")),
        attack(GROUPS, end, endless("{\"", "x")),
        attack(ENDPOINTS, "unreadable status", stream(br#"{"type":"ERROR","object":"boom"}"#)),
        attack(NODES, "an event with type and object", stream(br#"{"type":"ADDED"}"#)),
        attack(RULES, "a JSON object expected", stream(br#"["ADDED", {}]"#)),
    ]);
}

//! Invalid responses of an API server: each is reported once with a remedy, has no other effect, and is recovered from.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::{Cluster, Real, Spoiler, measure};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// How long responses are corrupted after the report: no other effect may follow.
const ATTACK: Duration = Duration::from_secs(4);

type Spoil = Box<dyn Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync>;

/// The request with a corrupted response, the corruption, and the expected texts in health and log.
struct Attack {
    plural: &'static str,
    path: &'static str,
    spoil: Spoil,
    reported: &'static str,
}

fn attack(
    path: &'static str,
    reported: &'static str,
    spoil: impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync + 'static,
) -> Attack {
    let plural = path.rsplit('/').next().unwrap().trim_end_matches('?');
    Attack { plural, path, spoil: Box::new(spoil), reported }
}

/// A cluster with an API server behind a proxy that corrupts its responses.
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

    /// Returns the CPU time of the agent.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.cluster.node.agent_pid())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
        Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
    }

    /// Applies all attacks at once, each to another kind, while other kinds change; then stops them.
    fn withstands(&self, attacks: Vec<Attack>) {
        let node = &self.cluster.node;
        let (read, cpu, memory) = (node.log().len(), self.cpu(), measure::resident(node.agent_pid()));
        let begun = Instant::now();
        let expected: Vec<(&str, &str)> =
            attacks.iter().map(|attack| (attack.plural, attack.reported)).collect();
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
        let row = |unwell: &[String], plural: &str, reported: &str| {
            unwell.iter().any(|row| row.contains(&format!("[\"{plural}\"]")) && row.contains(reported))
        };
        // Later effects may have another text.
        let mut missing = expected.clone();
        self.until("all is reported", || {
            let unwell = self.cluster.unwell();
            missing.retain(|(plural, reported)| !row(&unwell, plural, reported));
            missing.first().map_or(Ok(()), |missing| Err(format!("{missing:?}: {unwell:#?}")))
        });
        thread::sleep(ATTACK);
        let unwell = self.cluster.unwell();
        let log = node.log()[read..].to_owned();
        let warned: Vec<&str> = log.lines().filter(|line| line.contains("level=warn")).collect();
        for (plural, reported) in &expected {
            assert!(row(&unwell, plural, ""), "{plural}: {unwell:#?}\n{log}");
            let lines = warned.iter().filter(|line| line.contains(&format!("watch={plural} ")));
            let lines: Vec<&&str> = lines.collect();
            let reported = reported.replace("\\\"", "\"");
            let says = |line: &str| line.replace("\\\"", "\"").contains(&reported);
            assert!(lines.len() == 1 && says(lines[0]), "{plural}: one line\n{log}");
        }
        assert_eq!((warned.len(), unwell.len()), (expected.len(), expected.len()), "{unwell:#?}\n{log}");
        let (used, memory) = (self.cpu() - cpu, measure::resident(node.agent_pid()) - memory);
        assert!(used < begun.elapsed(), "{used:?} of the processor\n{log}");
        assert!(memory < 48.0, "{memory} MB more\n{log}");
        // The version in force stays.
        let services = node.get("/statedb/dump/k8s-services").to_string();
        assert!(services.contains("first"), "{services}");

        self.spoiler.stop();
        self.cluster.stage.apply(&objects(81)).unwrap();
        self.cluster.until_well();
        self.cluster.until_equal();
        let log = node.log()[read..].to_owned();
        for (plural, _) in &expected {
            let line = format!("watch={plural}");
            let healed = log.lines().filter(|l| l.contains("followed again") && l.ends_with(&line)).count();
            assert_eq!(healed, 1, "{plural}: its healing is reported once\n{log}");
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

/// Sends a response with a length.
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

/// Sends a response that ends with the connection: one text once, then another repeatedly.
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

/// Sends the beginning of a stream, then nothing.
fn stream(begin: &'static [u8]) -> impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync {
    move |client, _| {
        client.write_all(OPEN.as_bytes())?;
        client.write_all(begin)?;
        // Until the client closes the connection.
        client.read(&mut [0]).map(drop)
    }
}

const OPEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
const PORTAL: &[u8] = b"<!DOCTYPE html>\n<html><title>Welcome to our WiFi</title></html>";
const SERVICES: &str = "/services?";
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

#[test]
fn answers_that_trickle_and_versions_that_go_back() {
    require_root!();
    let it = Spoiled::started();
    let back = "goes back in time: version 7 of networkpolicies after 500000000";
    it.withstands(vec![
        attack(SLICES, "is too slow: ", |client, _| {
            client.write_all(OPEN.as_bytes())?;
            client.write_all(br#"{"type":"ADDED","object":{"metadata":{"name":""#)?;
            loop {
                client.write_all(b"x")?;
                thread::sleep(Duration::from_millis(100));
            }
        }),
        attack(POLICIES, back, |client, _| {
            client.write_all(OPEN.as_bytes())?;
            client.write_all(&list_end("500000000"))?;
            let event =
                json!({"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": "7"}}});
            client.write_all(event.to_string().as_bytes())?;
            client.read(&mut [0]).map(drop)
        }),
    ]);
}

/// An expired watch: it lists again.
const TOO_OLD: &[u8] = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;

/// The end of a streaming list.
fn list_end(version: &str) -> Vec<u8> {
    let metadata = json!({"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}});
    json!({"type": "BOOKMARK", "object": {"metadata": metadata}}).to_string().into_bytes()
}

/// A list that streams.
fn list(objects: &[Vec<u8>]) -> Vec<u8> {
    let event = |object: &Vec<u8>| [&br#"{"type":"ADDED","object":"#[..], object, b"}\n"].concat();
    let mut text: Vec<u8> = objects.iter().flat_map(event).collect();
    text.extend(list_end("1"));
    text
}

/// A service; its metadata and spec as they are to be written.
fn service(name: &str, metadata: &str, spec: &[u8]) -> Vec<u8> {
    let head = format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"{metadata}}},"spec":"#);
    [head.as_bytes(), spec, b"}"].concat()
}

#[test]
fn objects_that_are_wrong() {
    require_root!();
    let it = Spoiled::started();
    let (node, right) = (&it.cluster.node, br#"{"ports":[{"port":443}]}"#);
    let (read, memory) = (node.log().len(), measure::resident(node.agent_pid()));
    let deep = [br#"{"ports":"#.to_vec(), b"[".repeat(300), b"]".repeat(300), b"}".to_vec()].concat();
    let labels: Vec<String> = (0..10_000).map(|n| format!(r#""label-{n}":"{n}""#)).collect();
    let services = list(&[
        // In force as "port 80" before.
        service("first", "", br#"{"ports":[{"port":"eighty"}]}"#),
        service("limit", "", br#"{"ports":[{"port":443},{"port":70000}]}"#),
        service("kinds", r#","labels":["a"]"#, br#"{"selector":7,"ports":{}}"#),
        service("twice", "", br#"{"ports":[],"selector":{"a":"b"},"ports":[{"port":1}]}"#),
        service("deep", "", &deep),
        service("bytes", "", b"{\"selector\":{\"a\":\"\xff\xfe\"}}"),
        service("right", "", right),
        service("large", &format!(r#","annotations":{{"a":"{}"}}"#, "x".repeat(1 << 20)), right),
        service("labels", &format!(r#","labels":{{{}}}"#, labels.join(",")), right),
    ]);
    // 17 MiB of an object that there is.
    let pad = "x".repeat(17 << 20);
    let metadata = format!(r#"{{"name":"first","namespace":"default","annotations":{{"pad":"{pad}"}}}}"#);
    let policies = list(&[format!(r#"{{"metadata":{metadata}}}"#).into_bytes()]);
    for (path, text) in [(SERVICES, services), (POLICIES, policies)] {
        it.spoiler.spoil(path, move |client, real| {
            client.write_all(OPEN.as_bytes())?;
            let lists = real.asked().contains("sendInitialEvents");
            client.write_all(if lists { &text } else { TOO_OLD })?;
            client.read(&mut [0]).map(drop)
        });
    }
    let reported = [
        ("Service default/first: spec.ports[0].port: ", "\"eighty\""),
        ("Service default/limit: spec.ports[1].port: ", "70000"),
        ("Service default/kinds: metadata.labels: ", "spec.selector: "),
        ("Service default/twice: ", "duplicate field `ports`"),
        ("Service default/deep: ", "recursion limit exceeded"),
        ("Service default/bytes: ", "invalid unicode code point"),
        ("NetworkPolicy default/first: ", "has more than 16 MiB, which no cluster needs: make it smaller"),
    ];
    let warned = || -> Vec<String> {
        let log = node.log()[read..].replace("\\\"", "\"");
        log.lines().filter(|line| line.contains("level=warn")).map(str::to_owned).collect()
    };
    it.until("all is reported", || {
        let warned = warned();
        let missing = reported.iter().find(|(object, _)| !warned.iter().any(|line| line.contains(object)));
        missing.map_or(Ok(()), |missing| Err(format!("{missing:?}: {warned:#?}")))
    });
    thread::sleep(ATTACK);
    let (warned, unwell) = (warned(), it.cluster.unwell());
    for (object, why) in reported {
        let lines: Vec<&String> = warned.iter().filter(|line| line.contains(object)).collect();
        assert!(lines.len() == 1 && lines[0].contains(why), "{object} {why}: {warned:#?}");
    }
    assert_eq!((warned.len(), unwell.len()), (reported.len(), 2), "{warned:#?}\n{unwell:#?}");
    let row = unwell.iter().find(|row| row.contains("k8s-services")).unwrap();
    assert!(row.contains("and 1 more. What was in force of them before stays"), "{row}");
    let row = unwell.iter().find(|row| row.contains("k8s-networkpolicies")).unwrap();
    assert!(row.contains("NetworkPolicy default/first: has more than 16 MiB"), "{row}");

    // Valid objects apply; of invalid ones the previous version stays.
    let ports = |table: &str, path: &str| -> Vec<String> {
        let rows = node.get(&format!("/statedb/dump/{table}"));
        let of_row = |row: &Value| {
            format!(
                "{} {}",
                row["metadata"]["name"].as_str().unwrap(),
                row.pointer(path).unwrap_or(&Value::Null)
            )
        };
        rows[table].as_array().unwrap().iter().map(of_row).collect()
    };
    assert_eq!(
        ports("k8s-services", "/spec/ports/0/port"),
        ["first 80", "labels 443", "large 443", "right 443"]
    );
    assert_eq!(ports("k8s-networkpolicies", "/spec/ingress/0/ports/0/port"), ["first 80"]);
    let memory = measure::resident(node.agent_pid()) - memory;
    assert!(memory < 48.0, "{memory} MB more");

    // Objects that were announced stay until the next list, as after a compaction.
    for path in [SERVICES, POLICIES] {
        it.spoiler.spoil(path, |client, real| match real.asked().contains("sendInitialEvents") {
            true => io::copy(&mut real.stream()?, client).map(drop),
            false => client.write_all(&[OPEN.as_bytes(), TOO_OLD].concat()),
        });
    }
    it.cluster.stage.apply(&objects(81)).unwrap();
    it.cluster.until_equal();
    it.cluster.until_well();
    assert_eq!(ports("k8s-networkpolicies", "/spec/ingress/0/ports/0/port"), ["first 81"]);
}

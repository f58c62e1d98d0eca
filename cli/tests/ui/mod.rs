//! `apiary ui` over HTTP, against an agent with fixed responses; its page is run by node with a document that records what
//! is drawn.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use test_kit::require_command;

use super::{FakeAgent, healthz};

/// A name as a pod or a DNS server may choose it.
const HOSTILE: &str = "<img src=x onerror=alert(1)></script>\u{202e}\u{1b}[2J";
/// Its form on the page.
const DRAWN: &str = "<img src=x onerror=alert(1)></script>\u{fffd}\u{fffd}[2J";

/// A running `apiary ui`.
struct Page {
    process: Child,
    address: String,
    token: String,
}

/// A response.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Page {
    fn of(agent: &FakeAgent) -> Page {
        let shell = agent.folder.path().join("shell.sock");
        let listener = UnixListener::bind(&shell).unwrap();
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "metrics --format=json bpf_map_pressure\n");
                let samples = json!([{"name": "cilium_bpf_map_pressure", "labels": {"map_name": HOSTILE}, "value": 0.95}]);
                stream.write_all(format!("{samples}\n<<end>>\n").as_bytes()).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_apiary"));
        command.env("CILIUM_SOCK", agent.socket()).args(["ui", "--shell-sock-path"]).arg(shell);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("http://").unwrap();
        let (address, token) = url.trim_end_matches('/').split_once('/').unwrap();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        Page { process, address: address.to_owned(), token: token.to_owned() }
    }

    /// Sends the head of a request.
    fn send(&self, head: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    fn answer(&self, head: &str) -> Answer {
        let mut text = String::new();
        self.send(head).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Answer {
        let (token, address) = (&self.token, &self.address);
        self.answer(&format!("GET /{token}/{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
        serde_json::from_str(&answer.body).unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn agent() -> FakeAgent {
    let mut status = healthz("Ok");
    status["cluster"]["self"] = json!(HOSTILE);
    let labels = |kind: &str, name: &str| {
        json!([
            format!("k8s:io.cilium.k8s.policy.derived-from={kind}"),
            format!("k8s:io.cilium.k8s.policy.name={name}"),
            "k8s:io.cilium.k8s.policy.namespace=shop"
        ])
    };
    let rules = json!([{"derived-from-rules": [labels("NetworkPolicy", "web"), labels("CiliumNetworkPolicy", "db")]}]);
    let endpoint = json!({"id": 7, "status": {
        "external-identifiers": {"k8s-namespace": "shop", "k8s-pod-name": HOSTILE},
        "identity": {"id": 5000, "labels": ["k8s:app=web"]},
        "networking": {"addressing": [{"ipv4": "10.0.0.7", "ipv6": "fd00::7"}]},
        "policy": {"realized": {"policy-enabled": "ingress", "policy-revision": 3, "l4": {"ingress": rules, "egress": []}}},
        "state": "ready",
    }});
    let report = |name: &str, level: &str, error: &str| {
        json!({"ID": {"Module": ["agent", name], "Component": ["job"]}, "Level": level, "Message": "m", "Error": error,
            "LastOK": "", "Updated": "2026-11-21T12:10:32Z", "Stopped": "", "Final": "", "Count": 1})
    };
    let health = json!([report("good", "OK", ""), report("bad", "Degraded", HOSTILE)]);
    let policy = json!({"Subject": {"Endpoint": 7, "Identity": 5000, "Labels": [], "NamedPorts": {}}, "State": "Full", "Error": HOSTILE});
    FakeAgent::new(vec![
        ("/healthz", 200, status),
        ("/endpoint", 200, json!([endpoint])),
        ("/statedb/dump/health", 200, json!({"health": health})),
        ("/statedb/dump/endpoint-policies", 200, json!({"endpoint-policies": [policy]})),
        ("/apiary/timeline", 200, json!("the picture")),
    ])
}

#[test]
fn panels_are_json_of_what_the_agent_has() {
    let agent = agent();
    let page = Page::of(&agent);
    let node = page.json("api/node");
    assert_eq!(node["name"], HOSTILE);
    assert_eq!(node["parts"][0], json!({"name": "Agent", "state": "Ok", "message": "1.20.0-dev"}));
    assert_eq!(node["controllers"], json!([{"name": "bad", "error": "no route"}]));
    let bad = json!({"id": "agent.bad.job", "level": "Degraded", "message": format!("m: {HOSTILE}"), "updated": "2026-11-21T12:10:32Z"});
    assert_eq!((&node["health"][0], &node["health"][1]["level"]), (&bad, &json!("OK")), "failures first");

    let endpoints = page.json("api/endpoints");
    let endpoint = &endpoints["endpoints"][0];
    assert_eq!(endpoint["name"], format!("shop/{HOSTILE}"));
    assert_eq!(endpoint["addresses"], json!(["10.0.0.7", "fd00::7"]));
    assert_eq!(endpoint["policies"], json!(["CiliumNetworkPolicy/shop/db", "NetworkPolicy/shop/web"]));
    assert_eq!((&endpoint["policy_state"], &endpoint["policy_error"]), (&json!("Full"), &json!(HOSTILE)));

    let maps = page.json("api/maps");
    assert_eq!(maps["pressure"], json!([{"name": HOSTILE, "pressure": 0.95}]));
    assert_eq!(maps["sizes"][1], json!({"name": "IP cache", "size": 512_000}));

    let timeline = page.get("api/timeline.svg");
    assert_eq!((timeline.status, &*timeline.body), (200, "\"the picture\""));
    assert!(
        timeline.head.contains("content-type: image/svg+xml") && timeline.head.contains("; sandbox"),
        "{}",
        timeline.head
    );
    let traffic = page.get("api/traffic");
    assert_eq!(traffic.status, 502, "no Hubble here");
    assert!(traffic.body.contains("enable-hubble"), "{}", traffic.body);

    // A server of flows that is not there is reported in the stream, which goes on.
    let (token, address) = (&page.token, &page.address);
    let events = page
        .send(&format!("GET /{token}/api/flows?verdict=dropped&pod=web HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    let lines: Vec<String> =
        events.lines().map(Result::unwrap).skip_while(|line| !line.starts_with("event:")).take(2).collect();
    assert!(
        lines[0] == "event: state" && lines[1].starts_with(r#"data: {"error":"cannot connect to unix"#),
        "{lines:?}"
    );

    drop(agent.folder);
    let gone = page.get("api/node");
    assert_eq!(gone.status, 502);
    assert!(gone.body.contains("Is the agent running?"), "{}", gone.body);
}

#[test]
fn only_get_with_the_token_and_the_name_of_this_host_is_answered() {
    let agent = agent();
    let page = Page::of(&agent);
    let (token, address) = (&page.token, &page.address);
    let html = page.get("");
    assert_eq!(html.status, 200);
    let nonce = html.head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(html.body.contains(&format!("<script nonce=\"{nonce}\">")), "{nonce}");
    assert_ne!(nonce, token);
    for rule in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "base-uri 'none'",
    ] {
        assert!(html.head.contains(rule), "{rule} is not in {}", html.head);
    }
    for header in
        ["referrer-policy: no-referrer", "cache-control: no-store", "x-content-type-options: nosniff"]
    {
        assert!(html.head.contains(header), "{header} is not in {}", html.head);
    }
    assert!(!html.head.contains("access-control"), "no other site may read: {}", html.head);
    agent.requests();
    for (status, request, headers) in [
        (405, format!("POST /{token}/api/node"), format!("Host: {address}\r\nContent-Length: 0\r\n")),
        (405, format!("OPTIONS /{token}/api/node"), format!("Host: {address}\r\n")),
        (404, "GET /api/node".to_owned(), format!("Host: {address}\r\n")),
        (404, format!("GET /{}/api/node", "0".repeat(32)), format!("Host: {address}\r\n")),
        (404, format!("GET /{token}/api/other"), format!("Host: {address}\r\n")),
        (403, format!("GET /{token}/api/node"), "Host: rebound.test\r\n".to_owned()),
        (403, format!("GET /{token}/api/node"), format!("Host: {address}\r\nOrigin: http://other.test\r\n")),
        (400, format!("GET /{token}/api/flows?port=x"), format!("Host: {address}\r\n")),
        (431, format!("GET /{token}/api/node"), format!("Host: {address}\r\nX: {}\r\n", "x".repeat(40_000))),
    ] {
        let answer = page.answer(&format!("{request} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"));
        assert_eq!(answer.status, status, "{request}");
        assert!(status != 405 || answer.head.contains("allow: get"), "{}", answer.head);
    }
    assert_eq!(agent.requests(), Vec::<String>::new(), "the agent has nothing to do with these");
    assert_eq!(page.get("api/node").status, 200, "a control");
}

#[test]
fn names_that_pods_choose_are_text_of_the_page() {
    require_command!("node");
    let agent = agent();
    let page = Page::of(&agent);
    let html = page.get("").body;
    let script =
        html.split("<script").nth(1).unwrap().split_once('>').unwrap().1.split("</script>").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.cjs");
    std::fs::write(&file, format!("{}\n{script}\n{}", include_str!("document.js"), include_str!("check.js")))
        .unwrap();
    let url = format!("http://{}/{}/", page.address, page.token);
    let output = Command::new("node").arg(&file).env("PAGE", url).env("HOSTILE", HOSTILE).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn: Value = serde_json::from_slice(&output.stdout).unwrap();
    let texts = |panel: &str| -> Vec<&str> {
        drawn[panel]
            .as_array()
            .unwrap_or_else(|| panic!("{panel} is not in {drawn:#}"))
            .iter()
            .filter_map(Value::as_str)
            .collect()
    };
    let error = format!("m: {DRAWN}");
    let (name, state) = (format!("shop/{DRAWN}"), format!("Full: {DRAWN}"));
    for (panel, text) in [
        ("name", DRAWN),
        ("node", &*error),
        ("node", "no route"),
        ("endpoints", &*name),
        ("endpoints", &*state),
        ("endpoints", "CiliumNetworkPolicy/shop/db, NetworkPolicy/shop/web"),
        ("maps", DRAWN),
        ("maps", "95.0 %"),
        ("maps", "512,000"),
        ("services", &*format!("{DRAWN} 80/TCP")),
        ("drops", "NetworkPolicy/shop/no"),
        ("rows", DRAWN),
        ("rows", "DROPPED"),
        ("stream", "live, 3 left out, 4 lost"),
    ] {
        assert!(
            texts(panel).iter().any(|drawn| *drawn == text
                || text.starts_with(drawn.trim_end_matches('…')) && drawn.ends_with('…')),
            "{panel} lacks {text}: {drawn:#}"
        );
    }
    assert!(texts("agent")[0].contains("enable-hubble"), "{drawn:#}");
    assert_eq!(
        drawn["elements"],
        json!([
            "button", "div", "form", "img", "p", "path", "span", "svg", "table", "tbody", "td", "text", "th",
            "thead", "title", "tr"
        ])
    );
}

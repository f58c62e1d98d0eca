//! `apiary ui` of a real agent: flows, services, drops with their rule, the start; over a restart, and in a browser.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{require, require_command, require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 7000;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with a client that may talk to a server, another pod that may not, and the page of it.
struct Fixture {
    page: String,
    address: SocketAddr,
    client: Pod,
    other: Pod,
    server: Pod,
    node: Node,
    _ui: Running,
}

impl Fixture {
    fn new() -> Fixture {
        let mut node = Node::new();
        node.config.insert("enable-hubble".into(), "true".into());
        let hubble = node.socket().with_file_name("hubble.sock");
        node.config.insert("hubble-socket-path".into(), hubble.display().to_string());
        node.start();
        let mut pod = |app: &str| node.add_pod_with("default", app, &[("app", app)]);
        let (client, other, server) = (pod("client"), pod("other"), pod("server"));
        let from = |app: &str| json!([{"fromEndpoints": [{"matchLabels": {"app": app}}]}]);
        let policy = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"name": "server", "namespace": "default"},
            "spec": {
                "endpointSelector": {"matchLabels": {"app": "server"}},
                "ingress": from("client"),
                "ingressDeny": from("other"),
            },
        });
        node.apply("policy.yaml", &policy.to_string());
        let shell = node.socket().with_file_name("shell.sock");
        let mut command = node.apiary_command(&["ui", "--shell-sock-path", shell.to_str().unwrap()]);
        let mut ui = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut page = String::new();
        BufReader::new(ui.0.stdout.take().unwrap()).read_line(&mut page).unwrap();
        let page = page.trim().to_owned();
        let address = page.split('/').nth(2).unwrap().parse().unwrap();
        Fixture { page, address, client, other, server, node, _ui: ui }
    }

    fn open(&self, path: &str) -> BufReader<TcpStream> {
        let address = self.address;
        let mut stream = self.node.host().run(move || TcpStream::connect(address)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let folder = self.page.splitn(4, '/').nth(3).unwrap();
        let head =
            format!("GET /{folder}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    fn text(&self, path: &str) -> String {
        let mut answer = String::new();
        self.open(path).read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path)).unwrap()
    }

    fn send(&self, from: &Pod) {
        let sender = from.ns.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
        let _ = sender.send_to(b"x", (self.server.ipv4, PORT));
    }

    /// Sends from both pods until a panel has what is expected.
    fn until(&self, path: &str, mut has: impl FnMut(&Value) -> bool) -> Value {
        let panel = || {
            self.send(&self.client);
            self.send(&self.other);
            let panel = self.json(path);
            if has(&panel) { Ok(panel) } else { Err(format!("{panel:#}")) }
        };
        try_wait_until(LIMIT, panel).unwrap_or_else(|error| panic!("{error}\n{}", self.node.log()))
    }
}

/// Returns the data of the next event of this name that has what is expected.
fn event(events: &mut BufReader<TcpStream>, name: &str, mut has: impl FnMut(&Value) -> bool) -> Value {
    let mut lines = events.lines().map(Result::unwrap);
    loop {
        let head = lines.next().expect("the stream has ended");
        if head != format!("event: {name}") {
            continue;
        }
        let data = serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        if has(&data) {
            return data;
        }
    }
}

#[test]
fn the_page_has_flows_drops_and_the_start_and_goes_on_after_a_restart() {
    require_root!();
    let mut fixture = Fixture::new();
    // No rows while the agent starts.
    let denial = |panel: &Value| {
        let mut rows = panel["drops"]["rows"].as_array().into_iter().flatten();
        rows.find(|row| row["rule"] == "CiliumNetworkPolicy/default/server").cloned()
    };
    let traffic = fixture.until("api/traffic", |panel| denial(panel).is_some());
    let drop = denial(&traffic).unwrap();
    let ends = [&drop["source"], &drop["destination"], &drop["port"]].map(|text| text.as_str().unwrap());
    assert_eq!(ends, ["default/other", "default/server", "7000/UDP"]);
    assert_eq!(drop["reason"], "POLICY_DENY");
    assert!(drop["meaning"].as_str().is_some_and(|text| text.contains("rule")), "{drop:#}");
    let services = traffic["services"]["rows"].as_array().unwrap();
    let is_client =
        |row: &&Value| row["source"] == "default/client" && row["destination"] == "default/server";
    assert!(
        services.iter().find(is_client).is_some_and(|row| row["forwarded"].as_u64() > Some(0)),
        "{traffic:#}"
    );

    let expression = "_flow.verdict == Verdict.DROPPED && _flow.source.pod_name == 'other'";
    let dropped = fixture.node.apiary(&["hubble", "observe", "--all", "--cel-expression", expression]);
    let is_denied =
        |line: &str| line.contains("default/other:") && (line.contains("DROPPED") || line.contains("DENIED"));
    assert!(!dropped.is_empty() && dropped.lines().all(is_denied), "{dropped}");

    let endpoints = fixture.json("api/endpoints");
    let server =
        endpoints["endpoints"].as_array().unwrap().iter().find(|row| row["name"] == "default/server");
    let server = server.unwrap_or_else(|| panic!("{endpoints:#}"));
    assert_eq!(
        (&server["enforced"], &server["policy_state"]),
        (&json!("ingress"), &json!("Realized")),
        "{server:#}"
    );
    assert_eq!(server["policies"], json!(["CiliumNetworkPolicy/default/server"]), "{server:#}");
    let node = fixture.json("api/node");
    assert!(node["health"].as_array().unwrap().iter().any(|row| row["level"] == "OK"), "{node:#}");
    let maps = fixture.json("api/maps");
    assert!(maps["pressure"].as_array().unwrap().iter().all(|row| row["pressure"].is_number()), "{maps:#}");
    assert!(!maps["sizes"].as_array().unwrap().is_empty(), "{maps:#}");
    assert!(fixture.text("api/timeline.svg").contains("<svg "));

    let mut events = fixture.open("api/flows?verdict=dropped&pod=other&namespace=default&port=7000");
    let is_other = |flow: &Value| flow["source"] == "default/other" && flow["verdict"] == "DROPPED";
    let flows =
        event(&mut events, "flows", |data| data["flows"].as_array().is_some_and(|flows| !flows.is_empty()));
    assert!(flows["flows"].as_array().unwrap().iter().all(is_other), "{flows:#}");

    fixture.node.kill();
    event(&mut events, "state", |data| data["error"].is_string());
    assert!(fixture.json("api/node")["error"].is_string());
    fixture.node.spawn();
    fixture.node.wait_ready();
    event(&mut events, "state", |data| data["error"].is_null());
    fixture.until("api/traffic", |panel| denial(panel).is_some());
    let flows =
        event(&mut events, "flows", |data| data["flows"].as_array().is_some_and(|flows| !flows.is_empty()));
    assert!(flows["flows"].as_array().unwrap().iter().all(is_other), "{flows:#}");
}

/// A browser by the protocol of its developer tools, on two pipes.
struct Browser {
    _process: Running,
    commands: fs::File,
    messages: BufReader<fs::File>,
    id: u64,
    session: Value,
    /// Entries of its log: errors of scripts, refusals of the content security policy.
    log: Vec<String>,
}

impl Browser {
    fn open(node: &Node, page: &str) -> Browser {
        let folder = node.sandbox().dir();
        let (commands, messages) = (folder.join("commands"), folder.join("messages"));
        let line = format!(
            "mkfifo {0} {1} && exec chromium --headless --no-sandbox --disable-gpu --user-data-dir={2} --remote-debugging-pipe 3<{0} 4>{1}",
            commands.display(),
            messages.display(),
            folder.join("profile").display()
        );
        let process =
            Running(node.host().command("sh").args(["-c", &line]).stderr(Stdio::null()).spawn().unwrap());
        let opened = || if messages.exists() { Ok(()) } else { Err("no pipe".to_owned()) };
        try_wait_until(LIMIT, opened).unwrap();
        let commands = fs::OpenOptions::new().write(true).open(commands).unwrap();
        let messages = BufReader::new(fs::File::open(messages).unwrap());
        let mut browser =
            Browser { _process: process, commands, messages, id: 0, session: Value::Null, log: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", attached)["sessionId"].clone();
        browser.call("Log.enable", json!({}));
        browser.call("Runtime.enable", json!({}));
        browser.call("Page.navigate", json!({"url": page}));
        browser
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut command = json!({"id": self.id, "method": method, "params": params});
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let mut message = Vec::new();
            self.messages.read_until(0, &mut message).unwrap();
            message.pop();
            let mut message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == self.id {
                return message["result"].take();
            }
            if ["Log.entryAdded", "Runtime.exceptionThrown"].contains(&message["method"].as_str().unwrap()) {
                self.log.push(message["params"].to_string());
            }
        }
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}))["result"]["value"].take()
    }
}

#[test]
fn a_browser_shows_all_panels() {
    require_root!();
    require!(
        std::env::var_os("FULL").is_some_and(|full| !full.is_empty()),
        "a browser has a hundred packages of Debian: FULL=1 runs it"
    );
    require_command!("chromium");
    let fixture = Fixture::new();
    fixture
        .until("api/traffic", |panel| panel["drops"]["rows"].as_array().is_some_and(|rows| !rows.is_empty()));
    let mut browser = Browser::open(&fixture.node, &fixture.page);
    for (id, text) in [
        ("agent", "connected"),
        ("stream", "live"),
        ("node", "reporters are OK, 0 degraded"),
        ("endpoints", "CiliumNetworkPolicy/default/server"),
        ("services", "default/client"),
        ("drops", "POLICY_DENY"),
        ("rows", "default/other"),
        ("maps", "IP cache"),
    ] {
        let shown = || {
            fixture.send(&fixture.client);
            fixture.send(&fixture.other);
            let shown = browser.evaluate(&format!("document.getElementById('{id}').textContent"));
            if shown.as_str().unwrap_or_default().contains(text) {
                Ok(())
            } else {
                Err(format!("{id}: {shown}"))
            }
        };
        try_wait_until(LIMIT, shown).unwrap_or_else(|error| panic!("{error}"));
    }
    let picture = browser.evaluate("document.getElementById('timeline').naturalWidth");
    assert!(picture.as_u64() > Some(0), "the timeline is drawn: {picture}");
    let refused =
        browser.evaluate("try { document.body.innerHTML = '<b>'; 'taken' } catch (error) { error.name }");
    assert_eq!(refused, "TypeError", "markup is refused by the policy of the page");
    let log: Vec<&String> = browser
        .log
        .iter()
        .filter(|entry| !entry.contains("TrustedHTML") && !entry.contains("favicon"))
        .collect();
    assert!(log.is_empty(), "{log:#?}");
    if let Some(file) = std::env::var_os("APIARY_SCREENSHOT") {
        let size = json!({"width": 1200, "height": 1300, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", size);
        let picture = browser.call("Page.captureScreenshot", json!({"format": "png"}));
        fs::write(file, picture["data"].as_str().unwrap()).unwrap();
    }
}

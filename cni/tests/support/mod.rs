//! A node with an agent that only records its requests.

#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use test_kit::{NetNs, Sandbox};

pub(crate) const CONTAINER_ID: &str = "0123456789abcdef";
pub(crate) const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"cilium","type":"cilium-cni"}"#;

/// A request that the fake agent received.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Value,
    /// The output of `ip link show` for the host's pod interfaces at that moment.
    pub(crate) host_links: String,
}

/// A function that overrides the fake agent's response to a request line, if it returns one.
pub(crate) type Override = Box<dyn Fn(&str) -> Option<(u16, String)> + Send>;

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    override_answer: Option<Override>,
    config: Value,
    /// The response to `GET /endpoint`.
    endpoints: Value,
}

/// The fake agent; it serves until the test ends.
#[derive(Clone, Default)]
pub(crate) struct FakeAgent(Arc<Mutex<State>>);

impl FakeAgent {
    /// Starts a fake agent whose thread waits for a socket. The thread must be created before the sandbox is entered:
    /// one that is created inside shares its file system state and keeps the sandbox from being removed.
    fn start() -> (Self, Sender<(UnixListener, NetNs)>) {
        let agent = Self::default();
        agent.0.lock().unwrap().config = default_config();
        let (give, take) = channel::<(UnixListener, NetNs)>();
        let server = agent.clone();
        let serve = move || {
            let Ok((listener, host)) = take.recv() else { return };
            for stream in listener.incoming() {
                server.serve(stream.unwrap(), &host);
            }
        };
        thread::Builder::new().name("fake-agent".into()).spawn(serve).unwrap();
        (agent, give)
    }

    pub(crate) fn answer_with(&self, answer: impl Fn(&str) -> Option<(u16, String)> + Send + 'static) {
        self.0.lock().unwrap().override_answer = Some(Box::new(answer));
    }

    pub(crate) fn configure(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.0.lock().unwrap().config["status"]);
    }

    pub(crate) fn list_endpoints(&self, endpoints: Value) {
        self.0.lock().unwrap().endpoints = endpoints;
    }

    /// Returns the requests since the previous call, oldest first.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }

    /// Returns the request lines of [`Self::calls`].
    pub(crate) fn lines(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.line).collect()
    }

    fn serve(&self, stream: UnixStream, host: &NetNs) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
            let mut headers = Vec::new();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                if header.trim().is_empty() {
                    break;
                }
                headers.push(header.trim().to_owned());
            }
            let length = headers.iter().find_map(|header| header.strip_prefix("Content-Length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (status, answer) = self.answer(Call {
                line,
                headers,
                body,
                host_links: host.ip("-o link show type veth").unwrap(),
            });
            write_answer(reader.get_mut(), status, &answer);
        }
    }

    fn answer(&self, call: Call) -> (u16, String) {
        let mut state = self.0.lock().unwrap();
        let line = call.line.clone();
        state.calls.push(call);
        if let Some(answer) = state.override_answer.as_ref().and_then(|answer| answer(&line)) {
            return answer;
        }
        let path = line.split(' ').nth(1).unwrap_or_default();
        match line.split(' ').next().unwrap_or_default() {
            "GET" if path == "/v1/config" => (200, state.config.to_string()),
            "GET" if path == "/v1/healthz" => (200, "{}".into()),
            "GET" if path == "/v1/endpoint" => (200, state.endpoints.to_string()),
            "GET" if path.ends_with("/healthz") => (200, r#"{"overallHealth":"OK"}"#.into()),
            "POST" if path.starts_with("/v1/ipam") => (201, ipam_answer().to_string()),
            "PUT" => (201, r#"{"id":7,"status":{"state":"ready"}}"#.into()),
            "DELETE" => (200, String::new()),
            _ => (404, String::new()),
        }
    }
}

/// Writes a response; long bodies are chunked, as in Cilium's responses.
fn write_answer(stream: &mut UnixStream, status: u16, body: &str) {
    let mut text = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n");
    if body.len() > 100 {
        text += "Transfer-Encoding: chunked\r\n\r\n";
        for chunk in body.as_bytes().chunks(64) {
            text += &format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap());
        }
        text += "0\r\n\r\n";
    } else {
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    }
    // A plugin that was killed does not read the response.
    let _ = stream.write_all(text.as_bytes());
}

fn default_config() -> Value {
    json!({"status": {
        "addressing": {
            "ipv4": {"alloc-range": "10.9.0.0/24", "enabled": true, "ip": "10.9.0.1"},
            "ipv6": {"alloc-range": "fd09::/64", "enabled": true, "ip": "fd09::1"},
        },
        "GROIPv4MaxSize": 65536, "GROMaxSize": 65536, "GSOIPv4MaxSize": 65536, "GSOMaxSize": 65536,
        "datapathMode": "veth", "deviceMTU": 1500, "routeMTU": 1450, "ipam-mode": "cluster-pool",
        "ipLocalReservedPorts": "8472", "packetizationLayerPMTUDMode": "1",
    }})
}

fn ipam_answer() -> Value {
    json!({
        "address": {"ipv4": "10.9.0.5", "ipv4-pool-name": "default", "ipv6": "fd09::5", "ipv6-pool-name": "default"},
        "host-addressing": default_config()["status"]["addressing"],
        "ipv4": {"cidrs": null, "expiration-uuid": "uuid-4", "ip": "10.9.0.5"},
        "ipv6": {"cidrs": null, "expiration-uuid": "uuid-6", "ip": "fd09::5"},
    })
}

/// A sandbox with an agent and the namespace of one pod.
pub(crate) struct Node {
    pub(crate) agent: FakeAgent,
    pub(crate) pod: NetNs,
    pub(crate) socket: PathBuf,
    pub(crate) sandbox: Sandbox,
}

impl Node {
    pub(crate) fn new() -> Self {
        let (agent, serve) = FakeAgent::start();
        let sandbox = Sandbox::new().unwrap();
        let pod = sandbox.netns("pod").unwrap();
        let socket = sandbox.run_dir().join("agent.sock");
        serve.send((UnixListener::bind(&socket).unwrap(), sandbox.host().clone())).unwrap();
        Self { agent, pod, socket, sandbox }
    }

    pub(crate) fn call(&self, command: &str, config: &str) -> Answer {
        self.call_with(command, config, &[])
    }

    pub(crate) fn call_with(&self, command: &str, config: &str, env: &[(&str, &str)]) -> Answer {
        let mut process = plugin();
        process
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", CONTAINER_ID)
            .env("CNI_NETNS", self.pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p1;K8S_POD_UID=u1")
            .env("CILIUM_SOCK", &self.socket)
            .envs(env.iter().copied());
        feed(process, config)
    }

    /// Waits until no pod interface exists: links are removed after the plugin has returned.
    pub(crate) fn await_no_link(&self) {
        let gone = || !self.sandbox.host().ip("-o link").unwrap().contains("lxc");
        test_kit::wait_until("the host's end is gone", Duration::from_secs(30), gone);
    }

    /// Returns everything that an ADD could leave on the node.
    pub(crate) fn traces(&self) -> String {
        let inside = self.pod.ip("-o addr").unwrap() + &self.pod.ip("route show table all").unwrap();
        self.sandbox.host().ip("-o link").unwrap() + &inside
    }

    pub(crate) fn deletion_queue(&self) -> Vec<String> {
        let folder = self.sandbox.run_dir().join("deleteQueue");
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let is_deletion = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "delete");
        let paths = entries.map(|entry| entry.unwrap().path()).filter(is_deletion);
        paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }
}

/// The output of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Returns code and texts of an error document.
    pub(crate) fn error(&self) -> String {
        assert!(!self.ok, "{self:?}");
        let document = self.json();
        let mut text = format!("{} {}", document["code"], document["msg"].as_str().unwrap());
        if let Some(details) = document["details"].as_str() {
            text += &format!(" ({details})");
        }
        text
    }
}

/// Returns a command for the plugin without any `CNI_` variables of the test's own environment.
pub(crate) fn plugin() -> Command {
    let mut process = Command::new(env!("CARGO_BIN_EXE_apiary-cni"));
    process.env_clear();
    process
}

pub(crate) fn feed(mut process: Command, config: &str) -> Answer {
    let begin = Instant::now();
    let mut child =
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    Answer { ok: status.success(), stdout: String::from_utf8(stdout).unwrap(), took: begin.elapsed() }
}

//! A node: the agent in a sandbox with an uplink.

mod pods;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_kit::{NetNs, Process, Sandbox, SandboxOptions, try_wait_until};

pub use pods::pod_manifest;

use crate::{Answer, Pod, request};

/// Limit of a start; not a guarantee, which the benchmarks measure.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The folder of manifests in the sandbox's folder.
const CLUSTER: &str = "cluster";

/// A node with an agent that can be started, stopped and killed, and pods.
#[derive(Debug)]
pub struct Node {
    /// Keys and values of the agent's configuration folder; a change takes effect at the next start.
    pub config: BTreeMap<String, String>,
    /// The agent's binary; a change takes effect at the next start.
    pub program: PathBuf,
    agent: Option<Process>,
    pods: Vec<Pod>,
    world: NetNs,
    sandbox: Sandbox,
}

/// Returns the path of a binary of the workspace: in `$APIARY_BINARIES`, else in the target folder of the tests.
///
/// # Panics
/// When it is not there; the message says how to build it.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let folder = match std::env::var_os("APIARY_BINARIES") {
        Some(folder) => PathBuf::from(folder),
        // target/debug/deps/test-1234 -> target/debug
        None => std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned(),
    };
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not built: run tools/build, or cargo build --workspace", path.display());
    path
}

impl Node {
    /// Address of the node on its uplink.
    pub const IPV4: &str = "192.0.2.1";
    /// The same for IPv6.
    pub const IPV6: &str = "2001:db8::1";
    /// Address of a host outside of the node.
    pub const WORLD_IPV4: &str = "192.0.2.2";
    /// The same for IPv6.
    pub const WORLD_IPV6: &str = "2001:db8::2";

    /// Creates a node; the agent is not started.
    ///
    /// # Panics
    /// When the sandbox cannot be made.
    #[must_use]
    pub fn new() -> Self {
        Self::inside(Sandbox::new().expect("a sandbox can be made as root"))
    }

    /// The same, with a cgroup of its own, at which the agent attaches programs of sockets.
    ///
    /// # Panics
    /// When the sandbox cannot be made.
    #[must_use]
    pub fn with_cgroup() -> Self {
        let options = SandboxOptions { cgroup: true, ..SandboxOptions::default() };
        let mut node = Self::inside(Sandbox::with(&options).expect("a sandbox can be made as root"));
        let cgroup = node.sandbox.cgroup().unwrap().to_str().unwrap().to_owned();
        node.config.insert("cgroup-root".to_owned(), cgroup);
        node
    }

    /// The same, with an agent that is started in a cgroup with a limit of memory; `None` if the machine does not let a
    /// test make one.
    ///
    /// # Panics
    /// When the sandbox cannot be made.
    #[must_use]
    pub fn limited(memory: u64) -> Option<Self> {
        let options = SandboxOptions { memory: Some(memory), ..SandboxOptions::default() };
        match Sandbox::with(&options) {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            sandbox => Some(Self::inside(sandbox.expect("a sandbox can be made as root"))),
        }
    }

    fn inside(sandbox: Sandbox) -> Self {
        let world = sandbox.netns("world").unwrap();
        let host = sandbox.host();
        host.veth("eth0", &world, "eth0").unwrap();
        host.ip_batch(&format!(
            "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
             route add default via {}\nroute add default via {}\n",
            Self::IPV4,
            Self::IPV6,
            Self::WORLD_IPV4,
            Self::WORLD_IPV6
        ))
        .unwrap();
        world
            .ip_batch(&format!(
                "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n\
                 route add default via {}\nroute add default via {}\n",
                Self::WORLD_IPV4,
                Self::WORLD_IPV6,
                Self::IPV4,
                Self::IPV6
            ))
            .unwrap();
        let path = |p: PathBuf| p.to_str().unwrap().to_owned();
        fs::create_dir(sandbox.dir().join(CLUSTER)).unwrap();
        let config = [
            ("cluster-folder", path(sandbox.dir().join(CLUSTER))),
            ("state-dir", path(sandbox.run_dir())),
            ("socket-path", path(sandbox.run_dir().join("cilium.sock"))),
            ("shell-sock-path", path(sandbox.run_dir().join("shell.sock"))),
            ("bpf-root", path(sandbox.bpf_root())),
            ("ipv4-range", "10.244.0.0/24".to_owned()),
            ("ipv6-range", "fd00:10:244::/112".to_owned()),
            ("enable-source-ip-verification", "true".to_owned()),
            ("preallocate-bpf-maps", "false".to_owned()),
            // Hundreds of starts, each with a dozen processes: tests of the rules switch them on.
            ("install-iptables-rules", "false".to_owned()),
            // Probes of the own node would be packets, connections and wakeups that tests count.
            ("enable-health-checking", "false".to_owned()),
        ];
        let config = config.map(|(key, value)| (key.to_owned(), value)).into();
        Self { config, program: binary("agent"), agent: None, pods: Vec::new(), world, sandbox }
    }

    /// Creates a node with a ready agent.
    #[must_use]
    pub fn started() -> Self {
        let mut node = Self::new();
        node.start();
        node
    }

    /// Returns the sandbox of the node.
    #[must_use]
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Returns the node's network namespace.
    #[must_use]
    pub fn host(&self) -> &NetNs {
        self.sandbox.host()
    }

    /// Returns the namespace of the host outside.
    #[must_use]
    pub fn world(&self) -> &NetNs {
        &self.world
    }

    /// Returns the agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(&self.config["socket-path"])
    }

    /// Returns the folder with a subfolder per endpoint.
    #[must_use]
    pub fn endpoint_files(&self) -> PathBuf {
        Path::new(&self.config["state-dir"]).join("state")
    }

    /// Writes a file of manifests into the cluster folder atomically. Returns the time before the rename.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn apply(&self, file: &str, manifests: &str) -> Instant {
        let folder = self.sandbox.dir();
        let (draft, place) = (folder.join(format!("draft-{file}")), folder.join(CLUSTER).join(file));
        fs::write(&draft, manifests).unwrap();
        let begin = Instant::now();
        fs::rename(draft, place).unwrap();
        begin
    }

    /// Removes a file from the cluster folder.
    ///
    /// # Panics
    /// When there is none.
    pub fn withdraw(&self, file: &str) {
        fs::remove_file(self.sandbox.dir().join(CLUSTER).join(file)).unwrap();
    }

    /// Returns a pinned map's path.
    #[must_use]
    pub fn pin(&self, name: &str) -> PathBuf {
        self.sandbox.bpf_root().join("tc/globals").join(name)
    }

    /// Writes the configuration folder and returns the command that starts the agent with it.
    ///
    /// # Panics
    /// When the folder cannot be written.
    #[must_use]
    pub fn agent_command(&self) -> Command {
        let program = self.program.to_str().unwrap();
        match self.sandbox.memory_group() {
            None => self.agent_command_of(&[program]),
            // The shell enters the group and becomes the agent.
            Some(group) => {
                let enter = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
                self.agent_command_of(&["/bin/sh", "-c", enter, group.to_str().unwrap(), program])
            }
        }
    }

    /// The same with other words in front of the agent's options.
    ///
    /// # Panics
    /// When the folder cannot be written, and if programs would be attached to the root of the machine's cgroups.
    #[must_use]
    pub fn agent_command_of(&self, words: &[&str]) -> Command {
        let folder = self.sandbox.dir().join("config");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let is_on = |option| self.config.get(option).is_some_and(|value| value == "true");
        assert!(
            self.config.contains_key("cgroup-root")
                || !is_on("kube-proxy-replacement") && !is_on("bpf-lb-sock"),
            "programs of sockets would be attached to the root of the machine's cgroups: use Node::with_cgroup"
        );
        for (key, value) in &self.config {
            fs::write(folder.join(key), value).unwrap();
        }
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = self.host().command(words[0]);
        command
            .args(&words[1..])
            .arg("--config-dir")
            .arg(folder)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap());
        command.stderr(log);
        command
    }

    /// Starts the agent and waits until all endpoints are ready.
    ///
    /// # Panics
    /// When it is not ready in time; the message holds its log.
    pub fn start(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Starts the agent and does not wait.
    ///
    /// # Panics
    /// When it runs already or the binary cannot be started.
    pub fn spawn(&mut self) {
        let command = self.agent_command();
        self.spawn_command(command);
    }

    /// As [`spawn`](Self::spawn), by another command than [`agent_command`](Self::agent_command).
    ///
    /// # Panics
    /// When it runs already or the binary cannot be started.
    pub fn spawn_command(&mut self, mut command: Command) {
        assert!(self.agent.is_none(), "the agent runs already");
        self.agent = Some(Process::start(&mut command).unwrap());
    }

    /// Waits until the agent answers and every endpoint is ready. Returns the duration.
    ///
    /// # Panics
    /// When it is not ready in time; the message holds its log.
    pub fn wait_ready(&mut self) -> Duration {
        let begin = Instant::now();
        let result = try_wait_until(START_LIMIT, || {
            if let Some(agent) = &mut self.agent
                && let Ok(Some(status)) = agent.child().try_wait()
            {
                return Ok(Err(format!("the agent ended: {status}")));
            }
            let answer = self.request("GET", "/v1/endpoint", None).map_err(|e| e.to_string())?;
            if answer.status != 200 {
                return Err(format!("{answer:?}"));
            }
            let endpoints = answer.json().as_array().cloned().unwrap_or_default();
            // The host's own endpoint is always among them.
            let host = endpoints.iter().any(|endpoint| endpoint["status"]["identity"]["id"] == 1);
            let waiting: Vec<&Value> = endpoints.iter().filter(|e| e["status"]["state"] != "ready").collect();
            if host && waiting.is_empty() {
                Ok(Ok(()))
            } else {
                Err(format!("host {host}, not ready: {waiting:?}"))
            }
        });
        if let Err(error) | Ok(Err(error)) = result {
            panic!("{error}\nlog of the agent:\n{}", self.log());
        }
        begin.elapsed()
    }

    /// Stops the agent as a service manager does, and asserts exit code 0.
    ///
    /// # Panics
    /// When it does not end with 0 in time.
    pub fn stop(&mut self) {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.terminate().unwrap();
        // The last flush to disk may wait for writes of other processes.
        let status =
            agent.wait(Duration::from_secs(120)).unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        assert!(status.success(), "the agent ended with {status}\nlog of the agent:\n{}", self.log());
    }

    /// Requests the agent to stop, in any state, and waits for its end. Returns its exit status.
    ///
    /// # Panics
    /// When it does not run, or does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.terminate().unwrap();
        agent.wait(Duration::from_secs(120)).unwrap()
    }

    /// Kills the agent (kill -9).
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) -> ExitStatus {
        self.agent.take().expect("the agent runs").kill().unwrap()
    }

    /// Sends the agent a signal by its name, such as `STOP`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, name: &str) {
        self.host().exec(&format!("kill -{name} {}", self.agent_pid())).unwrap();
    }

    /// Returns the metrics that the agent exports at option `prometheus-serve-addr`, as lines.
    ///
    /// # Panics
    /// When it does not answer, or the option is not set.
    #[must_use]
    pub fn metrics(&self) -> Vec<String> {
        use std::io::{Read as _, Write as _};
        let address = &self.config["prometheus-serve-addr"];
        let read = || {
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        self.host().run(read).unwrap().lines().map(str::to_owned).collect()
    }

    /// The agent's process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("the agent runs").id()
    }

    /// Returns the agent's log over all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.sandbox.dir().join("agent.log")
    }

    /// Sends one request to the agent.
    pub fn request(&self, method: &str, path: &str, body: Option<&str>) -> std::io::Result<Answer> {
        request(&self.socket(), method, path, body)
    }

    /// Sends `GET path`, which must return 200. Returns the body as JSON.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path, None).unwrap();
        assert_eq!(answer.status, 200, "{path}: {answer:?}\n{}", self.log());
        answer.json()
    }

    /// Returns an unused address of the pods' range.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn unused_ipv4(&self) -> Ipv4Addr {
        let taken = format!("{}{}", self.get("/v1/endpoint"), self.get("/v1/config"));
        let mut candidates = (100..250).map(|last| Ipv4Addr::new(10, 244, 0, last));
        candidates.find(|address| !taken.contains(&format!("\"{address}\""))).expect("an address is free")
    }

    /// Returns ids, addresses and states of all endpoints, in a stable order.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let mut rows: Vec<String> = self
            .get("/v1/endpoint")
            .as_array()
            .into_iter()
            .flatten()
            .map(|e| {
                let networking = &e["status"]["networking"];
                format!(
                    "{} {} {} {}",
                    e["id"], e["status"]["state"], networking["addressing"], networking["mac"]
                )
            })
            .collect();
        rows.sort();
        rows
    }

    /// Runs the operator's tool against this agent. Returns its standard output.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn apiary(&self, arguments: &[&str]) -> String {
        let output = self.apiary_command(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "apiary {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the command of the operator's tool against this agent.
    #[must_use]
    pub fn apiary_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host().command(binary("apiary"));
        command.args(arguments).env("CILIUM_SOCK", self.socket());
        command
    }

    /// Whether a path exists and has no owner but root.
    ///
    /// # Panics
    /// When it does not exist.
    #[must_use]
    pub fn is_private(path: &Path) -> bool {
        fs::metadata(path).unwrap().permissions().mode() & 0o007 == 0
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

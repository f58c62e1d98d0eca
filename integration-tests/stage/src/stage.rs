//! A cluster without nodes: etcd, kube-apiserver, kubectl.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use test_kit::{Keeper, try_wait_until};

use crate::folder::Folder;
use crate::server::Server;
use crate::users::Users;
use crate::{Gate, User, etcd};

/// Where an API server listens, inside of the stage's namespace.
fn api_server(number: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 6443 + number as u16))
}

/// Optional parts of a stage.
#[derive(Clone, Debug, Default)]
pub struct StageOptions {
    /// Ask roles and bindings what a user may do; else everybody with a token may do everything.
    pub rbac: bool,
    /// Write down each request of the agent's and the operator's accounts, for [`Stage::audit`].
    pub audit: bool,
    /// A second API server on the same etcd: number 1.
    pub second: bool,
}

/// A cluster without nodes, in a network namespace of its own. All methods can be called from any thread.
#[derive(Debug)]
pub struct Stage {
    // In the order in which they are dropped.
    api_servers: Vec<Mutex<Server>>,
    /// The number of the API server that kubectl asks: the one that was started last, while it runs.
    asked: AtomicUsize,
    etcd: Mutex<Server>,
    users: Arc<Users>,
    kubectl: PathBuf,
    gates: AtomicU32,
    namespaces: AtomicU32,
    keeper: Keeper,
    folder: Folder,
}

impl Stage {
    /// Returns the stage that all tests of this process share; the first call starts it, and it ends with the process.
    ///
    /// # Panics
    /// When it cannot be brought up; with the same reason for everybody.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<Stage, String>> = OnceLock::new();
        match SHARED.get_or_init(|| Self::start().map_err(|error| format!("{error:#}"))) {
            Ok(stage) => stage,
            Err(error) => panic!("no cluster stage: {error}"),
        }
    }

    /// A stage of the caller's own, ready to serve.
    pub fn start() -> Result<Self> {
        Self::with(&StageOptions::default())
    }

    /// The same, with the given extras.
    pub fn with(options: &StageOptions) -> Result<Self> {
        let programs = programs()?;
        let keeper = Keeper::new().context("a network namespace (needs root)")?;
        let folder = Folder::new()?;
        let users = Arc::new(Users::new(folder.path())?);
        let etcd = Server::new(programs.join("etcd"), etcd_arguments(folder.path()), folder.path());
        let numbers = 0..1 + usize::from(options.second);
        accounts_key(folder.path())?;
        let api_server_of = |number| {
            let arguments = api_server_arguments(folder.path(), options, number)?;
            Ok(Mutex::new(Server::new(programs.join("kube-apiserver"), arguments, folder.path())))
        };
        let api_servers: Vec<_> = numbers.clone().map(api_server_of).collect::<Result<_>>()?;
        let stage = Self {
            api_servers,
            asked: AtomicUsize::new(0),
            etcd: Mutex::new(etcd),
            users,
            kubectl: programs.join("kubectl"),
            gates: AtomicU32::new(0),
            namespaces: AtomicU32::new(0),
            keeper,
            folder,
        };
        stage.start_etcd()?;
        for number in numbers.rev() {
            let url = format!("https://{}", api_server(number));
            stage.users.kubeconfig(User::Admin, &url, &stage.kubeconfig(number))?;
            stage.start_server(number)?;
        }
        Ok(stage)
    }

    /// A new way to the API server, from the calling thread's network namespace.
    pub fn gate(&self) -> Result<Gate> {
        self.gate_to(0)
    }

    /// A new way to the API server of this number.
    pub fn gate_to(&self, server: usize) -> Result<Gate> {
        let number = self.gates.fetch_add(1, Ordering::Relaxed);
        let files = self.folder.path().join(format!("gate-{number}"));
        Gate::new(&self.keeper, api_server(server), self.users.clone(), files)
    }

    /// The folder of a user as a pod of that account has it: `token`, `ca.crt` and `namespace`.
    #[must_use]
    pub fn account(&self, user: User) -> PathBuf {
        self.users.folder(user)
    }

    /// Gives `user` another token, in the file that its kubeconfigs name. The old one is refused from now on: API servers
    /// are killed and started for that.
    pub fn replace_token(&self, user: User) -> Result<()> {
        self.users.replace(user)?;
        (0..self.api_servers.len()).rev().try_for_each(|number| {
            self.kill_server(number)?;
            self.start_server(number)
        })
    }

    /// Makes a namespace without other owners; its name begins with `name`.
    ///
    /// # Panics
    /// When the API server refuses it.
    #[must_use]
    pub fn namespace(&self, name: &str) -> String {
        let name = format!("{name}-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        self.kubectl(&["create", "namespace", &name]).unwrap();
        name
    }

    /// Runs kubectl as administrator, straight to an API server and through no gate; its standard output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, "")
    }

    /// The same with text at its standard input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = self
            .kubectl_command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let input = input.to_owned();
        // kubectl may speak before it has read everything.
        let writer = std::thread::Builder::new().spawn(move || stdin.write_all(input.as_bytes()))?;
        let output = child.wait_with_output()?;
        let _ = writer.join();
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// kubectl as administrator, to be started by the caller, for instance to watch.
    #[must_use]
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.keeper.netns().command(&self.kubectl);
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig(self.asked.load(Ordering::Relaxed)))
            .env("KUBECACHEDIR", self.folder.path().join("kubectl"))
            // It ends before it has made much garbage.
            .env("GOGC", "off")
            .current_dir("/");
        command
    }

    /// Creates or changes the objects of a manifest.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.kubectl_with(&["apply", "-f", "-"], manifest).map(drop)
    }

    /// Defines these kinds (CustomResourceDefinitions, as `k8s_types::schema` gives them) and waits until the API server
    /// lists objects of them.
    pub fn define(&self, definitions: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": definitions});
        self.kubectl_with(&["apply", "--server-side", "-f", "-"], &list.to_string())?;
        let name =
            |definition: &Value| definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let names: Vec<String> = definitions.iter().map(name).collect();
        let of_definition = |name: &String| format!("crd/{name}");
        let crds: Vec<String> = names.iter().map(of_definition).collect();
        let arguments = [&["wait", "--for=condition=Established", "--timeout=30s"], &*strs(&crds)].concat();
        self.kubectl(&arguments)?;
        // A moment later there may be no storage yet.
        let list = || self.kubectl(&["get", "-A", &names.join(",")]).map_err(|error| error.to_string());
        try_wait_until(Duration::from_secs(30), list).map(drop).map_err(anyhow::Error::msg)
    }

    /// `kubectl get ARGUMENTS -o json`.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], arguments].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Kills the API server (kill -9).
    pub fn kill_api_server(&self) -> Result<()> {
        self.kill_server(0)
    }

    /// Kills the API server of this number (kill -9); kubectl asks another one, if there is one.
    pub fn kill_server(&self, number: usize) -> Result<()> {
        lock(&self.api_servers[number]).kill()?;
        if let Some(other) = (0..self.api_servers.len()).find(|other| *other != number) {
            self.asked.store(other, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Starts the API server again and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        self.start_server(0)
    }

    /// Starts the API server of this number again and waits until it is ready.
    pub fn start_server(&self, number: usize) -> Result<()> {
        let folder = self.folder.path();
        fs::write(folder.join("tokens.csv"), self.users.csv()?)?;
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig(number).display());
        lock(&self.api_servers[number]).start(&self.keeper, || {
            // The first server makes the certificate itself.
            self.users.trust(&folder.join("keys/apiserver.crt"))?;
            let answer = self.kubectl(&["get", "--raw", "/readyz", "--request-timeout=5s", &kubeconfig])?;
            ensure!(answer == "ok", "{answer}");
            Ok(())
        })?;
        self.asked.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Kills etcd (kill -9); what it has stored stays.
    pub fn kill_etcd(&self) -> Result<()> {
        lock(&self.etcd).kill()
    }

    /// Starts etcd again and waits until it is ready.
    pub fn start_etcd(&self) -> Result<()> {
        lock(&self.etcd).start(&self.keeper, || etcd::health(&self.keeper))
    }

    /// Has etcd forget everything but the present state; its revision. A watch from an older version gets 410 from an API
    /// server that was started since; one that was not still remembers what it has seen itself.
    pub fn compact(&self) -> Result<i64> {
        etcd::compact(&self.keeper)
    }

    /// Process ids of etcd and the first API server, where they run.
    #[must_use]
    pub fn pids(&self) -> [Option<u32>; 2] {
        [lock(&self.etcd).pid(), lock(&self.api_servers[0]).pid()]
    }

    /// Requests of the agent's and the operator's accounts to the first API server so far, oldest first, as the audit log has
    /// them ([`StageOptions::audit`]): `verb`, `requestURI`, `user`, `responseStatus`, ...
    pub fn audit(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.folder.path().join(AUDIT_LOG)).context("the option audit")?;
        // The last line may be under way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    fn kubeconfig(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("kubeconfig-{number}"))
    }
}

const AUDIT_LOG: &str = "audit.log";
const ACCOUNTS_KEY: &str = "accounts.key";

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn lock(server: &Mutex<Server>) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the programs, which are built now if they never were.
fn programs() -> Result<PathBuf> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/stage");
    let output = Command::new(&tool)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| tool.display().to_string())?;
    ensure!(output.status.success(), "{} failed: {}, see above", tool.display(), output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim_end()))
}

fn etcd_arguments(folder: &Path) -> Vec<String> {
    let url = format!("http://{}", etcd::ADDRESS);
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=error".to_owned(),
    ]
}

/// Makes the key that tokens of service accounts are signed by.
fn accounts_key(folder: &Path) -> Result<()> {
    let key = Command::new("openssl")
        .args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"])
        .arg(folder.join(ACCOUNTS_KEY))
        .output()
        .context("openssl")?;
    ensure!(key.status.success(), "openssl: {}", String::from_utf8_lossy(&key.stderr));
    Ok(())
}

/// Also writes the files that they name.
fn api_server_arguments(folder: &Path, options: &StageOptions, number: usize) -> Result<Vec<String>> {
    let path = |name: &str| folder.join(name).display().to_string();
    let address = api_server(number);
    let mut arguments = vec![
        format!("--etcd-servers=http://{}", etcd::ADDRESS),
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
        format!("--secure-port={}", address.port()),
        // Loopback is no address for endpoints.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--cert-dir={}", path("keys")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", path(ACCOUNTS_KEY)),
        format!("--service-account-signing-key-file={}", path(ACCOUNTS_KEY)),
        format!("--token-auth-file={}", path("tokens.csv")),
        format!("--authorization-mode={}", if options.rbac { "RBAC" } else { "AlwaysAllow" }),
        // The service accounts that it requires of pods do not exist.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    if options.audit && number == 0 {
        let users = [User::Agent, User::Operator].map(User::name);
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Request", "users": users}],
        });
        fs::write(folder.join("audit.yaml"), policy.to_string())?;
        arguments.push(format!("--audit-policy-file={}", path("audit.yaml")));
        arguments.push(format!("--audit-log-path={}", path(AUDIT_LOG)));
        arguments.push("--audit-log-mode=blocking".to_owned());
    }
    Ok(arguments)
}

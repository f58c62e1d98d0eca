//! Pods of a DaemonSet or Deployment on a machine, as a kubelet starts them from the rendered object: volumes, variables,
//! capabilities, init containers in order, probes and hooks.
//!
//! Of what a pod can ask for, everything is done that the chart uses, but profiles of AppArmor, SELinux and seccomp, and limits
//! of resources; anything else fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use test_kit::{Container, Mount, NetNs, Process, Propagation, try_wait_until};

use crate::image::Image;
use crate::machine::{Machine, descendants, text};
use crate::{Cluster, machine};

/// How long a step may take, or a container until it is ready.
const LIMIT: Duration = Duration::from_secs(120);
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Capabilities by number (linux/capability.h).
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Those that containerd gives to a container that drops none.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A pod that can be started on a machine.
#[derive(Debug)]
pub struct Workload<'a> {
    machine: &'a Machine,
    images: &'a [Image],
    name: String,
    namespace: String,
    /// The pod's spec; tests may change it.
    pub spec: Value,
    /// The folder or file of each volume on the machine.
    volumes: BTreeMap<String, PathBuf>,
    /// The variables that every container gets.
    environment: Vec<(String, String)>,
    ns: NetNs,
}

/// A container that runs.
#[derive(Debug)]
pub struct RunningContainer {
    spec: Value,
    process: Process,
    log: PathBuf,
}

impl<'a> Workload<'a> {
    /// Prepares a pod of a rendered DaemonSet or Deployment: its volumes are made. `account` is the folder of its account's
    /// token, `config_maps` are those of the cluster.
    ///
    /// # Panics
    /// When a volume cannot be made or is of no kind that is known here.
    #[must_use]
    pub fn new(
        machine: &'a Machine,
        images: &'a [Image],
        object: &Value,
        cluster: &Cluster,
        account: &Path,
    ) -> Self {
        let metadata = &object["metadata"];
        let (name, namespace) = (str(&metadata["name"]).to_owned(), str(&metadata["namespace"]).to_owned());
        let spec = object["spec"]["template"]["spec"].clone();
        assert_eq!(spec["hostNetwork"], true, "a pod with a network of its own is not started here");
        let own = Path::new("/var/lib/kubelet").join(&name);
        let mut volumes = BTreeMap::new();
        for volume in list(&spec["volumes"]) {
            let name = str(&volume["name"]);
            let path = make_volume(machine, cluster, &namespace, volume, &own.join(name));
            volumes.insert(name.to_owned(), path);
        }
        if spec["automountServiceAccountToken"] == true {
            copy_folder(account, &outside(machine, &own.join("account")));
            volumes.insert(ACCOUNT.to_owned(), own.join("account"));
        }
        let server = cluster.gate.address();
        let environment = [
            ("KUBERNETES_SERVICE_HOST", server.ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", server.port().to_string()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let ns = cluster.node.host().clone();
        Workload { machine, images, name, namespace, spec, volumes, environment, ns }
    }

    /// Runs the init containers in order. Returns the output of each, by name.
    ///
    /// # Panics
    /// When one fails.
    #[must_use]
    pub fn run_init_containers(&self) -> Vec<(String, String)> {
        list(&self.spec["initContainers"])
            .iter()
            .map(|spec| (str(&spec["name"]).to_owned(), self.run(spec)))
            .collect()
    }

    /// Runs a container of this spec until it ends. Returns its output.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn run(&self, spec: &Value) -> String {
        self.try_run(spec).unwrap_or_else(|output| panic!("{}: {output}", self.file_name(spec)))
    }

    /// Runs a container of this spec until it ends. Returns its output, as an error if it fails.
    ///
    /// # Errors
    /// The status and the output of a container that has failed.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn try_run(&self, spec: &Value) -> Result<String, String> {
        let (image, container) = self.container(spec);
        let name = self.file_name(spec);
        let output = self.machine.container_command(&name, &image.root, &container).output().unwrap();
        match output.status.success() {
            true => Ok(text(&output)),
            false => Err(format!("{}: {}", output.status, text(&output))),
        }
    }

    /// Starts the pod's container and runs its hook `postStart`.
    ///
    /// # Panics
    /// When it cannot be started, or its hook fails.
    #[must_use]
    pub fn start(&self) -> RunningContainer {
        let [spec] = list(&self.spec["containers"]) else { panic!("not one container: {}", self.spec) };
        let (image, container) = self.container(spec);
        let name = self.file_name(spec);
        let log = self.machine.root().join(format!("containers/{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = self.machine.container_command(&name, &image.root, &container);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let process = Process::start(&mut command).unwrap();
        let running = RunningContainer { spec: spec.clone(), process, log };
        // The kernel keeps 15 bytes of a name.
        let program: String = container.program[0].rsplit('/').next().unwrap().chars().take(15).collect();
        let is_there = || match running.pid().map(machine::name) {
            Some(name) if name == program => Ok(()),
            found => Err(format!("the container's process is {found:?}\n{}", running.log())),
        };
        try_wait_until(LIMIT, is_there).unwrap();
        self.hook(&running, "postStart");
        running
    }

    /// Ends a container as a kubelet does: hook `preStop`, then SIGTERM. Returns the output of the hook.
    ///
    /// # Panics
    /// When the hook fails or the process does not end.
    pub fn stop(&self, mut running: RunningContainer) -> (String, ExitStatus) {
        let output = self.hook(&running, "preStop");
        let pid = running.pid().expect("the container runs").to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(kill.success());
        let status = running.process.wait(LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", running.log()));
        (output, status)
    }

    /// Runs a hook of a container if it has it. Returns its output.
    fn hook(&self, running: &RunningContainer, name: &str) -> String {
        let hook = &running.spec["lifecycle"][name];
        if hook.is_null() {
            return String::new();
        }
        let mut spec = running.spec.clone();
        (spec["command"], spec["args"]) = (hook["exec"]["command"].clone(), json!([]));
        assert!(spec["command"].is_array(), "a hook of another kind: {hook}");
        self.exec(running, &spec)
    }

    /// Runs the command of `spec` in a container that runs. Returns its output.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn exec(&self, running: &RunningContainer, spec: &Value) -> String {
        let pid = running.pid().unwrap_or_else(|| panic!("the container has ended\n{}", running.log()));
        let (_, container) = self.container(spec);
        let name = format!("{}-hook", self.file_name(spec));
        let output = self.machine.hook_command(&name, pid, &container).output().unwrap();
        assert!(output.status.success(), "{:?}: {}", container.program, text(&output));
        text(&output)
    }

    /// Waits until a probe of a container succeeds.
    ///
    /// # Panics
    /// When it does not in time, or the container ends.
    pub fn wait_for_probe(&self, running: &mut RunningContainer, name: &str) {
        let probe = running.spec[name]["httpGet"].clone();
        let port = list(&running.spec["ports"]).iter().find(|port| port["name"] == probe["port"]).unwrap();
        let address =
            (str(&probe["host"]).to_owned(), u16::try_from(port["containerPort"].as_u64().unwrap()).unwrap());
        let headers = list(&probe["httpHeaders"]).iter();
        let headers =
            headers.map(|header| format!("{}: {}\r\n", str(&header["name"]), str(&header["value"])));
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n{}\r\n",
            str(&probe["path"]),
            address.0,
            address.1,
            headers.collect::<String>()
        );
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect((address.0.as_str(), address.1))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let result = try_wait_until(LIMIT, || {
            if let Ok(Some(status)) = running.process.child().try_wait() {
                return Ok(Err(format!("the container has ended: {status}")));
            }
            match self.ns.run(ask) {
                Ok(answer) if answer.split(' ').nth(1) == Some("200") => Ok(Ok(())),
                other => Err(format!("{name}: {other:?}")),
            }
        });
        if let Err(error) | Ok(Err(error)) = result {
            panic!("{error}\n{}", running.log());
        }
    }

    fn file_name(&self, spec: &Value) -> String {
        format!("{}-{}", self.name, str(&spec["name"]))
    }

    /// Returns the image and the container of a spec.
    fn container(&self, spec: &Value) -> (&Image, Container) {
        let reference = str(&spec["image"]);
        let found = self.images.iter().find(|image| image.reference == reference);
        let image = found.unwrap_or_else(|| panic!("there is no image {reference}"));
        let mut environment = image.environment.clone();
        environment.extend(self.environment.clone());
        for variable in list(&spec["env"]) {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("spec.nodeName") => Cluster::NODE.to_owned(),
                Some("metadata.namespace") => self.namespace.clone(),
                None if variable["value"].is_string() => str(&variable["value"]).to_owned(),
                _ => panic!("a variable of another kind: {variable}"),
            };
            environment.push((str(&variable["name"]).to_owned(), value));
        }
        let mut mounts: Vec<Mount> =
            list(&spec["volumeMounts"]).iter().map(|mount| self.mount(mount)).collect();
        if let Some(account) = self.volumes.get(ACCOUNT) {
            let (source, target) = (account.clone(), ACCOUNT.into());
            mounts.push(Mount { source, target, is_read_only: true, ..Mount::default() });
        }
        let context = &spec["securityContext"];
        let is_privileged = context["privileged"] == true;
        let words = |key: &str| list(&spec[key]).iter().map(|word| str(word).to_owned());
        let container = Container {
            mounts,
            capabilities: capabilities(&context["capabilities"]),
            allow_privilege_escalation: is_privileged || context["allowPrivilegeEscalation"] != false,
            is_privileged,
            is_read_only: context["readOnlyRootFilesystem"] == true,
            environment,
            program: words("command").chain(words("args")).collect(),
            ..Container::default()
        };
        (image, container)
    }

    fn mount(&self, mount: &Value) -> Mount {
        let source = &self.volumes[str(&mount["name"])];
        let propagation = match mount["mountPropagation"].as_str() {
            None => Propagation::None,
            Some(name) => Propagation::by_name(name).unwrap_or_else(|| panic!("no propagation {name}")),
        };
        Mount {
            source: source.clone(),
            target: str(&mount["mountPath"]).into(),
            is_read_only: mount["readOnly"] == true,
            propagation,
        }
    }
}

impl RunningContainer {
    /// Returns its process, as this process sees it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        // nsenter(1) and unshare(1) each wait for the process that they have started.
        descendants(self.process.id()).get(1).copied()
    }

    /// Returns what it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Returns where the test sees a path of the machine, below no mount of it.
fn outside(machine: &Machine, path: &Path) -> PathBuf {
    machine.root().join(path.strip_prefix("/").unwrap())
}

/// Makes a volume. Returns its path on the machine.
fn make_volume(machine: &Machine, cluster: &Cluster, namespace: &str, volume: &Value, own: &Path) -> PathBuf {
    if let Some(path) = volume["hostPath"]["path"].as_str() {
        match volume["hostPath"]["type"].as_str() {
            Some("DirectoryOrCreate") => _ = machine.exec(&format!("mkdir -p {path}")),
            Some("FileOrCreate") => _ = machine.exec(&format!("touch {path}")),
            Some("Directory") | None => _ = machine.exec(&format!("test -d {path}")),
            other => panic!("{path} is of type {other:?}"),
        }
        return path.into();
    }
    let folder = outside(machine, own);
    fs::create_dir_all(&folder).unwrap();
    if let Some(name) = volume["configMap"]["name"].as_str() {
        let object = cluster.stage.get(&["-n", namespace, "configmap", name]).unwrap();
        for (key, value) in object["data"].as_object().unwrap() {
            fs::write(folder.join(key), str(value)).unwrap();
        }
    } else {
        // Optional secrets of features that are off are not there.
        let sources = list(&volume["projected"]["sources"]);
        let is_optional =
            !sources.is_empty() && sources.iter().all(|source| source["secret"]["optional"] == true);
        assert!(volume["emptyDir"].is_object() || is_optional, "a volume of another kind: {volume}");
    }
    own.to_owned()
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn capabilities(value: &Value) -> Vec<u8> {
    let drops_all = list(&value["drop"]).iter().any(|name| name == "ALL");
    let default: &[&str] = if drops_all { &[] } else { &DEFAULT_CAPABILITIES };
    let names = default.iter().copied().chain(list(&value["add"]).iter().map(str));
    let number = |name: &str| CAPABILITIES.iter().position(|known| *known == name);
    names.map(|name| number(name).unwrap_or_else(|| panic!("no capability {name}")) as u8).collect()
}

fn str(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

/// Returns a list's elements; none if there is no list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

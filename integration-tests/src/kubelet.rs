//! A kubelet with its container runtime, as far as a network agent meets them, and a scheduler for one node.
//!
//! It watches the pods of a cluster, and binds those without a node to its own. Each pod of its node gets a network
//! namespace and a call of the CNI plugin by the configuration file that the agent has written, as from containerd: an
//! ADD that fails is followed by a DEL, and repeated with another container; a DEL is repeated until it succeeds.
//! Then the pod's status has its addresses. The last deletion of a pod that ends is the kubelet's.
//!
//! A container with a command runs it, a binary of the workspace, in the pod's network namespace; `/dev` is a folder of
//! its own, from which its termination message goes into the pod's status. Other containers run nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use cluster_stage::{Gate, User};
use futures::StreamExt as _;
use hive::prelude::*;
use k8s_types::testing::Reader;
use k8s_types::{Api, Key, Kind, Patch, Selection, Source};
use serde_json::{Value, json};
use test_kit::NetNs;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::{Cluster, Node, binary};

/// Delay between two tries of the same call or request.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Interval at which the process of a container is looked at.
const PROCESS_INTERVAL: Duration = Duration::from_millis(100);

/// The kubelet of a cluster's node. Dropping it is its sudden death: pods stay as they are.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Its way to the API server, which tests can disturb.
    pub gate: Gate,
}

/// A pod that has its addresses.
#[derive(Clone, Debug)]
pub struct RunningPod {
    /// The namespace of its processes.
    pub ns: NetNs,
    /// Its addresses, in the order of its status.
    pub addresses: Vec<IpAddr>,
    /// The uid of its object.
    pub uid: String,
    /// The runtime's id of its container.
    pub container: String,
}

impl RunningPod {
    /// Returns its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.addresses[0]
    }
}

#[derive(Debug)]
struct Shared {
    host: NetNs,
    /// Bind mounts of the pods' namespaces.
    netns: PathBuf,
    /// Folders of containers.
    containers: PathBuf,
    /// Configuration files of networks.
    configurations: PathBuf,
    agent: PathBuf,
    /// Program and environment of kubectl.
    kubectl: (PathBuf, Vec<(String, PathBuf)>),
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By uid.
    pods: BTreeMap<String, Pod>,
    failures: Vec<String>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Pod {
    key: Key,
    /// Name of its container, and the command with its arguments.
    command: (String, Vec<String>),
    phase: Phase,
    running: Option<RunningPod>,
}

/// The cluster's view of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no node.
    Unbound,
    /// It should run.
    Bound,
    /// It is being deleted.
    Ending,
    /// It has no object.
    Gone,
}

impl Kubelet {
    /// The folder of network configurations in the sandbox's folder.
    const CONFIGURATIONS: &str = "cni";

    /// Lets the agent write the plugin's configuration, from its next start on.
    pub fn configure(node: &mut Node) {
        let folder = node.sandbox().dir().to_owned();
        let mut set = |key: &str, path: PathBuf| {
            node.config.insert(key.to_owned(), path.display().to_string());
        };
        set("write-cni-conf-when-ready", folder.join(Self::CONFIGURATIONS).join("05-cilium.conflist"));
        set("cni-log-file", folder.join("cni.log"));
    }

    /// Starts the kubelet of [`Cluster::NODE`], on the thread that has made the cluster.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(cluster: &Cluster) -> Kubelet {
        let gate = cluster.stage.gate().unwrap();
        let kubeconfig = gate.kubeconfig(User::Admin).unwrap();
        let folder = cluster.node.sandbox().dir();
        let own = cluster.stage.kubectl_command(&[]);
        let environment = [("KUBECONFIG", kubeconfig.clone()), ("KUBECACHEDIR", folder.join("kubectl"))];
        let environment = environment.map(|(name, path)| (name.to_owned(), path)).to_vec();
        let shared = Arc::new(Shared {
            host: cluster.node.host().clone(),
            netns: folder.join("netns"),
            containers: folder.join("containers"),
            configurations: folder.join(Self::CONFIGURATIONS),
            agent: cluster.node.socket(),
            kubectl: (own.get_program().into(), environment),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (stop, stopped) = oneshot::channel();
        let of_thread = shared.clone();
        // The thread and those that it starts are in the namespaces of the sandbox, as this one is.
        let run = move || run(&of_thread, &kubeconfig, stopped);
        let thread = Builder::new().name("kubelet".to_owned()).spawn(run).unwrap();
        Kubelet { shared, stop: Some(stop), thread: Some(thread), gate }
    }

    /// Returns the pod of this name once its status has its addresses.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<RunningPod> {
        let state = self.shared.state();
        let is_it = |pod: &&Pod| pod.key.namespace == namespace && pod.key.name == name;
        state.pods.values().find(|pod| pod.phase == Phase::Bound && is_it(pod))?.running.clone()
    }

    /// Returns the count of pods that have a container, or an object.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.shared.state().pods.len()
    }

    /// Returns calls of the plugin and requests that failed, oldest first; each was repeated.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        self.shared.state().failures.clone()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.shared.state().is_stopped = true;
        self.shared.changed.notify_all();
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Follows the pods until the other end of `stopped` is dropped.
fn run(shared: &Arc<Shared>, kubeconfig: &std::path::Path, mut stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let mut workers: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    runtime.block_on(async {
        let taken = |sources: Group<Arc<dyn Source>>, api: Option<Arc<dyn Api>>| {
            let source = sources.iter().next().expect("no source").clone();
            Arc::new(Server { source, api: api.expect("no server") })
        };
        let cells = [k8s_client::cell(), module("server", "The API server", [provide(taken)])];
        let mut hive = TestHive::needing::<Server>(cells)
            .set("k8s-kubeconfig-path", kubeconfig.display())
            .set("k8s-client-qps", 0);
        hive.start().await;
        let server = hive.get::<Server>();
        let mut reader = Reader::default();
        let mut events = server.source.watch(Selection::all(Kind::Pod));
        loop {
            let event = tokio::select! {
                event = events.next() => event.expect("a watch never ends"),
                _ = &mut stopped => break,
            };
            reader.apply(event);
            if reader.is_complete() && reader.lists > 0 {
                for uid in shared.observe(reader.objects()) {
                    let (shared, api, handle) = (shared.clone(), server.api.clone(), handle.clone());
                    let worker = Worker { shared, api, handle, uid: uid.clone() };
                    let thread = Builder::new().name("pod".to_owned()).spawn(move || worker.run()).unwrap();
                    workers.insert(uid, thread);
                }
            }
        }
        drop((events, server));
        hive.stop().await;
    });
    for thread in workers.into_values() {
        let _ = thread.join();
    }
}

/// The way to the API server.
struct Server {
    source: Arc<dyn Source>,
    api: Arc<dyn Api>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the pods' phases up to date with all objects of the cluster; returns the uids of pods that are new.
    fn observe(&self, objects: &BTreeMap<Key, Value>) -> Vec<String> {
        let mut found: BTreeMap<&str, (&Key, &Value, Phase)> = BTreeMap::new();
        for (key, object) in objects {
            let Some(uid) = object["metadata"]["uid"].as_str() else { continue };
            let phase = match object["spec"]["nodeName"].as_str() {
                _ if object["metadata"]["deletionTimestamp"].is_string() => Phase::Ending,
                None | Some("") => Phase::Unbound,
                Some(Cluster::NODE) => Phase::Bound,
                Some(_) => continue,
            };
            found.insert(uid, (key, &object["spec"]["containers"][0], phase));
        }
        let mut state = self.state();
        for (uid, pod) in &mut state.pods {
            pod.phase = found.get(uid.as_str()).map_or(Phase::Gone, |(.., phase)| *phase);
        }
        let mut new = Vec::new();
        for (uid, (key, container, phase)) in found {
            if !state.pods.contains_key(uid) {
                let pod = Pod { key: key.clone(), command: command(container), phase, running: None };
                state.pods.insert(uid.to_owned(), pod);
                new.push(uid.to_owned());
            }
        }
        self.changed.notify_all();
        new
    }

    fn fail(&self, what: &str, error: &str) {
        self.state().failures.push(format!("{what}: {error}"));
    }

    /// Runs kubectl with text at its standard input.
    fn kubectl(&self, arguments: &[&str], input: &Value) -> Result<(), String> {
        let (program, environment) = &self.kubectl;
        let mut command = self.host.command(program);
        command.args(arguments).envs(environment.iter().map(|(name, path)| (name, path))).env("GOGC", "off");
        output(command, &input.to_string()).map(drop)
    }

    /// The first configuration of the folder, as containerd reads it, for its only plugin.
    fn configuration(&self) -> Result<String, String> {
        let folder = fs::read_dir(&self.configurations).map_err(|error| error.to_string())?;
        let mut files: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "conflist"));
        files.sort();
        let file = files.first().ok_or("cni plugin not initialized")?;
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        let list: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let plugins = list["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
        let [plugin] = plugins else { return Err(format!("not one plugin: {text}")) };
        let mut plugin = plugin.clone();
        for key in ["cniVersion", "name"] {
            plugin[key] = list[key].clone();
        }
        Ok(plugin.to_string())
    }
}

/// Returns the name of a container, and its command with the arguments.
fn command(container: &Value) -> (String, Vec<String>) {
    let words =
        ["command", "args"].into_iter().flat_map(|field| container[field].as_array().into_iter().flatten());
    let words = words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
    (container["name"].as_str().unwrap_or_default().to_owned(), words)
}

/// Runs a command; its standard output, or why it failed.
fn output(mut command: Command, input: &str) -> Result<String, String> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // A process that ends before it has read its input reports the error in its output.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// The life of one pod.
struct Worker {
    shared: Arc<Shared>,
    api: Arc<dyn Api>,
    handle: Handle,
    uid: String,
}

/// A container with its network namespace.
struct Container {
    id: String,
    ns: NetNs,
}

impl Worker {
    fn run(&self) {
        let mut container = None;
        for attempt in 0.. {
            match self.phase() {
                None => return,
                Some(Phase::Unbound) => self.bind(),
                Some(Phase::Bound) => {
                    container = self.add(attempt);
                    if container.is_some() {
                        break;
                    }
                }
                Some(Phase::Ending | Phase::Gone) => break,
            }
            self.wait(RETRY_INTERVAL);
        }
        if let Some((process, folder)) = container.as_ref().and_then(|container| self.execute(container)) {
            self.follow(process, &folder);
        }
        while self.phase() == Some(Phase::Bound) {
            self.wait(Duration::from_secs(60));
        }
        if let Some(container) = container
            && !self.delete(container)
        {
            return;
        }
        while self.phase() == Some(Phase::Ending) {
            self.finish();
            self.wait(RETRY_INTERVAL);
        }
        if self.phase().is_some() {
            self.shared.state().pods.remove(&self.uid);
        }
    }

    /// Returns the pod's phase; none once the kubelet has stopped.
    fn phase(&self) -> Option<Phase> {
        let state = self.shared.state();
        if state.is_stopped { None } else { Some(state.pods[&self.uid].phase) }
    }

    fn key(&self) -> Key {
        self.shared.state().pods[&self.uid].key.clone()
    }

    /// Waits until the pod's phase changes, at most `limit`.
    fn wait(&self, limit: Duration) {
        let state = self.shared.state();
        let phase = state.pods[&self.uid].phase;
        let is_same = |state: &mut State| !state.is_stopped && state.pods[&self.uid].phase == phase;
        drop(self.shared.changed.wait_timeout_while(state, limit, is_same));
    }

    /// Binds the pod to the node, as a scheduler does.
    fn bind(&self) {
        let Key { namespace, name } = self.key();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": self.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": Cluster::NODE},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        if let Err(error) = self.shared.kubectl(&["create", "--raw", &path, "-f", "-"], &binding) {
            self.shared.fail(&format!("binding of {name}"), &error);
        }
    }

    /// Creates a container; its id is different in each attempt.
    fn add(&self, attempt: usize) -> Option<Container> {
        let key = self.key();
        let id = format!("{}{attempt:032x}", self.uid.replace('-', ""));
        let path = self.shared.netns.join(format!("cni-{}-{attempt}", self.uid));
        let ns = NetNs::create(path).expect("a namespace can be made");
        let container = Container { id, ns };
        let added =
            self.call("ADD", &container).and_then(|result| addresses(&result)).and_then(|addresses| {
                self.report(&addresses)?;
                Ok(addresses)
            });
        match added {
            Ok(addresses) => {
                let (ns, uid) = (container.ns.clone(), self.uid.clone());
                let running = RunningPod { ns, addresses, uid, container: container.id.clone() };
                if let Some(pod) = self.shared.state().pods.get_mut(&self.uid) {
                    pod.running = Some(running);
                }
                Some(container)
            }
            Err(error) => {
                self.shared.fail(&format!("ADD of {key}"), &error);
                self.delete(container);
                None
            }
        }
    }

    /// Starts the command of the pod's container, if it has one; returns the process and its folder `/dev`.
    fn execute(&self, container: &Container) -> Option<(Child, PathBuf)> {
        let (_, words) = self.shared.state().pods[&self.uid].command.clone();
        let (program, arguments) = words.split_first()?;
        let folder = self.shared.containers.join(&container.id);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let mut command = container.ns.command("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                "mount --bind \"$0\" /dev && exec \"$@\"",
            ])
            .arg(&folder)
            .arg(binary(program))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Some((command.spawn().expect("a process can be started"), folder))
    }

    /// Waits until the process ends, and reports it; ends it with the pod.
    fn follow(&self, mut process: Child, folder: &Path) {
        while self.phase() == Some(Phase::Bound) {
            match process.try_wait() {
                Ok(Some(status)) => return self.report_end(status, folder),
                _ => self.wait(PROCESS_INTERVAL),
            }
        }
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Writes the end of the container into the pod's status, with the termination message.
    fn report_end(&self, status: ExitStatus, folder: &Path) {
        let (key, (name, _)) = (self.key(), self.shared.state().pods[&self.uid].command.clone());
        let message = fs::read_to_string(folder.join("termination-log")).unwrap_or_default();
        let terminated = json!({"exitCode": status.code().unwrap_or(137), "message": message});
        let container = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}});
        let phase = if status.success() { "Succeeded" } else { "Failed" };
        let patch = json!({"metadata": {"uid": self.uid}, "status": {"phase": phase, "containerStatuses": [container]}});
        self.patch_status(&key, &patch);
    }

    /// Repeats a DEL until it succeeds, then removes the namespace; false if the kubelet was stopped before.
    fn delete(&self, container: Container) -> bool {
        while let Err(error) = self.call("DEL", &container) {
            self.shared.fail(&format!("DEL of {}", self.key()), &error);
            if self.phase().is_none() {
                return false;
            }
            self.wait(RETRY_INTERVAL);
        }
        if let Some(pod) = self.shared.state().pods.get_mut(&self.uid) {
            pod.running = None;
        }
        container.ns.remove().expect("a namespace can be removed");
        true
    }

    /// Calls the plugin as containerd does.
    fn call(&self, verb: &str, container: &Container) -> Result<String, String> {
        let configuration = self.shared.configuration()?;
        let plugin = binary("apiary-cni");
        let Key { namespace, name } = self.key();
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            container.id, self.uid
        );
        let mut command = self.shared.host.command(&plugin);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &container.id)
            .env("CNI_NETNS", container.ns.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", plugin.parent().unwrap_or(&plugin))
            .env("CNI_ARGS", arguments)
            .env("CILIUM_SOCK", &self.shared.agent);
        output(command, &configuration)
    }

    /// Writes the pod's status, until the server takes it or the pod ends.
    fn report(&self, addresses: &[IpAddr]) -> Result<(), String> {
        let key = self.key();
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let patch = json!({"metadata": {"uid": self.uid}, "status": {
            "phase": "Running", "hostIP": Node::IPV4, "podIP": addresses[0], "podIPs": ips, "conditions": conditions,
        }});
        self.patch_status(&key, &patch);
        Ok(())
    }

    fn patch_status(&self, key: &Key, patch: &Value) {
        while self.phase() == Some(Phase::Bound) {
            let patch = Patch::Merge(patch.to_string().into());
            let Err(error) = self.handle.block_on(self.api.patch(Kind::Pod, key, true, patch)) else {
                break;
            };
            self.shared.fail(&format!("status of {key}"), &error.to_string());
            self.wait(RETRY_INTERVAL);
        }
    }

    /// Deletes the object of a pod that has ended.
    fn finish(&self) {
        let Key { namespace, name } = self.key();
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": self.uid},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        if let Err(error) = self.shared.kubectl(&["delete", "--raw", &path, "-f", "-"], &options) {
            self.shared.fail(&format!("deletion of {name}"), &error);
        }
    }
}

/// The addresses in a plugin's result of ADD, as a kubelet puts them into the status: IPv4 first.
fn addresses(result: &str) -> Result<Vec<IpAddr>, String> {
    let value: Value = serde_json::from_str(result).map_err(|error| format!("{error}: {result}"))?;
    let all = value["ips"].as_array().into_iter().flatten();
    let mut addresses: Vec<IpAddr> =
        all.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    if addresses.is_empty() { Err(format!("no address: {result}")) } else { Ok(addresses) }
}

//! Every container of the chart runs from the images of `tools/images`, with no more than the rendered object gives it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Image, Machine, Node, RunningContainer, Workload, binary};
use serde_json::{Value, json};
use test_kit::{require, require_command, require_root, try_wait_until, wait_until};

use super::{CONFIG_FILES, objects, render, require_helm, root};

pub(super) const IMAGES: [&str; 2] = ["apiary", "apiary-operator"];
/// What stays on a node after a clean-up: by name, for the next agent or for others.
pub(super) const LEFT: [&str; 5] = [
    "/etc/sysctl.d/99-zzz-override_cilium.conf",
    "/opt/cni/bin/apiary-cni",
    "/opt/cni/bin/cilium-cni",
    "/run/cilium/cilium-cni.log",
    "/run/xtables.lock",
];
/// The same with the plugin that the images with packages have besides.
const LEFT_WITH_LOOPBACK: [&str; 6] = [LEFT[0], LEFT[1], LEFT[2], "/opt/cni/bin/loopback", LEFT[3], LEFT[4]];
const LIMIT: Duration = Duration::from_secs(120);

/// Whether all tests are asked for, also those that fetch something.
fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|value| !value.is_empty())
}

/// Builds and unpacks images with the binaries of this build.
pub(super) fn build(options: &[&str], folder: &Path, names: &[&str]) -> Vec<Image> {
    let printed = Image::build(options, binary("agent").parent().unwrap(), folder, names);
    assert_eq!(printed.lines().count(), names.len(), "a line with the sizes of each: {printed}");
    names.iter().map(|name| Image::unpack(folder, name)).collect()
}

/// The objects of the default chart, as they are committed.
pub(super) fn committed() -> BTreeMap<String, Value> {
    let read = |file: &str| objects(&fs::read_to_string(root().join(file)).unwrap());
    CONFIG_FILES.into_iter().flat_map(read).collect()
}

/// A cluster with these objects and these options over those of the ConfigMap; its Node has an address.
pub(super) fn cluster(objects: &BTreeMap<String, Value>, options: &[(&str, &str)]) -> Cluster {
    let options: BTreeMap<_, _> = options.iter().copied().collect();
    // A step of the pod mounts the machine's cgroup, to which an agent may attach programs.
    let stage = StageOptions { rbac: true, ..StageOptions::default() };
    let cluster = Cluster::of(Node::with_cgroup(), &stage, &[]);
    for object in objects.values() {
        cluster.stage.apply(&object.to_string()).unwrap();
    }
    let kubectl = |words: &[&str], patch: Value| {
        cluster
            .stage
            .kubectl(&[&["patch"], words, &["--type=merge", "-p", &patch.to_string()]].concat())
            .unwrap();
    };
    kubectl(&["-n", "kube-system", "configmap", "cilium-config"], json!({"data": options}));
    let address = json!({"type": "InternalIP", "address": Node::IPV4});
    kubectl(&["node", Cluster::NODE, "--subresource=status"], json!({"status": {"addresses": [address]}}));
    cluster
}

/// The pods of operator and agent.
fn workloads<'a>(
    machine: &'a Machine,
    images: &'a [Image],
    objects: &BTreeMap<String, Value>,
    cluster: &Cluster,
) -> [Workload<'a>; 2] {
    let both = [("Deployment/cilium-operator", User::Operator), ("DaemonSet/cilium", User::Agent)];
    both.map(|(object, user)| {
        Workload::new(machine, images, &objects[object], cluster, &cluster.stage.account(user))
    })
}

/// Starts the pod of the operator until its probe succeeds.
pub(super) fn start_operator(operator: &Workload<'_>) -> RunningContainer {
    let mut running = operator.start();
    operator.wait_for_probe(&mut running, "readinessProbe");
    running
}

/// Starts the pod of the agent: its steps in order, then the agent until all its probes succeed.
pub(super) fn start_agent(agent: &Workload<'_>) -> (Vec<(String, String)>, RunningContainer) {
    let steps = agent.run_init_containers();
    let mut running = agent.start();
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        agent.wait_for_probe(&mut running, probe);
    }
    (steps, running)
}

/// Fields of a process's status.
fn status(running: &RunningContainer) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{}/status", running.pid().unwrap())).unwrap();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// A pod of the node, its namespace made as a runtime does.
pub(super) struct Pod<'a> {
    machine: &'a Machine,
    name: &'a str,
    uid: String,
}

impl<'a> Pod<'a> {
    pub(super) fn create(cluster: &Cluster, machine: &'a Machine, name: &'a str) -> Self {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": Cluster::NODE, "containers": [{"name": "main", "image": "none"}]},
        });
        cluster.stage.apply(&object.to_string()).unwrap();
        let uid = cluster.stage.get(&["pod", name]).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let _ = machine.exec(&format!("ip netns add {name}"));
        Pod { machine, name, uid }
    }

    /// Calls the plugin that is installed with the configuration that the agent has written, as containerd does.
    pub(super) fn call(&self, verb: &str) -> Value {
        let configuration = self.machine.exec("cat /etc/cni/net.d/05-cilium.conflist");
        let list: Value = serde_json::from_str(&configuration).unwrap();
        let mut plugin = list["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            plugin[key] = list[key].clone();
        }
        let input = self.machine.root().join(format!("tmp/{}.json", self.name));
        fs::write(&input, plugin.to_string()).unwrap();
        let arguments =
            format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={};K8S_POD_UID={}", self.name, self.uid);
        let program = format!("/opt/cni/bin/{}", plugin["type"].as_str().unwrap());
        let output = self
            .machine
            .command(&program)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("container-{}", self.name))
            .env("CNI_NETNS", format!("/var/run/netns/{}", self.name))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_ARGS", arguments)
            .stdin(fs::File::open(input).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{verb}: {text}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns its address once it has one in its namespace.
    pub(super) fn add(&self) -> String {
        let result = self.call("ADD");
        let address = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result}"));
        let address = address.split('/').next().unwrap().to_owned();
        let links = self.machine.exec(&format!("ip netns exec {} ip -o addr show dev eth0", self.name));
        assert!(links.contains(&format!(" {address}/")), "{links}");
        address
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    /// Removes its namespace, after the DEL.
    pub(super) fn remove(&self) {
        let _ = self.machine.exec(&format!("ip netns del {}", self.name));
    }
}

/// Returns the step that removes an agent for good, as the chart has it with `cleanState`.
pub(super) fn clean_step(agent: &Workload<'_>) -> Value {
    let mut clean = agent.spec["containers"][0].clone();
    (clean["name"], clean["command"], clean["args"]) =
        (json!("clean-cilium-state"), json!(["apiary-cni", "init", "clean-state"]), json!([]));
    let of_step = [
        ("CILIUM_ALL_STATE", "true"),
        ("WRITE_CNI_CONF_WHEN_READY", "/host/etc/cni/net.d/05-cilium.conflist"),
    ];
    clean["env"] = of_step.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    clean
}

/// Files of a machine but for those of its containers, its links and pins.
pub(super) fn leftovers(machine: &Machine) -> Vec<String> {
    let files = machine.exec(
        "find /etc /opt /run /var/lib -xdev ( -type f -o -type s ) -not -path /var/lib/kubelet/* -not -path /run/netns/*",
    );
    // Two files are the kernel's.
    let pins = machine.exec("find /sys/fs/bpf -mindepth 1 -not -name *.debug");
    let links = machine.exec("ip -br link");
    let links = links.lines().filter_map(|line| line.split(['@', ' ']).next());
    let all = files.lines().chain(pins.lines()).chain(links);
    all.map(str::to_owned).collect()
}

/// Those that were not there `before`, in order.
pub(super) fn new_leftovers(machine: &Machine, before: &[String]) -> Vec<String> {
    let mut new: Vec<String> = leftovers(machine).into_iter().filter(|name| !before.contains(name)).collect();
    new.sort();
    new
}

#[test]
fn the_default_chart_runs_from_images_without_packages_of_a_distribution() {
    require_root!();
    require_command!("ping");
    let folder = tempfile::tempdir().unwrap();
    let images = build(&["--bare"], folder.path(), &IMAGES);
    // A second time in another folder the same bytes.
    let again = tempfile::tempdir().unwrap();
    Image::build(&["--bare"], binary("agent").parent().unwrap(), again.path(), &IMAGES[1..]);
    let [first, second] =
        [&folder, &again].map(|folder| fs::read(folder.path().join("apiary-operator.tar")).unwrap());
    assert!(first == second, "an image is reproducible");
    drop((again, first, second));
    let objects = committed();
    // These images have no iptables.
    let cluster = cluster(&objects, &[("install-iptables-rules", "false")]);
    let machine = Machine::start(&cluster.node, folder.path());
    let before = leftovers(&machine);
    let [operator, agent] = workloads(&machine, &images, &objects, &cluster);
    let leader = start_operator(&operator);
    let (steps, running) = start_agent(&agent);
    assert_eq!(
        steps.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["config", "mount-cgroup", "apply-sysctl-overwrites", "mount-bpf-fs", "install-cni-binaries"]
    );
    assert_eq!(machine.exec("stat -f -c %T /sys/fs/bpf").trim(), "bpf_fs", "mounted on the host");
    let pod = Pod::create(&cluster, &machine, "web");
    let address = pod.add();
    let _ = machine.exec(&format!("ping -c 1 -W 10 {address}"));

    // The bounding set is that of the object, of which the agent has dropped SYS_ADMIN from the rest.
    let fields = status(&running);
    assert_eq!((&*fields["NoNewPrivs"], &*fields["CapBnd"]), ("1", "000000c000203003"), "{fields:?}");
    assert_eq!(fields["CapEff"], "000000c000003003");
    assert_eq!(status(&leader)["CapBnd"], "0000000000000000");

    // A restart of the pod: all steps again find their work done, and the agent its endpoint.
    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    let (steps, running) = start_agent(&agent);
    for (name, output) in &steps[1..] {
        assert!(output.contains("up to date") || output.contains("is mounted"), "{name}: {output}");
    }
    let _ = machine.exec(&format!("ping -c 1 -W 10 {address}"));
    pod.call("DEL");

    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    let clean = clean_step(&agent);
    let cleaned = agent.run(&clean);
    pod.remove();
    assert_eq!(new_leftovers(&machine, &before), LEFT, "{cleaned}");
    operator.stop(leader);
}

/// Connects a process of the machine, in its cgroup, and one that is in another; returns whether each gets the answer of the
/// server.
fn ask(machine: &Machine, address: &str, port: u16) -> [bool; 2] {
    let connect =
        format!("exec 3<>/dev/tcp/{address}/{port} && read -t 20 -u 3 line && test \"$line\" = web");
    let inside = format!("echo 0 >{CGROUP}/cgroup.procs; {connect}");
    let outside = format!("timeout 1 bash -c '{connect}'");
    [inside, outside]
        .map(|script| machine.command("bash").args(["-c", &script]).output().unwrap().status.success())
}

const CGROUP: &str = "/run/cilium/cgroupv2";
const LINKS: &str = "/sys/fs/bpf/cilium/socketlb/links/cgroup";

#[test]
fn the_chart_that_replaces_kube_proxy_translates_services_for_processes_of_the_machine() {
    require_root!();
    require_helm!();
    let folder = tempfile::tempdir().unwrap();
    let images = build(&["--bare"], folder.path(), &IMAGES);
    let objects = objects(&render(&json!({"kubeProxyReplacement": true})).unwrap());
    // These images have no iptables.
    let cluster = cluster(&objects, &[("install-iptables-rules", "false")]);
    let machine = Machine::start(&cluster.node, folder.path());
    let [operator, agent] = workloads(&machine, &images, &objects, &cluster);
    let leader = start_operator(&operator);
    let (_, running) = start_agent(&agent);
    // Backends of the node's network, in the namespace of this thread.
    let listener = TcpListener::bind((Node::IPV4, 8080)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"web\n"));
        }
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [Node::IPV4], "conditions": {"ready": true}}], "ports": [{"port": 8080}],
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [service, slice]});
    cluster.stage.apply(&list.to_string()).unwrap();
    let service = cluster.stage.get(&["-n=default", "service", "web"]).unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let translated = || ask(&machine, &address, 80) == [true, false];
    let reached = || translated().then_some(()).ok_or_else(|| format!("{address} is not translated"));
    if let Err(error) = try_wait_until(LIMIT, reached) {
        panic!("{error}: {:?}\n{}", ask(&machine, &address, 80), running.log());
    }
    assert!(ask(&machine, "127.0.0.1", 30080)[0], "a node port on loopback");
    assert_eq!(machine.exec(&format!("ls {LINKS}")).lines().count(), 11);
    assert_eq!(machine.exec(&format!("stat -f -c %T {CGROUP}")).trim(), "cgroup2fs");

    // The next pod of the agent, between the two none.
    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    assert!(translated(), "while no agent runs");
    let (_, running) = start_agent(&agent);
    assert!(translated(), "with the next agent");

    // Switched off, as an update of the chart does.
    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    let patch = json!({"data": {"kube-proxy-replacement": "false"}}).to_string();
    let words = ["patch", "-n", "kube-system", "configmap", "cilium-config", "--type=merge", "-p", &patch];
    cluster.stage.kubectl(&words).unwrap();
    let (_, running) = start_agent(&agent);
    wait_until("the links are removed", LIMIT, || {
        !machine.command("ls").arg(LINKS).output().unwrap().status.success()
    });
    assert!(!translated(), "control: without programs");
    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    operator.stop(leader);
}

#[test]
fn all_steps_and_hooks_run_from_images_with_packages_of_debian() {
    require_root!();
    require_helm!();
    require_command!("iptables-nft");
    require!(is_full(), "packages of Debian are fetched: FULL=1 does it");
    let folder = tempfile::tempdir().unwrap();
    let images = build(&[], folder.path(), &IMAGES);
    let values = json!({
        "cleanState": true, "waitForKubeProxy": true, "cgroup": {"autoMount": {"enabled": true}},
        "cni": {"uninstall": true, "iptablesRemoveAWSRules": true},
    });
    let objects = objects(&render(&values).unwrap());
    let cluster = cluster(&objects, &[]);
    let machine = Machine::start(&cluster.node, folder.path());
    // The machine's programs and those of the image see the same rules of the kernel.
    for rule in [
        "-t mangle -N KUBE-PROXY-CANARY",
        "-t nat -N AWS-SNAT-CHAIN-0",
        "-t nat -A POSTROUTING -j AWS-SNAT-CHAIN-0",
    ] {
        let _ = machine.exec(&format!("iptables-nft {rule}"));
    }
    let before = leftovers(&machine);
    let [operator, agent] = workloads(&machine, &images, &objects, &cluster);
    let leader = start_operator(&operator);
    let (steps, running) = start_agent(&agent);
    assert_eq!(
        steps.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        [
            "config",
            "mount-cgroup",
            "apply-sysctl-overwrites",
            "mount-bpf-fs",
            "clean-cilium-state",
            "wait-for-kube-proxy",
            "install-cni-binaries",
        ]
    );
    assert_eq!(machine.exec("stat -f -c %T /run/cilium/cgroupv2").trim(), "cgroup2fs");
    let rules = || machine.exec("iptables-nft-save");
    assert!(!rules().contains("AWS"), "postStart has removed them");
    wait_until("the agent has written its rules", LIMIT, || rules().contains("CILIUM_POST_nat"));
    let pod = Pod::create(&cluster, &machine, "web");
    let address = pod.add();
    let _ = machine.exec(&format!("ping -c 1 -W 10 {address}"));
    pod.call("DEL");

    let (hook, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    assert!(hook.contains("removed /host/etc/cni/net.d/05-cilium.conflist"), "{hook}");
    let steps = agent.spec["initContainers"].as_array().unwrap();
    let cleaned = agent.run(steps.iter().find(|step| step["name"] == "clean-cilium-state").unwrap());
    pod.remove();
    let left = new_leftovers(&machine, &before);
    assert_eq!(left, LEFT_WITH_LOOPBACK, "{cleaned}");
    operator.stop(leader);
}

/// Programs of Cilium's image, each with a way to see that it is there, and scripts that call others.
const ANSWERS: &str = r#"
cilium-agent --version
cilium-dbg version
hubble observe --help
cilium --help
cilium-health --help
cilium-cni </dev/null
loopback </dev/null
iptables --version
ip6tables --version
iptables-save --version
iptables-restore --version
iptables-nft-save --version
iptables-legacy-save --version
ipset --version
ip -V
tc -V
bpftool version
bash --version
nsenter --version
mount --version
grep --version
cp --version
rm --version
sleep 0
"#;

#[test]
fn ciliums_chart_runs_from_an_image_with_only_its_name_changed() {
    require_root!();
    require_command!("iptables-nft");
    require!(is_full(), "packages of Debian are fetched: FULL=1 does it");
    let folder = tempfile::tempdir().unwrap();
    let images = build(&[], folder.path(), &["apiary-operator", "apiary-cilium"]);
    let mut objects = committed();
    let of_cilium = super::objects(include_str!("cilium.yaml"));
    objects.extend(of_cilium);
    // All options of Cilium's chart, those of features without a counterpart among them.
    let mut options: BTreeMap<&str, &str> = include_str!("../../../../agent/tests/data/chart.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').unwrap_or((line, "")))
        .collect();
    options.insert("cni-uninstall", "true");
    let options: Vec<(&str, &str)> = options.into_iter().collect();
    let container = &mut objects.get_mut("Deployment/cilium-operator").unwrap()["spec"]["template"]["spec"]["containers"]
        [0];
    container["command"] = json!(["cilium-operator-generic"]);
    container["args"] = json!(["--config-dir=/tmp/cilium/config-map", "--debug=false"]);
    // The server of the stage permits no privileged containers, which Cilium's chart has.
    let mut daemon_set = objects.remove("DaemonSet/cilium").unwrap();
    let cluster = cluster(&objects, &options);
    let machine = Machine::start(&cluster.node, folder.path());
    let _ = machine.exec("iptables-nft -t mangle -N KUBE-PROXY-CANARY");
    let before = leftovers(&machine);
    // Kernels of test machines may have no modules.
    if !Path::new("/lib/modules").is_dir() {
        let spec = &mut daemon_set["spec"]["template"]["spec"];
        let is_other = |value: &Value| value["name"] != "lib-modules";
        spec["volumes"].as_array_mut().unwrap().retain(is_other);
        spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().retain(is_other);
    }
    objects.insert("DaemonSet/cilium".to_owned(), daemon_set);
    let [operator, agent] = workloads(&machine, &images, &objects, &cluster);
    let leader = start_operator(&operator);
    let (steps, running) = start_agent(&agent);
    assert_eq!(steps.len(), 7);
    assert_eq!(machine.exec("stat -f -c %T /sys/fs/bpf /run/cilium/cgroupv2"), "bpf_fs\ncgroup2fs\n");
    let pod = Pod::create(&cluster, &machine, "web");
    let address = pod.add();
    let _ = machine.exec(&format!("ping -c 1 -W 10 {address}"));

    // All names of Cilium's image, asked in the agent's container.
    let mut ask = agent.spec["containers"][0].clone();
    for line in ANSWERS.lines().filter(|line| !line.is_empty()) {
        ask["command"] = json!(["bash", "-ec", line]);
        let answer = agent.exec(&running, &ask);
        assert!(!answer.is_empty() || line.starts_with("sleep"), "{line}");
    }
    let name = "cilium-health-responder";
    ask["command"] = json!(["bash", "-c", format!("{name} 2>&1 && echo has succeeded; true")]);
    let answer = agent.exec(&running, &ask);
    assert_eq!(answer, format!("{name}: not part of this image: Apiary has no counterpart of it yet\n"));
    let archive = "cilium-bugtool --archiveType=gz 2>&1 | sed -n 's/^GZIP at //p' | xargs tar -tzf";
    ask["command"] = json!(["bash", "-c", archive]);
    let answer = agent.exec(&running, &ask);
    assert!(answer.contains("/cmd/cilium-dbg-status---verbose.md\n"), "{answer}");
    pod.call("DEL");

    let (hook, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    assert!(hook.contains("removed /host/etc/cni/net.d/05-cilium.conflist"), "{hook}");
    let steps = agent.spec["initContainers"].as_array().unwrap();
    let cleaned = agent.run(steps.iter().find(|step| step["name"] == "clean-cilium-state").unwrap());
    pod.remove();
    let left = new_leftovers(&machine, &before);
    assert_eq!(left, LEFT_WITH_LOOPBACK, "{cleaned}");
    operator.stop(leader);
}

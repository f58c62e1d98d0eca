//! The life of a release: helm installs it, upgrades it, rolls it back and uninstalls it, under traffic between pods of a node.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Image, Machine, Node, RunningContainer, Workload};
use serde_json::{Value, json};
use test_kit::{require_command, require_root};

use super::images::{IMAGES, LEFT, Pod, build, new_leftovers, start_agent, start_operator};
use super::{helm, require_helm, root};

/// The workloads of the chart: object, account.
const OPERATOR: (&str, User) = ("deployment/cilium-operator", User::Operator);
const AGENT: (&str, User) = ("daemonset/cilium", User::Agent);
/// Seconds between two packets.
const INTERVAL: &str = "0.02";

/// A cluster in which helm manages a release, and the machine that is its node.
struct Release<'a> {
    cluster: &'a Cluster,
    machine: &'a Machine,
    images: &'a [Image],
}

/// A container that runs, and the pod that it is of.
type Running<'a> = (Workload<'a>, RunningContainer);

impl<'a> Release<'a> {
    /// Runs helm as an administrator.
    fn helm(&self, words: &[&str]) {
        let home = tempfile::tempdir().unwrap();
        let mut command = self.cluster.node.host().command(helm().unwrap());
        let output = command
            .args(words)
            .args(["--namespace", "kube-system"])
            .current_dir(root())
            .env("KUBECONFIG", self.cluster.gate.kubeconfig(User::Admin).unwrap())
            .env("HELM_CACHE_HOME", home.path())
            .env("HELM_CONFIG_HOME", home.path())
            .env("HELM_DATA_HOME", home.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Installs the chart, or upgrades the release, with these values.
    fn apply(&self, verb: &str, values: &Value) {
        let mut file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        file.write_all(values.to_string().as_bytes()).unwrap();
        self.helm(&[verb, "cilium", "helm/apiary", "-f", file.path().to_str().unwrap()]);
    }

    fn object(&self, name: &str) -> Value {
        self.cluster.stage.get(&["-n", "kube-system", name]).unwrap()
    }

    /// Prepares a pod of the object that the cluster has now.
    fn workload(&self, (object, user): (&str, User)) -> Workload<'a> {
        let (object, account) = (self.object(object), self.cluster.stage.account(user));
        Workload::new(self.machine, self.images, &object, self.cluster, &account)
    }

    fn start_operator(&self) -> Running<'a> {
        let workload = self.workload(OPERATOR);
        let running = start_operator(&workload);
        (workload, running)
    }

    fn start_agent(&self) -> Running<'a> {
        let workload = self.workload(AGENT);
        let (_, running) = start_agent(&workload);
        (workload, running)
    }

    /// The names of all objects but those that come and go by themselves.
    fn objects(&self) -> BTreeSet<String> {
        let stage = &self.cluster.stage;
        let kinds = stage.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).unwrap();
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
        let names = stage.kubectl(&["get", "-A", "-o", "name", &kinds.join(",")]).unwrap();
        names.lines().map(str::to_owned).collect()
    }
}

/// Ends a pod as a kubelet does.
fn stop((workload, running): Running<'_>) {
    let (_, code) = workload.stop(running);
    assert!(code.success(), "{code}");
}

/// Rules and routes of a machine, and what netfilter has.
fn network(machine: &Machine) -> String {
    let commands = [
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "ip -6 route show table all",
        "nft list ruleset",
    ];
    commands.map(|command| machine.exec(command)).concat()
}

/// Packets from one pod to another, until the standard input of their shell ends.
struct Traffic(Child);

impl Traffic {
    fn start(machine: &Machine, from: &str, to: &str) -> Self {
        let script = format!("ping -q -i {INTERVAL} {to} & read line; kill -INT $!; wait $!");
        let mut command = machine.command("ip");
        command.args(["netns", "exec", from, "bash", "-c", &script]);
        Traffic(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Returns the packets that were sent, and those that were answered.
    fn stop(self) -> (u64, u64) {
        // It closes the standard input first.
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let number = |behind: &str| {
            let words = text.split(behind).next().unwrap().split_whitespace().last();
            words.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"))
        };
        (number(" packets transmitted"), number(" received"))
    }
}

#[test]
fn a_release_is_installed_upgraded_rolled_back_and_removed_without_a_lost_packet_or_a_leftover() {
    require_root!();
    require_helm!();
    require_command!("ping");
    require_command!("nft");
    let folder = tempfile::tempdir().unwrap();
    let images = build(&["--bare"], folder.path(), &IMAGES);
    let stage = StageOptions { rbac: true, ..StageOptions::default() };
    let cluster = Cluster::of(Node::with_cgroup(), &stage, &[]);
    let address =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": Node::IPV4}]}}).to_string();
    let patch = ["patch", "node", Cluster::NODE, "--subresource=status", "--type=merge", "-p", &address];
    cluster.stage.kubectl(&patch).unwrap();
    let machine = Machine::start(&cluster.node, folder.path());
    let release = Release { cluster: &cluster, machine: &machine, images: &images };
    let (objects, files, rules) = (release.objects(), super::images::leftovers(&machine), network(&machine));

    // These images have no iptables.
    let first = json!({"extraConfig": {"install-iptables-rules": "false"}});
    release.apply("install", &first);
    let operator = release.start_operator();
    let agent = release.start_agent();
    let pods = ["client", "web"].map(|name| Pod::create(&cluster, &machine, name));
    let [_, web] = [pods[0].add(), pods[1].add()];
    let _ = machine.exec(&format!("ip netns exec client ping -c 1 -W 10 {web}"));
    let endpoint = || cluster.stage.get(&["ciliumendpoint", "web"]).unwrap();
    let before = endpoint();
    let traffic = Traffic::start(&machine, "client", &web);

    // The agent first, with other options and further objects.
    let mut second = first.clone();
    second["hubble"] = json!({"enabled": true});
    release.apply("upgrade", &second);
    let authority = || release.object("secret/cilium-ca")["data"].clone();
    let ca = authority();
    stop(agent);
    let agent = release.start_agent();
    stop(operator);
    let operator = release.start_operator();

    // The operator first.
    let mut third = second.clone();
    third["debug"] = json!({"enabled": true});
    third["operator"] = json!({"replicas": 1});
    release.apply("upgrade", &third);
    assert_eq!(authority(), ca, "clients go on trusting the nodes");
    stop(operator);
    let operator = release.start_operator();
    stop(agent);
    let agent = release.start_agent();
    assert!(agent.1.log().contains("level=debug"), "the new options are in force");

    release.helm(&["rollback", "cilium", "1"]);
    assert_eq!(release.object("configmap/cilium-config")["data"]["enable-hubble"], Value::Null);
    stop(agent);
    let agent = release.start_agent();
    stop(operator);
    let operator = release.start_operator();

    let (sent, answered) = traffic.stop();
    assert!(sent == answered && sent > 100, "{answered} of {sent} packets were answered");
    let to_none = Traffic::start(&machine, "client", "10.0.0.250");
    sleep(Duration::from_millis(500));
    assert!(matches!(to_none.stop(), (1.., 0)), "control: an address that no pod has");
    let identity =
        |endpoint: &Value| (endpoint["metadata"]["uid"].clone(), endpoint["status"]["networking"].clone());
    assert_eq!(
        identity(&endpoint()),
        identity(&before),
        "the endpoint is the same object with the same address"
    );

    for pod in &pods {
        pod.call("DEL");
        cluster.stage.kubectl(&["delete", "pod", pod.name(), "--grace-period=0", "--force"]).unwrap();
    }
    let clean = super::images::clean_step(&agent.0);
    let workload = release.workload(AGENT);
    stop(agent);
    stop(operator);
    release.helm(&["uninstall", "cilium"]);
    let cleaned = workload.run(&clean);
    for pod in &pods {
        pod.remove();
    }
    assert_eq!(new_leftovers(&machine, &files), LEFT, "{cleaned}");
    assert_eq!(network(&machine), rules, "{cleaned}");
    // Definitions and their objects stay, as with Cilium's chart: deleting them would take policies away.
    let left: Vec<String> =
        release.objects().difference(&objects).filter(|name| !name.contains("cilium.io")).cloned().collect();
    assert_eq!(left, ["lease.coordination.k8s.io/cilium-operator-resource-lock"]);
    assert_eq!(objects.difference(&release.objects()).collect::<Vec<_>>(), [""; 0], "nothing else is gone");
}

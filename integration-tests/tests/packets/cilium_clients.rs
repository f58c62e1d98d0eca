//! Clients of Cilium's own release against the agent: its CNI plugin, `cilium-dbg`, `hubble` and the relay of Hubble.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::{Node, Pod, binary, brought_by, pod_manifest};
use serde_json::{Value, json};
use test_kit::{NetNs, Process, require, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(30);
/// The relay's address, in the node's own network.
const RELAY: &str = "127.0.0.1:4245";
/// Shows a folder of sockets and a BPF file system at the paths where the programs look for them, and runs a command.
const AT_DEFAULT_PATHS: &str = r#"mount -t tmpfs run /run && mkdir /run/cilium && mount --bind "$0" /run/cilium &&
    mount --bind "$1" /sys/fs/bpf && shift && exec "$@""#;

/// A node with the programs.
struct Clients {
    node: Node,
    programs: PathBuf,
}

impl Clients {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let sandbox = self.node.sandbox();
        let mut command = self.node.host().command("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", AT_DEFAULT_PATHS]);
        command.args([sandbox.run_dir(), sandbox.bpf_root(), self.programs.join(program)]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a program, which has to succeed. Returns its output, without what it logs.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}\n{}", self.node.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command by Cilium's program and by ours, which has to answer the same: exit code and output, JSON by value
    /// and text by sorted lines of cells. Errors may have other words. State of the agent may change in between, so
    /// both get more than one chance.
    fn compare(&self, ours: &Path, program: &str, arguments: &[&str]) {
        let answer = |path: &Path| {
            let output = self.command(path.to_str().unwrap(), arguments).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let shape = match (output.status.code(), serde_json::from_str::<Value>(&text)) {
                (Some(0), Ok(json)) => json,
                (Some(0), Err(_)) => {
                    let cells = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
                    let mut lines: Vec<String> = text.lines().map(cells).collect();
                    lines.retain(|line| !line.is_empty());
                    lines.sort();
                    json!(lines)
                }
                _ => Value::Null,
            };
            (output.status.code(), shape)
        };
        let (theirs, ours) = (self.programs.join(program), ours.join(program));
        let mut answers = (answer(&theirs), answer(&ours));
        for _ in 0..4 {
            if answers.0 == answers.1 {
                break;
            }
            answers = (answer(&theirs), answer(&ours));
        }
        assert_eq!(
            answers.0,
            answers.1,
            "{program} {arguments:?}: Cilium's on the left\n{}",
            self.node.log()
        );
    }

    fn dbg(&self, arguments: &str) -> String {
        self.run("cilium-dbg", &arguments.split_whitespace().collect::<Vec<_>>())
    }

    fn dbg_json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.dbg(&format!("{arguments} -o json"))).unwrap()
    }

    /// Runs `hubble observe` until one of its lines has all parts.
    fn observe(&self, server: &str, options: &str, parts: &[&str]) {
        let mut words = vec!["--server", server, "observe", "--last", "50"];
        words.extend(options.split_whitespace());
        let is_seen = || {
            let lines = self.run("hubble", &words);
            lines.lines().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        wait_until(&format!("a flow with {parts:?} by hubble observe {options}"), LIMIT, is_seen);
    }

    /// Calls Cilium's plugin for a pod. Returns its output.
    fn cni(&self, verb: &str, pod: &str, ns: &NetNs, previous: Option<&Value>) -> String {
        let mut network = json!({"cniVersion": "1.1.0", "name": "cilium", "type": "cilium-cni"});
        if let Some(previous) = previous {
            network["prevResult"] = previous.clone();
        }
        let mut command = self.command("cilium-cni", &[]);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("container-{pod}"))
            .env("CNI_NETNS", ns.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.programs)
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(network.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{verb}: {text}\n{}", self.node.log());
        text
    }
}

fn ping(from: &NetNs, to: &str) -> bool {
    let mut ping = from.command("ping");
    ping.args(["-c2", "-i0.1", "-W1", "-q", to]).stdout(Stdio::null()).status().unwrap().success()
}

/// Commands of `cilium-dbg`, of which ours prints the same. `~` stands for a blank within an argument.
const SAME_ANSWERS: &[&str] = &[
    "status --brief",
    "status -o jsonpath={.cilium.state}{.nosuch}",
    "config",
    "config -a",
    "config -r -o json",
    "config get PolicyEnforcement",
    "config get nosuch",
    "config --list-options",
    "endpoint list",
    "endpoint list -o json",
    "endpoint list -o jsonpath={range~[*]}{.id}={.status.state}{'\\n'}{end}",
    "endpoint get 99999",
    "identity list",
    "identity list --endpoints",
    "identity list -o json",
    "identity get abc",
    "ip list",
    "ip list -o json",
    "ip get --labels k8s:name=b",
    "policy get -o jsonpath={.revision}",
    "policy selectors",
    "service list",
    "node list",
    "nodeid list",
    "map list",
    "lrp list -o json",
    "encrypt status -o json",
    "bgp routes",
    "cgroups list",
    "bpf endpoint list",
    "bpf ipcache list -o json",
    "bpf lb list",
    "bpf policy get --all",
    "bpf ipmasq list",
    "nosuch",
    "-H unix:///nosuch -D endpoint list",
];

/// Commands of `hubble`, on the server at its socket.
const SAME_FLOWS: &[&str] = &[
    "list namespaces -o json",
    "observe --first 9",
    "observe --first 9 -o json",
    "observe --first 9 -o dict --print-node-name",
    "observe --first 9 -o table --numeric",
    "observe --first 9 --time-format RFC3339Nano --print-policy-names -4",
    "observe flows --first 9 --from-pod a --not --protocol udp",
    "observe --first 9 -n default --traffic-direction egress --not-reply",
    "observe --pod a --from-pod b",
];

#[test]
fn clients_of_cilium_talk_to_the_agent() {
    require_root!();
    let programs = brought_by("cilium-clients");
    require!(programs.is_some(), "Cilium's clients are not built: tools/cilium-clients does it");
    let mut node = Node::with_cgroup();
    let hubble = node.socket().with_file_name("hubble.sock");
    let config = [
        ("enable-hubble", "true"),
        ("hubble-socket-path", hubble.to_str().unwrap()),
        ("hubble-listen-address", ":4244"),
        ("hubble-disable-tls", "true"),
        // NAT maps and services.
        ("kube-proxy-replacement", "true"),
    ];
    node.config.extend(config.map(|(key, value)| (key.to_owned(), value.to_owned())));
    node.start();
    let Pod { ns: a, .. } = node.add_pod("a");
    let clients = Clients { node, programs: programs.unwrap() };
    let node = &clients.node;

    // The plugin: a pod of Cilium's plugin beside one of ours.
    node.apply("b.yaml", &pod_manifest("default", "b", &[("name", "b")]));
    let b = node.sandbox().netns("b").unwrap();
    let result: Value = serde_json::from_str(&clients.cni("ADD", "b", &b, None)).unwrap();
    let addresses = result["ips"].as_array().unwrap().iter();
    let addresses: Vec<String> =
        addresses.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect();
    assert_eq!(addresses.len(), 2, "{result}");
    addresses.iter().for_each(|address| assert!(ping(&a, address), "{address}\n{}", node.log()));
    clients.cni("CHECK", "b", &b, Some(&result));
    clients.cni("STATUS", "b", &b, None);

    // cilium-dbg: by the REST API, and by the pinned maps.
    assert_eq!(clients.dbg("status --brief").trim(), "OK");
    assert!(clients.dbg("status --verbose").contains("KubeProxyReplacement:"));
    let endpoints = clients.dbg_json("endpoint list");
    let of_b = endpoints
        .as_array()
        .unwrap()
        .iter()
        .find(|endpoint| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == "b");
    let of_b = of_b.unwrap_or_else(|| panic!("{endpoints}"));
    let (id, identity) = (&of_b["id"], &of_b["status"]["identity"]["id"]);
    let rows = clients.dbg("bpf endpoint list");
    assert!(rows.contains(&format!("id={id} ")) && rows.contains(&format!("sec_id={identity} ")), "{rows}");
    let row = clients.dbg(&format!("bpf ipcache get {}", addresses[0]));
    assert!(row.contains(&identity.to_string()), "{row}");
    let policies = clients.dbg("bpf policy get --all");
    let of_all = |line: &str| line.split_whitespace().take(3).eq(["Allow", "Ingress", "ANY"]);
    assert!(policies.lines().any(of_all), "the row for all peers\n{policies}");
    assert!(clients.dbg("bpf ct list global").contains("ICMP"));
    for words in [
        "identity list",
        "ip list",
        "node list",
        "config",
        "policy get",
        "policy selectors",
        "map list",
        "fqdn cache list",
        "lrp list",
        "bpf lb list",
        "bpf nat list",
        "bpf metrics list",
        "service list",
        "metrics list",
        "nodeid list",
        "statedb",
        "shell help",
        "encrypt status",
        "map get cilium_lxc",
        "debuginfo",
    ] {
        assert!(!clients.dbg(words).is_empty(), "{words}");
    }

    // Ours by the names of Cilium's programs prints what those print.
    let ours = node.sandbox().dir().join("ours");
    std::fs::create_dir(&ours).unwrap();
    for name in ["cilium-dbg", "hubble"] {
        symlink(binary("apiary"), ours.join(name)).unwrap();
    }
    for line in SAME_ANSWERS {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('~', " ")).collect();
        clients.compare(&ours, "cilium-dbg", &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let server = "unix:///run/cilium/hubble.sock";
    for line in SAME_FLOWS {
        let words: Vec<&str> = ["--server", server].into_iter().chain(line.split(' ')).collect();
        clients.compare(&ours, "hubble", &words);
    }

    // Monitor, hubble and the relay see the same packets.
    let file = node.sandbox().dir().join("cilium-monitor");
    let output = File::create(&file).unwrap();
    let mut command = clients.command("cilium-dbg", &["monitor"]);
    let monitor = Process::start(command.stdout(output.try_clone().unwrap()).stderr(output)).unwrap();
    let seen = |text: &str| std::fs::read_to_string(&file).unwrap().contains(text);
    wait_until("the monitor listens", LIMIT, || seen("Press Ctrl-C to quit"));
    let deny = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"name": "b"}}, "ingressDeny": [{"fromEndpoints": [{}]}]},
    });
    node.apply("closed.yaml", &deny.to_string());
    node.wait_policies(&["closed"]);
    addresses.iter().for_each(|address| assert!(!ping(&a, address), "{address}"));
    wait_until("the drop in the monitor", LIMIT, || seen("xx drop (Policy denied by denylist)"));
    drop(monitor);
    assert!(clients.run("hubble", &["--server", server, "status"]).contains("Ok"));
    clients.observe(
        server,
        "--from-pod default/a --protocol icmp",
        &["default/a", "default/b", "EchoRequest"],
    );
    let drop_of_b = ["default/b", "Policy denied by denylist DROPPED"];
    clients.observe(server, "--to-pod default/b --verdict DROPPED", &drop_of_b);

    let log = File::create(node.sandbox().dir().join("relay.log")).unwrap();
    let options = [
        "serve",
        "--peer-service",
        server,
        "--disable-server-tls",
        "--disable-client-tls",
        "--listen-address",
        RELAY,
    ];
    let mut command = clients.command("hubble-relay", &options);
    let relay = Process::start(command.stdout(log.try_clone().unwrap()).stderr(log)).unwrap();
    let listed = || {
        let output = clients.command("hubble", &["--server", RELAY, "list", "nodes"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("Connected")
    };
    wait_until("the relay knows the node", LIMIT, listed);
    clients.observe(RELAY, "--to-pod default/b --verdict DROPPED", &drop_of_b);
    drop(relay);

    clients.cni("DEL", "b", &b, None);
    let left = clients.dbg_json("endpoint list");
    let is_b = |endpoint: &Value| &endpoint["id"] == id;
    assert!(!left.as_array().unwrap().iter().any(is_b), "{left}");
    let Clients { mut node, .. } = clients;
    node.stop();
}

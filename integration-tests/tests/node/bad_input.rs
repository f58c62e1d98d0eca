//! Invalid input of every kind: its error, and that it is not partly applied.
//!
//! The texts are kept as snapshots, because people search for them; `INSTA_UPDATE=always` accepts new ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::{Node, binary};
use test_kit::{Process, require_command, require_root};

/// Returns every file below `folder` with its bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                found.insert(path.display().to_string(), fs::read(&path).unwrap_or_default());
            } else {
                found.insert(path.display().to_string(), Vec::new());
            }
        }
    }
    found
}

/// Replaces paths of the sandbox, times and line numbers, so that the text is the same in every run.
fn stable(node: &Node, text: &str) -> String {
    let text = text.replace(node.sandbox().dir().to_str().unwrap(), "DIR");
    let mut lines = String::new();
    for line in text.lines() {
        let line = line.split_once(" level=").map_or(line.to_owned(), |(_, rest)| format!("level={rest}"));
        let mut words: Vec<String> = Vec::new();
        for word in line.split(' ') {
            let after = words.last().is_some_and(|last| last == "after");
            words.push(match word.split_once(".rs:") {
                Some((file, number)) => {
                    format!("{file}.rs:{}", number.trim_start_matches(|c: char| c.is_ascii_digit()))
                }
                None if after && word.starts_with(|c: char| c.is_ascii_digit()) => "TIME".to_owned(),
                None if word.starts_with("duration=") => "duration=TIME".to_owned(),
                None => word.to_owned(),
            });
        }
        writeln!(lines, "{}", words.join(" ")).unwrap();
    }
    lines
}

/// Runs an agent that must refuse to start. Returns its exit code and its lines of level warn and above.
fn refused(node: &Node, mut command: Command) -> String {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let (run, pins) = (node.sandbox().run_dir(), node.sandbox().bpf_root());
    let before = (files(&run), files(&pins));
    let mut agent = Process::start(&mut command).unwrap();
    let mut stderr = agent.child().stderr.take().unwrap();
    let status = agent.wait(Duration::from_secs(20)).expect("it must end by itself");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
    assert_eq!(before, (files(&run), files(&pins)), "a refused start leaves no trace\n{text}");
    let reported: String = stable(node, &text)
        .lines()
        .filter(|l| !l.starts_with("level=info") && !l.starts_with("level=debug"))
        .map(|l| format!("{l}\n"))
        .collect();
    format!("exit code {}\n{reported}", status.code().unwrap())
}

fn refused_config(key: &str, value: &str) -> String {
    let mut node = Node::new();
    node.config.insert(key.to_owned(), value.to_owned());
    refused(&node, node.agent_command())
}

#[test]
fn options_of_wrong_type_or_value() {
    require_root!();
    let mut reported = String::new();
    for (key, value) in [
        ("enable-ipv4", "perhaps"),
        ("enable-ipv6", ""),
        ("agent-health-port", "many"),
        ("agent-health-port", "70000000"),
        ("ipv4-range", "10.244.0.0/40"),
        ("ipv6-range", "10.244.0.0/24"),
        ("bpf-policy-map-max", "-1"),
        ("api-rate-limit", "endpoint-create=rate-limit:fast"),
        ("mtu", "1279"),
        ("mtu", "65486"),
        ("mtu", "4294967296"),
        ("log-opt", "format=xml"),
        // a known option of another cell of Cilium is checked by its type too
        ("hubble-drop-events", "sometimes"),
    ] {
        write!(reported, "## {key}: {value:?}\n{}\n", refused_config(key, value)).unwrap();
    }
    insta::assert_snapshot!(reported);
}

#[test]
fn no_family_at_all() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("enable-ipv4".to_owned(), "false".to_owned());
    node.config.insert("enable-ipv6".to_owned(), "false".to_owned());
    insta::assert_snapshot!(refused(&node, node.agent_command()));
}

#[test]
fn a_missing_configuration_folder_and_unknown_flags() {
    require_root!();
    let node = Node::new();
    let agent = |arguments: &[&str]| {
        let mut command = node.host().command(binary("agent"));
        command.args(arguments);
        refused(&node, command)
    };
    let mut reported = agent(&["--config-dir", "/nonexistent/folder"]);
    reported += &agent(&["--enable-ipv7"]);
    insta::assert_snapshot!(reported);
}

#[test]
fn help_and_version_start_no_agent() {
    require_root!();
    let node = Node::new();
    for (flag, begin) in [("--help", "Usage: agent "), ("--version", "agent ")] {
        let mut command = node.agent_command();
        let mut agent = Process::start(command.arg(flag).stdout(Stdio::piped())).unwrap();
        let mut stdout = agent.child().stdout.take().unwrap();
        let status = agent.wait(Duration::from_secs(20)).expect("it must end by itself");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        assert!(status.success() && text.starts_with(begin), "{flag}: {status} {text}");
    }
    assert!(files(&node.sandbox().run_dir()).is_empty());
}

#[test]
fn an_unknown_option_is_named_with_its_nearest() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("enable-ipv44".to_owned(), "true".to_owned());
    node.start();
    let log = stable(&node, &node.log());
    let reported: Vec<&str> = log.lines().filter(|l| l.starts_with("level=warn")).collect();
    insta::assert_snapshot!(reported.join("\n"));
    node.stop();
}

#[test]
fn a_second_agent_on_the_same_state_folder() {
    require_root!();
    let mut node = Node::started();
    let before = node.endpoints();
    let mut command = node.agent_command();
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut second = Process::start(&mut command).unwrap();
    let mut stderr = second.child().stderr.take().unwrap();
    let status = second.wait(Duration::from_secs(20)).expect("it must end by itself");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
    assert_eq!(status.code(), Some(255), "{text}");
    // It names the process that holds the folder.
    let text = stable(&node, &text).replace(&node.agent_pid().to_string(), "PID");
    let reported: Vec<&str> = text.lines().filter(|line| line.starts_with("level=fatal")).collect();
    insta::assert_snapshot!(reported.join("\n"));
    assert_eq!(before, node.endpoints(), "the first goes on");
    node.stop();
}

#[test]
fn not_root() {
    require_root!();
    require_command!("setpriv");
    let node = Node::new();
    // A world-readable copy, in a world-accessible folder.
    let copy = node.sandbox().dir().join("agent");
    fs::copy(binary("agent"), &copy).unwrap();
    let mut command = node.host().command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).arg("--config-dir");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/standalone"));
    let reported = refused(&node, command);
    insta::assert_snapshot!(reported);
}

/// A kernel without bpf(2) returns ENOSYS for all of its commands.
#[test]
fn a_missing_kernel_feature() {
    require_root!();
    require_command!("strace");
    let node = Node::new();
    let agent = node.agent_command();
    let mut command = node.host().command("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", "inject=bpf:error=ENOSYS"]);
    command.arg(agent.get_program()).args(agent.get_args());
    insta::assert_snapshot!(refused(&node, command));
}

#[test]
fn a_pinned_map_of_another_layout() {
    require_root!();
    require_command!("bpftool");
    let node = Node::new();
    let pin = node.pin("cilium_lxc");
    fs::create_dir_all(pin.parent().unwrap()).unwrap();
    let path = pin.to_str().unwrap();
    let line = format!("bpftool map create {path} type hash key 8 value 8 entries 16 name cilium_lxc");
    node.host().exec(&line).unwrap();
    insta::assert_snapshot!(refused(&node, node.agent_command()));
}

/// Returns all state that requests could have changed.
fn state(node: &Node) -> (Vec<String>, BTreeMap<String, Vec<u8>>, String) {
    let addresses = node.get("/v1/healthz")["ipam"].to_string();
    let mut kept = files(&node.endpoint_files());
    // Reports of the start's jobs do not depend on requests.
    kept.retain(|name, _| !name.ends_with("cilium-agent-health-history.log"));
    (node.endpoints(), kept, addresses)
}

#[test]
fn requests_of_wrong_shape() {
    require_root!();
    let mut node = Node::started();
    let pod = node.add_pod("a");
    let taken = format!(
        r#"{{"state":"waiting-for-identity","container-id":"other","interface-name":"lxcother",
            "addressing":{{"ipv4":"{}"}}}}"#,
        pod.ipv4
    );
    let big = format!(r#"{{"state":"waiting-for-identity","labels":["{}"]}}"#, "x".repeat(8 << 20));
    let before = state(&node);
    let mut reported = String::new();
    for (name, method, path, body) in [
        ("no JSON", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", "{"),
        ("a list", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", "[]"),
        ("wrong type", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", r#"{"state":7}"#),
        ("no state", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", "{}"),
        ("unknown state", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", r#"{"state":"happy"}"#),
        ("address in use", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", &taken),
        ("too large", "PUT", "/v1/endpoint/cni-attachment-id:x:eth0", &big),
        ("unknown prefix", "GET", "/v1/endpoint/xx:7", ""),
        ("no number", "GET", "/v1/endpoint/seven", ""),
        ("not there", "DELETE", "/v1/endpoint/container-id:nobody", ""),
        ("no address", "POST", "/v1/ipam/nowhere?pool=default", ""),
        ("no pool", "POST", "/v1/ipam/10.244.0.77", ""),
        ("unknown family", "POST", "/v1/ipam?family=ipv5", ""),
        ("unknown path", "GET", "/v1/nosuch", ""),
        ("wrong method", "POST", "/v1/healthz", ""),
        ("unknown option", "PATCH", "/v1/config", r#"{"options":{"Speed":"on"}}"#),
        ("unknown map", "GET", "/v1/map/nosuch", ""),
    ] {
        let answer = node.request(method, path, Some(body)).unwrap();
        writeln!(reported, "## {name}: {method} {path}\n{} {}", answer.status, answer.body.trim_end())
            .unwrap();
        assert!(answer.status >= 400, "{name}: {answer:?}");
    }
    assert_eq!(before, state(&node), "a refused request changes nothing");
    insta::assert_snapshot!(reported.replace(&pod.ipv4.to_string(), "10.244.0.X"));
}

#[test]
fn calls_of_the_plugin_with_wrong_input() {
    require_root!();
    let node = Node::started();
    let ns = node.sandbox().netns("pod").unwrap();
    let before = state(&node);
    let mut reported = String::new();
    let good = r#"{"cniVersion":"1.0.0","name":"cilium","type":"cilium-cni"}"#;
    let id = "container-a";
    let namespace = ns.path().to_str().unwrap();
    for (name, config, id, namespace, verb) in [
        ("no JSON", "{", id, namespace, "ADD"),
        ("version from the future", r#"{"cniVersion":"9.0.0","name":"cilium"}"#, id, namespace, "ADD"),
        ("no container id", good, "", namespace, "ADD"),
        ("bad container id", good, "-bad id", namespace, "ADD"),
        ("container id too short", good, "abc", namespace, "ADD"),
        ("no namespace", good, id, "", "ADD"),
        ("namespace is not there", good, id, "/nonexistent/netns", "ADD"),
        ("unknown verb", good, id, namespace, "JUMP"),
        (
            "chained without chaining",
            r#"{"cniVersion":"1.0.0","name":"cilium","prevResult":{}}"#,
            id,
            namespace,
            "ADD",
        ),
        ("CHECK of nothing", good, id, namespace, "CHECK"),
    ] {
        let mut child = node
            .host()
            .command(binary("apiary-cni"))
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", id)
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CILIUM_SOCK", node.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = stable(&node, &String::from_utf8_lossy(&output.stdout));
        writeln!(reported, "## {name}\nexit code {}\n{text}", output.status.code().unwrap()).unwrap();
        assert!(!output.status.success(), "{name}: {text}");
    }
    assert_eq!(before, state(&node), "a refused call changes nothing");
    assert_eq!(ns.ip("-o link").unwrap().lines().count(), 1, "only loopback is left in the namespace");
    insta::assert_snapshot!(reported);
}

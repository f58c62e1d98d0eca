//! The agent works with the capabilities that ARCHITECTURE.md lists and no others, and names the one that it lacks;
//! strangers get nowhere near its socket, ports and files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration_tests::{Node, binary};
use test_kit::{require_command, require_root, wait_until};

/// The whole set.
const NEEDED: [&str; 2] = ["net_admin", "sys_admin"];

const PATIENCE: Duration = Duration::from_secs(20);

/// The agent with these capabilities only.
fn with(node: &Node, capabilities: &[&str]) -> Command {
    let set = capabilities.iter().fold("-all".to_owned(), |set, capability| format!("{set},+{capability}"));
    let agent = binary("agent");
    node.agent_command_of(&["setpriv", "--bounding-set", &set, agent.to_str().unwrap()])
}

#[test]
fn the_listed_capabilities_are_enough_for_pods_policies_and_restarts() {
    require_root!();
    require_command!("setpriv");
    let mut node = Node::new();
    let command = with(&node, &NEEDED);
    node.spawn_command(command);
    node.wait_ready();
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent_pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000201000\n"), "{status}");

    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    let reaches = || client.ns.exec(&format!("ping -c 1 -W 2 {}", server.ipv4)).is_ok();
    assert!(reaches());
    node.apply(
        "deny.yaml",
        "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: deny, namespace: default}\n\
         spec: {endpointSelector: {matchLabels: {name: server}}, ingress: [{}]}\n",
    );
    wait_until("policy in force", PATIENCE, || !reaches());
    node.withdraw("deny.yaml");
    wait_until("policy gone", PATIENCE, reaches);

    for _ in 0..2 {
        node.kill();
        assert!(reaches());
        let command = with(&node, &NEEDED);
        node.spawn_command(command);
        node.wait_ready();
        assert!(reaches());
    }
    wait_until("a well agent", PATIENCE, || node.get("/v1/healthz")["cilium"]["state"] == "Ok");
    node.delete_pod(client);
    node.delete_pod(server);
    node.stop();
}

#[test]
fn each_capability_that_is_missing_is_named() {
    require_root!();
    require_command!("setpriv");
    let node = Node::new();
    for missing in NEEDED {
        let rest: Vec<&str> = NEEDED.into_iter().filter(|capability| *capability != missing).collect();
        let output = with(&node, &rest).output().unwrap();
        assert_eq!(output.status.code(), Some(255), "without {missing}");
        let wanted = format!("The agent needs CAP_{}, for ", missing.to_uppercase());
        assert!(node.log().contains(&wanted), "without {missing}: {}", node.log());
    }
    assert!(!node.socket().exists());
}

#[test]
fn strangers_get_nowhere_near_socket_ports_and_files() {
    require_root!();
    require_command!("setpriv");
    let mut node = Node::new();
    node.config.insert("prometheus-serve-addr".into(), "127.0.0.1:9962".into());
    node.start();
    let pod = node.add_pod("pod");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&node.socket()), 0o660);

    // The folders on the way let everybody through: only the socket's own mode is in question.
    for folder in node.socket().ancestors().skip(1) {
        if mode(folder) & 0o011 != 0o011 {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode(folder) | 0o011)).unwrap();
        }
    }
    let connect = |user: &str| {
        let script = "import os,socket,sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1])); \
                      socket.socket(socket.AF_UNIX).connect(sys.argv[2])";
        let mut command = node.host().command("python3");
        command.args(["-c", script, user]).arg(node.socket()).output().unwrap()
    };
    assert!(connect("0").status.success(), "a control: root may");
    let stranger = connect("65534");
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(!stranger.status.success() && said.contains("PermissionError"), "{said}");

    // Nobody else gets into the state folder, where some files are as open as the original's; nobody else writes any.
    assert_eq!(mode(&node.endpoint_files()) & 0o007, 0);
    let mut records = 0;
    let mut folders = vec![node.endpoint_files()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap();
            if kind.is_symlink() {
                continue;
            }
            assert_eq!(mode(&path) & 0o022, 0, "{} may be written by others", path.display());
            if kind.is_file() {
                if path.ends_with("ep_config.json") {
                    assert_eq!(mode(&path) & 0o077, 0, "{} may be read by others", path.display());
                    records += 1;
                }
            } else {
                folders.push(path);
            }
        }
    }
    assert!(records > 0);

    // Ports are where the options say and nowhere else.
    let mut local: Vec<String> = ["tcp", "tcp6"]
        .iter()
        .flat_map(|table| {
            let read = || fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
            let text = node.host().run(read);
            let listens = |line: &str| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                (fields.get(3) == Some(&"0A")).then(|| fields[1].to_owned())
            };
            text.lines().filter_map(listens).collect::<Vec<_>>()
        })
        .collect();
    local.sort_unstable();
    // 127.0.0.1:9879, ::1:9879, 127.0.0.1:9962, as the kernel prints them on a little-endian machine.
    let wanted = ["00000000000000000000000001000000:2697", "0100007F:2697", "0100007F:26EA"];
    assert_eq!(local, wanted);
    node.delete_pod(pod);
    node.stop();
}

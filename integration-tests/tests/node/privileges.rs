//! The agent works with the capabilities that ARCHITECTURE.md lists and no others, and names the one that it lacks;
//! other users have no access to its socket, ports and files.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration_tests::{Node, Pod, ServiceFixture, binary};
use test_kit::{UdpFlow, require_command, require_root, wait_until};

/// The whole set.
const NEEDED: [&str; 3] = ["net_admin", "bpf", "perfmon"];
/// The same as the kernel prints it, and with what is used where it is held: CAP_CHOWN, CAP_DAC_OVERRIDE and
/// CAP_NET_BIND_SERVICE.
const NEEDED_MASK: &str = "000000c000001000";
const KEPT_MASK: &str = "000000c000001403";
const SYS_ADMIN: u64 = 1 << 21;
const SERVICE: &str = "10.96.0.10";

const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the command of the agent with these capabilities only.
fn with(node: &Node, capabilities: &[&str]) -> Command {
    let set = capabilities.iter().fold("-all".to_owned(), |set, capability| format!("{set},+{capability}"));
    let agent = binary("agent");
    node.agent_command_of(&["setpriv", "--bounding-set", &set, agent.to_str().unwrap()])
}

/// Starts the agent with these capabilities only, and waits until it is ready.
fn start_with(node: &mut Node, capabilities: &[&str]) {
    let command = with(node, capabilities);
    node.spawn_command(command);
    node.wait_ready();
}

/// Returns a set of capabilities of all threads of the agent, as the kernel prints it; the test fails if threads differ.
fn capabilities(node: &Node, set: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.agent_pid())).unwrap().flatten();
    let of_thread = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    // A thread may end meanwhile.
    let mut found: Vec<String> =
        tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).map(of_thread).collect();
    assert!(found.len() > 2, "{found:?}");
    found.dedup();
    assert_eq!(found.len(), 1, "{set}: {found:?}");
    found.remove(0)
}

fn health(node: &Node) -> String {
    node.get("/v1/healthz")["cilium"].to_string()
}

fn until_well(node: &Node) {
    wait_until("a well agent", PATIENCE, || node.get("/v1/healthz")["cilium"]["state"] == "Ok");
}

/// Whether packets to the service arrive at the pod behind it, and their number.
fn served(client: &Pod, server: &Pod) -> bool {
    let backend = SocketAddr::new(server.ipv4, 8080);
    let service = SocketAddr::new(SERVICE.parse().unwrap(), 80);
    let flow = UdpFlow::through(&client.ns, &server.ns, backend, Some(service)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    flow.stop().is_perfect()
}

#[test]
fn the_listed_capabilities_are_enough() {
    require_root!();
    require_command!("setpriv");
    let mut node = Node::new();
    node.follow_services("lb.json");
    start_with(&mut node, &NEEDED);
    assert_eq!(capabilities(&node, "CapEff"), NEEDED_MASK);
    assert_eq!(capabilities(&node, "CapBnd"), NEEDED_MASK);

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
    assert!(!served(&client, &server), "a control: there is no service");
    node.serve(&[ServiceFixture::new("web", &[SERVICE], &[&server.ipv4.to_string()])]);
    assert!(served(&client, &server));

    for kill in [true, false] {
        if kill {
            node.kill();
        } else {
            node.stop();
        }
        assert!(reaches() && served(&client, &server));
        start_with(&mut node, &NEEDED);
        assert!(reaches() && served(&client, &server));
    }
    until_well(&node);
    node.serve(&[]);
    assert!(!served(&client, &server));
    let gone = client.ipv4;
    node.delete_pod(client);
    assert!(server.ns.exec(&format!("ping -c 1 -W 1 {gone}")).is_err());
    node.delete_pod(server);
    node.stop();

    // The leftovers of this agent can be taken over and removed by another one.
    start_with(&mut node, &["net_admin", "sys_admin"]);
    assert_eq!(
        capabilities(&node, "CapEff"),
        "0000000000201000",
        "to old runtimes it includes the other two"
    );
    node.stop();
    let set = NEEDED.map(|capability| format!(",+{capability}")).concat();
    let agent = binary("agent");
    let words =
        ["setpriv", "--bounding-set", &format!("-all{set}"), agent.to_str().unwrap(), "cleanup", "--force"];
    assert!(node.agent_command_of(&words).status().unwrap().success(), "{}", node.log());
    assert!(
        !node.sandbox().bpf_root().join("tc").exists() && !node.sandbox().bpf_root().join("cilium").exists()
    );
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
fn a_full_root_gives_up_what_is_not_used_and_the_socket_gets_its_group() {
    require_root!();
    require_command!("setpriv");
    let mut node = Node::new();
    let groups = node.sandbox().dir().join("group");
    fs::write(&groups, "root:x:0:\ncilium:x:4242:\n").unwrap();
    node.host().exec(&format!("mount --bind {} /etc/group", groups.display())).unwrap();
    // A manifest that only its owner may read.
    let manifest = node.sandbox().dir().join("cluster/private.yaml");
    fs::write(&manifest, integration_tests::pod_manifest("default", "private", &[("name", "private")]))
        .unwrap();
    fs::set_permissions(&manifest, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&manifest, Some(4242), Some(4242)).unwrap();
    let private = |node: &Node| node.get("/statedb/dump/k8s-pods").to_string().contains("private");

    node.start();
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(capabilities(&node, set), KEPT_MASK, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(capabilities(&node, set), "0000000000000000", "{set}");
    }
    assert_eq!(fs::metadata(node.socket()).unwrap().gid(), 4242);
    assert!(private(&node));
    node.stop();

    // Without it: the agent works, and reports the missing features.
    start_with(&mut node, &NEEDED);
    assert_eq!(fs::metadata(node.socket()).unwrap().gid(), 0);
    let log = node.log();
    assert!(
        log.contains("cannot be given to the group cilium, whose members cannot connect: add CAP_CHOWN"),
        "{log}"
    );
    assert!(log.contains("private.yaml"), "{log}");
    node.stop();
}

#[test]
fn a_missing_bpf_file_system_is_mounted_or_asked_for() {
    require_root!();
    require_command!("setpriv");
    let mut node = Node::new();
    let root = node.sandbox().dir().join("elsewhere");
    node.config.insert("bpf-root".into(), root.to_str().unwrap().into());
    let output = with(&node, &NEEDED).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    let wanted = format!("mount -t bpf bpf {}", root.display());
    assert!(node.log().contains(&wanted) && node.log().contains("CAP_SYS_ADMIN"), "{}", node.log());
    assert!(!node.socket().exists());

    // An agent that may mount does so, and drops the capability.
    node.start();
    assert_eq!(capabilities(&node, "CapEff"), KEPT_MASK);
    assert!(root.join("tc/globals/cilium_lxc").exists());
    node.stop();
    start_with(&mut node, &NEEDED);
    node.stop();
    node.host().exec(&format!("umount {}", root.display())).unwrap();
}

#[test]
fn a_file_system_that_is_unmounted_is_asked_for_in_health_and_used_once_it_is_there() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let reaches = || a.ns.exec(&format!("ping -c 1 -W 2 {}", b.ipv4)).is_ok();
    let root = node.sandbox().bpf_root();
    let unmount = |node: &Node| {
        for mount in ["/sys/fs/bpf", root.to_str().unwrap()] {
            node.host().exec(&format!("umount {mount}")).unwrap();
        }
    };
    until_well(&node);
    unmount(&node);
    let remedy = format!("mount -t bpf bpf {}", root.display());
    wait_until("health names cause and remedy", PATIENCE, || {
        let health = health(&node);
        health.contains(&remedy) && health.contains("CAP_SYS_ADMIN")
    });
    assert!(reaches());
    // Policy still works, by open descriptors.
    node.apply(
        "deny.yaml",
        "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: deny, namespace: default}\n\
         spec: {endpointSelector: {matchLabels: {name: b}}, ingress: [{}]}\n",
    );
    wait_until("policy in force", PATIENCE, || !reaches());
    node.host().exec(&remedy).unwrap();
    until_well(&node);
    node.withdraw("deny.yaml");
    wait_until("policy gone", PATIENCE, reaches);
    let c = node.add_pod("c");
    assert!(c.ns.exec(&format!("ping -c 1 -W 2 {}", b.ipv4)).is_ok());
    node.kill();
    assert!(reaches());

    // By option the agent may do it itself.
    node.config.insert("bpf-root-remount".into(), "true".into());
    node.start();
    let held = u64::from_str_radix(&capabilities(&node, "CapEff"), 16).unwrap();
    assert_eq!(held, u64::from_str_radix(KEPT_MASK, 16).unwrap() | SYS_ADMIN);
    until_well(&node);
    node.host().exec(&format!("umount {}", root.display())).unwrap();
    wait_until("mounted again", PATIENCE, || root.join("tc/globals/cilium_lxc").exists());
    until_well(&node);
    assert!(reaches());
    node.stop();
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

    // The folders of the path are accessible: only the socket's own mode is tested.
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

    // No other user can enter the state folder, where some files have Cilium's wide modes, and none can write a file.
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

    // The agent only listens on the configured ports.
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

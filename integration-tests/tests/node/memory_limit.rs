//! An agent in a container with a limit of memory: what it sizes, what it refuses, and that the kernel never ends it.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use integration_tests::measure::{Candidate, bench_pods, bench_policies};
use integration_tests::{Node, pod_manifest};
use serde_json::json;
use test_kit::{require_root, skip, wait_until};

const LIMIT: u64 = 64 << 20;
const ENDPOINTS: usize = 50;
const POLICIES: usize = 100;

/// A number of the cgroup, under its name in the first or second version.
fn number(group: &Path, names: [&str; 2]) -> Option<u64> {
    names.iter().find_map(|name| fs::read_to_string(group.join(name)).ok()?.trim().parse().ok())
}

/// How often the kernel ended a process for its memory.
fn kills(group: &Path) -> u64 {
    let files = ["memory.oom_control", "memory.events"];
    let text = files.iter().find_map(|name| fs::read_to_string(group.join(name)).ok()).unwrap();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap()
}

/// Returns the bytes in use, without the page cache.
fn used(group: &Path) -> u64 {
    let usage = number(group, ["memory.usage_in_bytes", "memory.current"]).unwrap();
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap();
    let row = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let files = ["inactive_file", "active_file"].map(|name| row(&format!("total_{name}")).or(row(name)));
    usage - files.into_iter().flatten().sum::<u64>()
}

/// Creates a node with the default map sizes, which are for nodes with more memory.
fn limited(bytes: u64) -> Option<Node> {
    let mut node = Node::limited(bytes)?;
    node.config.remove("preallocate-bpf-maps");
    Some(node)
}

#[test]
fn a_limit_of_64_mb_holds_50_endpoints_through_restarts_storms_and_large_inputs() {
    require_root!();
    let Some(mut node) = limited(LIMIT) else { skip!("no cgroup here may have the memory controller") };
    let group = node.sandbox().memory_group().unwrap();
    node.start();
    assert!(node.log().contains("Maps are sized by the limit of memory"), "{}", node.log());
    bench_pods(&node, ENDPOINTS);
    node.apply("policies.yaml", &bench_policies(POLICIES, ENDPOINTS, 0));
    node.wait_rules("version", &["0"]);
    let endpoints = node.endpoints();
    // The maps must be charged to the group for the limit to be meaningful.
    assert!(used(&group) > 24 << 20, "{} bytes in use", used(&group));

    for kill in [false, true] {
        match kill {
            true => _ = node.kill(),
            false => node.stop(),
        }
        node.start();
        assert_eq!(node.endpoints(), endpoints);
    }
    node.wait_rules("version", &["0"]);
    let pid = node.agent_pid();

    storm(&node);
    for version in 1..=10 {
        node.apply("policies.yaml", &bench_policies(POLICIES, ENDPOINTS, version));
        node.wait_rules("version", &[version.to_string()]);
    }
    large_inputs(&node);

    assert_eq!(node.endpoints(), endpoints);
    assert_eq!((kills(&group), node.agent_pid()), (0, pid), "{}", node.log());
    // A start after all that, with everything still there.
    node.kill();
    node.start();
    assert_eq!(node.endpoints(), endpoints);
    node.wait_rules("version", &["10"]);
    assert_eq!(kills(&group), 0);
    node.stop();
}

/// Creates and deletes endpoints by eight clients concurrently.
fn storm(node: &Node) {
    let pods = node.sandbox().netns("storm").unwrap();
    let candidates: Vec<Candidate> =
        (ENDPOINTS..ENDPOINTS + 24).map(|number| Candidate::new(node, &pods, number)).collect();
    let socket = node.socket();
    thread::scope(|scope| {
        for client in 0..8 {
            let (candidates, socket) = (&candidates, &socket);
            scope.spawn(move || {
                for _ in 0..3 {
                    for candidate in candidates.iter().skip(client).step_by(8) {
                        candidate.create(socket);
                        let answer =
                            integration_tests::request(socket, "DELETE", &candidate.path, None).unwrap();
                        assert_eq!(answer.status, 200, "{answer:?}");
                    }
                }
            });
        }
    });
}

/// A file that does not fit is refused before it is read completely; other files apply.
fn large_inputs(node: &Node) {
    // A body is cut off at its limit, from several clients at once.
    let body = json!({"addressing": {"ipv4": "x".repeat(8 << 20)}}).to_string();
    let socket = node.socket();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // The agent may have closed the connection before all was sent.
                if let Ok(answer) = integration_tests::request(&socket, "PUT", "/v1/endpoint/99", Some(&body))
                {
                    assert!((400..500).contains(&answer.status), "{}", answer.status);
                }
            });
        }
    });

    // A file of 48 MB, and one of 900 kB that may be read.
    let one = pod_manifest("other", "filler", &[("filler", "x".repeat(60).as_str())]);
    node.apply("huge.yaml", &format!("{one}---\n").repeat((48 << 20) / one.len()));
    let many: Vec<String> = (0..(900 << 10) / one.len())
        .map(|i| pod_manifest("other", &format!("filler{i}"), &[("filler", "x".repeat(60).as_str())]))
        .collect();
    node.apply("many.yaml", &many.join("---\n"));
    node.apply("last.yaml", &pod_manifest("other", "last", &[]));
    wait_until("the file is refused by its size", Duration::from_secs(20), || {
        node.log().contains("has more than 1 MiB")
    });
    for file in ["huge.yaml", "many.yaml", "last.yaml"] {
        node.withdraw(file);
    }
}

/// Options that need more than the limit are refused by name, before the kernel would kill the agent.
#[test]
fn sizes_that_exceed_the_limit_are_refused_by_name() {
    require_root!();
    let Some(mut node) = limited(LIMIT) else { skip!("no cgroup here may have the memory controller") };
    let group = node.sandbox().memory_group().unwrap();
    node.config.insert("bpf-ct-global-tcp-max".to_owned(), "1000000".to_owned());
    let status = node.agent_command().status().unwrap();
    assert_eq!((status.code(), kills(&group)), (Some(255), 0), "{}", node.log());
    assert!(node.log().contains("bpf-ct-global-tcp-max"), "{}", node.log());
}

/// Requests that need memory are refused while it is short, and accepted afterwards.
#[test]
fn new_endpoints_are_refused_while_memory_is_short() {
    require_root!();
    let Some(mut node) = limited(LIMIT) else { skip!("no cgroup here may have the memory controller") };
    let group = node.sandbox().memory_group().unwrap();
    node.start();
    let pod = node.add_pod("before");
    let folder = node.sandbox().dir().join("hog");
    fs::create_dir(&folder).unwrap();
    node.host().exec(&format!("mount -t tmpfs hog {}", folder.display())).unwrap();
    // Another process in the container; from 9/10 on memory is short.
    let bytes = LIMIT * 96 / 100 - used(&group);
    let hog = format!(
        "echo $$ > {}/cgroup.procs && head -c {bytes} /dev/zero > {}/pages",
        group.display(),
        folder.display()
    );
    assert!(node.host().command("sh").args(["-c", &hog]).status().unwrap().success());
    let put =
        || node.request("PUT", "/v1/endpoint/4000", Some(r#"{"state": "waiting-for-identity"}"#)).unwrap();
    let refused = put();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.body.contains("raise the limit of its container"), "{refused:?}");
    assert!(!node.endpoints().is_empty());

    fs::remove_file(folder.join("pages")).unwrap();
    wait_until("there is room", Duration::from_secs(20), || put().status != 429);
    let after = node.add_pod("after");
    assert!(after.ns.exec(&format!("ping -c 1 -W 2 {}", pod.ipv4)).is_ok());
    assert_eq!(kills(&group), 0);
}

//! Folders and files of the operator that are temporarily unreadable.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod, ServiceFixture, binary, state_file};
use test_kit::{UdpFlow, has_command, require_root, skip};

use super::kit::{allows, health, node, until, until_well};

/// Starts an agent that is subject to file permissions.
fn start(node: &mut Node) {
    let agent = binary("agent");
    let words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", agent.to_str().unwrap()];
    let command = node.agent_command_of(&words);
    node.spawn_command(command);
    node.wait_ready();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn reaches(from: &Pod, to: &Pod) -> bool {
    let flow = UdpFlow::start(&from.ns, &to.ns, to.ipv4).unwrap();
    sleep(Duration::from_millis(60));
    flow.stop().received > 0
}

#[test]
fn a_cluster_folder_that_cannot_be_read_leaves_policies_in_force() {
    require_root!();
    if !has_command("setpriv") {
        skip!("needs setpriv");
    }
    let mut node = node("30s");
    start(&mut node);
    let [a, b, c] = ["a", "b", "c"].map(|name| node.add_pod(name));
    node.apply("policy.yaml", &allows("a"));
    until(&node, "the policy is in force", || reaches(&a, &b) && !reaches(&c, &b));
    until_well(&node);
    let folder = Path::new(&node.config["cluster-folder"]).to_owned();
    let shown = folder.to_str().unwrap();
    let reported = |node: &Node| {
        until(node, "health names folder and remedy", || {
            let health = health(node);
            health.contains(&format!("{shown} cannot be read")) && health.contains("make it a folder")
        });
    };

    // The folder is unreadable; changes meanwhile take effect once it is readable again.
    set_mode(&folder, 0);
    node.apply("policy.yaml", &allows("c"));
    reported(&node);
    assert!(reaches(&a, &b) && !reaches(&c, &b), "{}", node.log());
    set_mode(&folder, 0o755);
    until(&node, "the new policy is in force", || !reaches(&a, &b) && reaches(&c, &b));
    until_well(&node);

    // A file in place of the folder.
    let away = folder.with_extension("away");
    fs::rename(&folder, &away).unwrap();
    fs::write(&folder, "no folder").unwrap();
    reported(&node);
    assert!(!reaches(&a, &b) && reaches(&c, &b), "{}", node.log());
    fs::remove_file(&folder).unwrap();
    fs::rename(&away, &folder).unwrap();
    until_well(&node);
    assert!(!reaches(&a, &b) && reaches(&c, &b), "{}", node.log());

    // A file alone.
    set_mode(&folder.join("policy.yaml"), 0);
    until(&node, "health names the file", || {
        let health = health(&node);
        health.contains("policy.yaml") && health.contains("Permission denied")
    });
    assert!(!reaches(&a, &b) && reaches(&c, &b), "{}", node.log());
    set_mode(&folder.join("policy.yaml"), 0o644);
    until_well(&node);
}

#[test]
fn a_state_file_that_cannot_be_read_leaves_services_in_force() {
    require_root!();
    if !has_command("setpriv") {
        skip!("needs setpriv");
    }
    let mut node = node("30s");
    node.follow_services("lb.yaml");
    start(&mut node);
    let service = |backend: &str| [ServiceFixture::new("web", &["10.96.0.1"], &[backend])];
    node.serve(&service("10.1.0.1"));
    until_well(&node);
    let path = Path::new(&node.config["lb-state-file"]).to_owned();
    let shown = path.to_str().unwrap();
    let before = node.frontends();
    let reported = |node: &Node, words: &str| {
        until(node, words, || {
            let health = health(node);
            health.contains(shown) && health.contains(words)
        });
        assert_eq!(node.frontends(), before, "{}", node.log());
    };

    set_mode(&path, 0);
    reported(&node, "let the agent read it");
    set_mode(&path, 0o644);
    until_well(&node);

    fs::remove_file(&path).unwrap();
    reported(&node, "there is no state file");
    fs::create_dir(&path).unwrap();
    reported(&node, "is no regular file; put a file in its place");
    fs::remove_dir(&path).unwrap();
    node.write_services(&state_file(&service("10.1.0.2")));
    until_well(&node);
    node.serve(&service("10.1.0.2"));
}

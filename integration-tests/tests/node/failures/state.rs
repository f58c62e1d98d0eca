//! A state folder that cannot be written: full, or read-only.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod, pod_manifest};
use test_kit::{UdpFlow, require_root};

use super::kit::{health, logged, node, until, until_well};

/// Creates a node with its state folder on a small separate file system.
fn on_small_disk() -> (Node, PathBuf) {
    let mut node = node("30s");
    let folder = node.sandbox().dir().join("small");
    fs::create_dir(&folder).unwrap();
    node.host().exec(&format!("mount -t tmpfs -o size=512k small {}", folder.display())).unwrap();
    node.config.insert("state-dir".into(), folder.to_str().unwrap().into());
    (node, folder)
}

fn fill(folder: &std::path::Path) {
    let mut size = 64 << 10;
    let mut content = Vec::new();
    while size > 0 {
        let more = vec![0u8; size];
        content.extend(more);
        if fs::write(folder.join("filler"), &content).is_err() {
            content.truncate(content.len() - size);
            let _ = fs::write(folder.join("filler"), &content);
            size /= 2;
        }
    }
    // The remaining free space is too small for a file.
    assert!(fs::write(folder.join("probe"), vec![1u8; 8192]).is_err());
    let _ = fs::remove_file(folder.join("probe"));
    let mut n = 0;
    while fs::write(folder.join(format!("filler{n}")), [1u8; 4096]).is_ok() {
        n += 1;
    }
    let _ = fs::remove_file(folder.join(format!("filler{n}")));
}

fn empty(folder: &std::path::Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("filler") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn add_refused(node: &Node, name: &str) -> String {
    node.apply(&format!("pod-{name}.yaml"), &pod_manifest("default", name, &[("name", name)]));
    let ns = node.sandbox().netns(name).unwrap();
    let refused = Pod::add(node, "default", name, &ns).expect_err("there is no room for its record");
    node.sandbox().remove_netns(ns).unwrap();
    refused
}

/// A pod's identity by the kernel and the agent's API.
fn identity(node: &Node, pod: &Pod) -> u64 {
    let endpoint = node.get(&format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container()));
    endpoint["status"]["identity"]["id"].as_u64().unwrap()
}

#[test]
fn an_endpoint_that_cannot_be_stored_is_refused_and_the_others_go_on() {
    require_root!();
    let (mut node, folder) = on_small_disk();
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_well(&node);
    let flow = UdpFlow::start(&a.ns, &b.ns, b.ipv4).unwrap();
    let before = node.endpoints();

    for read_only in [false, true] {
        if read_only {
            // Files that are open stay open for writing, as on a file system that the kernel has stopped writing to.
            let state = folder.join("state").display().to_string();
            node.host().exec(&format!("mount --bind {state} {state}")).unwrap();
            node.host().exec(&format!("mount -o remount,bind,ro {state}")).unwrap();
        } else {
            fill(&folder);
        }
        let cause = if read_only { "Read-only file system" } else { "No space left on device" };
        let name = if read_only { "d" } else { "c" };
        let refused = add_refused(&node, name);
        assert!(refused.contains(cause) && refused.contains(folder.to_str().unwrap()), "{refused}");
        until(&node, "nothing is left of it", || node.endpoints() == before);

        // Existing endpoints are kept, and changed labels take effect once they can be stored.
        let labels = [("name", "a"), ("changed", if read_only { "twice" } else { "once" })];
        let old = identity(&node, &a);
        node.apply("pod-a.yaml", &pod_manifest("default", "a", &labels));
        until(&node, "health names file and cause", || {
            let health = health(&node);
            health.contains(cause) && health.contains(folder.to_str().unwrap())
        });
        if read_only {
            node.host().exec(&format!("umount -l {}", folder.join("state").display())).unwrap();
        } else {
            empty(&folder);
        }
        until(&node, "the other identity", || {
            identity(&node, &a) != old && node.endpoints().iter().all(|row| row.contains("\"ready\""))
        });
        until_well(&node);
        let late = node.add_pod(if read_only { "f" } else { "e" });
        node.delete_pod(late);
    }
    assert!(logged(&node, "Regeneration of endpoint failed") <= 4, "a flood: {}", node.log());
    node.kill();
    node.start();
    sleep(Duration::from_millis(50));
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    assert_eq!(node.endpoints().len(), before.len());
}

#[test]
fn a_start_on_a_full_state_folder_serves_those_who_are_there() {
    require_root!();
    let (mut node, folder) = on_small_disk();
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_well(&node);
    let flow = UdpFlow::start(&a.ns, &b.ns, b.ipv4).unwrap();
    let before = node.endpoints();
    for killed in [false, true] {
        match killed {
            true => drop(node.kill()),
            false => node.stop(),
        }
        fill(&folder);
        node.start();
        until(&node, "the endpoints are there", || node.endpoints() == before);
        let refused = add_refused(&node, if killed { "d" } else { "c" });
        assert!(refused.contains("No space left on device"), "{refused}");
        empty(&folder);
        until_well(&node);
        let late = node.add_pod(if killed { "f" } else { "e" });
        node.delete_pod(late);
    }
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
}

//! The MTU of pods follows the devices of the node while the agent runs, if it may enter their namespaces.

use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{NetNs, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// A node where the agent finds network namespaces as in its container.
fn node() -> Node {
    let node = Node::new();
    let (all, mounted) = (node.sandbox().dir().join("netns"), node.sandbox().run_dir().join("netns"));
    std::os::unix::fs::symlink(all, mounted).unwrap();
    node
}

fn mtu(ns: &NetNs, arguments: &str) -> String {
    let text = ns.ip(arguments).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "mtu");
    words.nth(1).unwrap_or_default().to_owned()
}

/// MTU of both sides of a pod's interface, and of its default routes.
fn mtus(node: &Node, pod: &Pod) -> [String; 4] {
    let device = pod.result["interfaces"][0]["name"].as_str().unwrap();
    [
        mtu(node.host(), &format!("-o link show {device}")),
        mtu(&pod.ns, "-o link show eth0"),
        mtu(&pod.ns, "-4 route show default"),
        mtu(&pod.ns, "-6 route show default"),
    ]
}

fn expected(device: u32) -> [String; 4] {
    let route = device - 50;
    [device, device, route, route].map(|mtu| mtu.to_string())
}

fn set(node: &Node, device: u32) {
    node.host().ip(&format!("link set eth0 mtu {device}")).unwrap();
    wait_until("the MTU in the configuration", LIMIT, || {
        let status = &node.get("/v1/config")["status"];
        status["deviceMTU"] == device && status["routeMTU"] == device - 50
    });
}

#[test]
fn pods_follow_the_devices_of_the_node() {
    require_root!();
    let mut node = node();
    node.config.insert("bpf-root-remount".to_owned(), "true".to_owned());
    node.start();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    assert_eq!(mtus(&node, &a), expected(1500));
    for device in [1400, 1450] {
        set(&node, device);
        for pod in [&a, &b] {
            wait_until("a pod with the MTU", LIMIT, || mtus(&node, pod) == expected(device));
        }
        for own in ["cilium_host", "cilium_net", "cilium_vxlan"] {
            wait_until(own, LIMIT, || mtu(node.host(), &format!("-o link show {own}")) == device.to_string());
        }
    }
    assert!(a.ns.exec(&format!("ping -c 1 -W 5 -s 1400 {}", b.ipv4)).is_ok(), "{}", node.log());
    assert!(!node.log().contains("MTU of pods could not be changed"), "{}", node.log());

    // An endpoint without namespace and interface.
    let lost = node.add_pod("lost");
    node.lose_pod(lost);
    set(&node, 1430);
    for pod in [&a, &b] {
        wait_until("a pod with the MTU", LIMIT, || mtus(&node, pod) == expected(1430));
    }
    assert!(!node.log().contains("MTU of pods could not be changed"), "{}", node.log());

    node.stop();
    node.host().ip("link set eth0 mtu 1420").unwrap();
    node.start();
    for pod in [&a, &b] {
        wait_until("a pod of the previous run", LIMIT, || mtus(&node, pod) == expected(1420));
    }
    let late = node.add_pod("late");
    assert_eq!(mtus(&node, &late), expected(1420));
}

#[test]
fn without_the_right_to_enter_pods_they_stay_as_they_are_and_health_names_it() {
    require_root!();
    let mut node = node();
    node.start();
    let pod = node.add_pod("a");
    set(&node, 1400);
    wait_until("the report", LIMIT, || node.log().contains("Pods keep their previous MTU"));
    assert!(node.log().contains("the agent needs CAP_SYS_ADMIN"), "{}", node.log());
    assert_eq!(mtus(&node, &pod), expected(1500), "both sides are alike");
    // A pod that is made now is right.
    let late = node.add_pod("late");
    assert_eq!(mtus(&node, &late), expected(1400));
    assert!(late.ns.exec(&format!("ping -c 1 -W 5 {}", pod.ipv4)).is_ok(), "{}", node.log());

    // The next agent that may enter them changes them.
    node.stop();
    node.config.insert("bpf-root-remount".to_owned(), "true".to_owned());
    node.start();
    for pod in [&pod, &late] {
        wait_until("a pod of the previous run", LIMIT, || mtus(&node, pod) == expected(1400));
    }
}

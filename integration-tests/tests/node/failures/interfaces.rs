//! Pods' interfaces that disappear, come back, are renamed, or have their index reused.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use bpf::Map;
use integration_tests::{Node, Pod};
use test_kit::{UdpFlow, require_root};

use super::kit::{health, logged, node, until, until_equal, until_well};

fn interface(pod: &Pod) -> String {
    pod.result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

fn index(name: &str) -> u32 {
    fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap().trim().parse().unwrap()
}

fn passes(from: &Pod, to: &Pod) -> bool {
    let flow = UdpFlow::start(&from.ns, &to.ns, to.ipv4).unwrap();
    sleep(Duration::from_millis(60));
    flow.stop().received > 0
}

/// Returns the endpoint to which packets from an interface index are attributed; 0 for none.
fn endpoint_at(node: &Node, index: u32) -> u32 {
    Map::<u32, u32>::open(&node.pin("ep_by_ifindex")).unwrap().lookup(&index).unwrap().unwrap_or(0)
}

fn id(node: &Node, pod: &Pod) -> u32 {
    let endpoint = node.get(&format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container()));
    endpoint["id"].as_u64().unwrap().try_into().unwrap()
}

#[test]
fn the_number_of_an_interface_that_is_gone_is_nobodys() {
    require_root!();
    let mut node = node("30s");
    node.config.insert("endpoint-gc-interval".into(), "1s".into());
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    assert!(passes(&a, &b), "{}", node.log());
    let (name, number, endpoint) = (interface(&a), index(&interface(&a)), id(&node, &a));
    assert_eq!(endpoint_at(&node, number), endpoint);

    // Deleted, and the index reused at once: packets from there are not the pod's, whatever their source address.
    let stranger = node.sandbox().netns("stranger").unwrap();
    node.host()
        .ip_batch(&format!(
            "link del {name}\nlink add lxc57a26e500001 index {number} type veth peer name eth0 netns {}\n\
             link set lxc57a26e500001 up\n",
            stranger.path().display()
        ))
        .unwrap();
    stranger
        .ip_batch(&format!("link set eth0 up\naddr add {}/32 dev eth0\nroute add default dev eth0\n", a.ipv4))
        .unwrap();
    until(&node, "the index has no owner", || endpoint_at(&node, number) == 0);
    let flow = UdpFlow::start(&stranger, &b.ns, b.ipv4).unwrap();
    sleep(Duration::from_millis(200));
    assert_eq!(flow.stop().received, 0, "{}", node.log());

    // It is reported once, and the endpoint is removed without a request.
    until(&node, "health names the interface", || {
        health(&node).contains(&format!("endpoint {endpoint}: interface {name} is gone"))
    });
    until_well(&node);
    assert!(
        node.endpoints().iter().all(|row| !row.starts_with(&format!("{endpoint} "))),
        "{:?}",
        node.endpoints()
    );
    assert_eq!(logged(&node, "Endpoints without interface"), 1, "{}", node.log());
    // The plugin's deletion succeeds without further work.
    node.delete_pod(a);
    let c = node.add_pod("c");
    assert!(passes(&c, &b), "{}", node.log());
}

#[test]
fn an_interface_that_was_moved_or_renamed_is_the_pods_when_it_is_back() {
    require_root!();
    let mut node = node("30s");
    node.config.insert("endpoint-gc-interval".into(), "1s".into());
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    let (name, endpoint) = (interface(&a), id(&node, &a));
    let number = index(&name);
    let elsewhere = node.sandbox().netns("elsewhere").unwrap();

    node.host().ip(&format!("link set {name} netns {}", elsewhere.path().display())).unwrap();
    until(&node, "the interface is gone", || endpoint_at(&node, number) == 0);
    elsewhere.ip(&format!("link set {name} netns {}", node.host().path().display())).unwrap();
    node.host().ip(&format!("link set {name} up")).unwrap();
    until(&node, "the interface is the endpoint's again", || endpoint_at(&node, number) == endpoint);
    until(&node, "packets pass", || passes(&a, &b) && passes(&b, &a));

    // A renamed interface is the same one: its endpoint stays.
    node.host().ip(&format!("link set {name} down")).unwrap();
    node.host().ip(&format!("link set {name} name lxcrenamed")).unwrap();
    node.host().ip("link set lxcrenamed up").unwrap();
    until(&node, "packets pass", || passes(&a, &b) && passes(&b, &a));
    sleep(Duration::from_secs(3));
    assert!(passes(&a, &b) && id(&node, &a) == endpoint, "{}", node.log());
    until_well(&node);
    node.stop();
    node.start();
    assert!(passes(&a, &b), "{:?}\n{}", node.endpoints(), node.log());
}

#[test]
fn an_interface_that_vanishes_while_its_endpoint_is_made_leaves_nothing() {
    require_root!();
    let mut node = node("30s");
    node.start();
    let b = node.add_pod("b");
    let numbers = |node: &Node| {
        let ids = Map::<u32, u32>::open(&node.pin("ep_ids")).unwrap().entries().unwrap().len();
        // The host's addresses have no owner, and their order varies.
        let addresses =
            bpf::Map::<[u8; 20], [u8; 48]>::open(&node.pin("cilium_lxc")).unwrap().entries().unwrap();
        let addresses = addresses.iter().filter(|(_, info)| info[6..8] != [0, 0]).count();
        let files = fs::read_dir(node.endpoint_files()).unwrap().flatten();
        let files = files.filter(|e| e.file_name().to_string_lossy().parse::<u16>().is_ok()).count();
        let policies = fs::read_dir(node.pin("")).unwrap().flatten();
        let policies =
            policies.filter(|e| e.file_name().to_string_lossy().starts_with("cilium_policy_v2_")).count();
        (ids, addresses, files, policies, node.endpoints().len())
    };
    let before = numbers(&node);
    for (round, delay) in [0, 300, 1000, 3000, 8000].into_iter().enumerate() {
        let known: Vec<String> = interfaces();
        let ns = node.sandbox().netns(&format!("v{round}")).unwrap();
        let host = node.host().clone();
        let remove = move || {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_secs(5) {
                let new = host.run(interfaces).into_iter().find(|name| !known.contains(name));
                if let Some(name) = new {
                    sleep(Duration::from_micros(delay));
                    let _ = host.ip(&format!("link del {name}"));
                    return;
                }
            }
        };
        let remover = std::thread::Builder::new().name("remover".to_owned()).spawn(remove).unwrap();
        let name = format!("v{round}");
        // The interface may go before or after the request: either is fine, if the runtime's deletion cleans up.
        let added = Pod::add(&node, "default", &name, &ns);
        remover.join().unwrap();
        let ghost = Pod { name, ns: ns.clone(), ..b.clone() };
        ghost.cni(&node, "DEL").unwrap_or_else(|error| panic!("{added:?}: {error}\n{}", node.log()));
    }
    until_equal(&node, "ids, addresses, files, policies, endpoints", &before, || numbers(&node));
    let c = node.add_pod("c");
    assert!(passes(&c, &b), "{}", node.log());
    until_well(&node);
}

/// A repair of a pod's network may recreate the same interface, which then has another index.
#[test]
fn an_interface_that_was_made_anew_is_the_pods_if_it_has_its_address() {
    require_root!();
    let mut node = node("30s");
    node.config.insert("endpoint-gc-interval".into(), "2s".into());
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_well(&node);
    let (name, endpoint) = (interface(&a), id(&node, &a));
    let mac = a.result["interfaces"][0]["mac"].as_str().unwrap().to_owned();
    let host = node.host().clone();
    let make = |mac: &str| {
        host.ip_batch(&format!(
                "link del {name}\nlink add {name} address {mac} type veth peer name eth0 netns {}\nlink set {name} up\n",
                a.ns.path().display()
            ))
            .unwrap();
        a.ns.ip_batch(&format!(
            "link set eth0 address {} up\naddr add {}/32 dev eth0\nroute add default dev eth0\n",
            mac_of_pod(&a),
            a.ipv4
        ))
        .unwrap();
    };
    let before = index(&name);
    make(&mac);
    assert_ne!(index(&name), before);
    until(&node, "packets pass", || passes(&a, &b) && passes(&b, &a));
    assert_eq!((id(&node, &a), endpoint_at(&node, before)), (endpoint, 0));
    sleep(Duration::from_secs(5));
    assert!(passes(&a, &b) && id(&node, &a) == endpoint, "{}", node.log());
    until_well(&node);
    node.kill();
    node.start();
    until(&node, "packets pass after a restart", || passes(&a, &b) && passes(&b, &a));

    // Another MAC address means another interface: nothing passes, and it is reported before the endpoint is removed.
    make("02:00:00:00:00:77");
    until(&node, "health names the interface", || {
        health(&node)
            .contains(&format!("endpoint {endpoint}: interface {name} (another has its name) is gone"))
    });
    assert!(!passes(&a, &b), "{}", node.log());
    until_well(&node);
}

fn mac_of_pod(pod: &Pod) -> &str {
    pod.result["interfaces"][1]["mac"].as_str().unwrap()
}

fn interfaces() -> Vec<String> {
    let names = fs::read_dir("/proc/thread-self/net/dev_snmp6").into_iter().flatten().flatten();
    names.filter_map(|e| e.file_name().into_string().ok()).filter(|name| name.starts_with("lxc")).collect()
}

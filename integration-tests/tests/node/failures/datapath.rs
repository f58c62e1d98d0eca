//! Parts of the datapath that other processes remove while the agent runs.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Link};
use integration_tests::{Node, Pod};
use test_kit::{UdpFlow, require_root};

use super::kit::{health, logged, node, pinned_maps, repairs, until, until_equal, until_well};

/// Links of devices that are pinned.
fn device_links(node: &Node) -> Vec<PathBuf> {
    let root = node.sandbox().bpf_root().join("cilium/devices");
    let mut links = Vec::new();
    for device in fs::read_dir(root).into_iter().flatten().flatten() {
        let pins = fs::read_dir(device.path().join("links")).into_iter().flatten().flatten();
        links.extend(pins.map(|pin| pin.path()));
    }
    links.sort();
    links
}

/// Returns the number of pinned loads of programs: more than one for a second after a load.
fn calls(node: &Node) -> usize {
    pinned_maps(node).keys().filter(|name| name.starts_with("cilium_calls_shared_")).count()
}

/// Waits until programs with the host endpoint's id are on all devices, and the previous ones are gone.
fn until_loaded(node: &Node) {
    until(node, "programs on devices", || {
        logged(node, "Loaded the datapath") > 0 && calls(node) == 1 && device_links(node).len() >= 3
    });
}

fn link_ids(node: &Node) -> Vec<(PathBuf, u32)> {
    let id = |path: &PathBuf| Link::open(path).ok()?.info().ok().map(|info| info.id);
    device_links(node).into_iter().filter_map(|path| Some((path.clone(), id(&path)?))).collect()
}

fn index(name: &str) -> u32 {
    fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap().trim().parse().unwrap()
}

/// Returns the host-side interface of a pod.
fn interface(pod: &Pod) -> &str {
    pod.result["interfaces"][0]["name"].as_str().unwrap()
}

fn has_filter(name: &str) -> bool {
    !Tc::new().unwrap().filters(index(name), Direction::Ingress).unwrap().is_empty()
}

/// Traffic between pods, and between a pod and the world, in both families.
fn traffic(node: &Node, a: &Pod, b: &Pod) -> Vec<UdpFlow> {
    // The kernel runs duplicate address detection for a second on new links.
    until(node, "no address is tentative", || {
        [node.host(), node.world()].iter().all(|ns| ns.ip("-6 addr show tentative").unwrap().is_empty())
    });
    let to_pod = b.addresses().map(|ip| UdpFlow::start(&a.ns, &b.ns, ip).unwrap());
    let world: [IpAddr; 2] = [Node::WORLD_IPV4.parse().unwrap(), Node::WORLD_IPV6.parse().unwrap()];
    let out = world.map(|ip| UdpFlow::start(&a.ns, node.world(), ip).unwrap());
    to_pod.into_iter().chain(out).collect()
}

fn assert_perfect(flows: Vec<UdpFlow>, node: &Node) {
    for flow in flows {
        let report = flow.stop();
        assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    }
}

#[test]
fn pins_come_back_and_nothing_stops_when_they_or_their_file_system_go() {
    require_root!();
    let mut node = node("500ms");
    // By default the agent cannot mount (`privileges.rs`).
    node.config.insert("bpf-root-remount".into(), "true".into());
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_loaded(&node);
    until_well(&node);
    let (maps, links) = (pinned_maps(&node), link_ids(&node));
    assert!(maps.keys().any(|name| name.starts_with("cilium_policy_v2_")), "{maps:?}");
    let flows = traffic(&node, &a, &b);

    for name in maps.keys() {
        fs::remove_file(node.pin(name)).unwrap();
    }
    for (path, _) in &links {
        fs::remove_file(path).unwrap();
    }
    until(&node, "the same maps and links are pinned again", || {
        pinned_maps(&node) == maps && link_ids(&node) == links
    });
    until(&node, "all are counted", || repairs(&node, "pin") >= (maps.len() + links.len()) as u64);
    // Counters and the log follow the repair, a moment later.
    let reported = || logged(&node, "Parts of the datapath were removed or changed");
    until(&node, "it is logged", || reported() > 0);
    // Once, or twice if the comparison came amid the removals.
    assert!(reported() <= 2, "{}", node.log());

    // Only the agent's descriptors keep the kernel's objects alive.
    for mount in ["/sys/fs/bpf", node.sandbox().bpf_root().to_str().unwrap()] {
        node.host().exec(&format!("umount {mount}")).unwrap();
    }
    until(&node, "the same maps and links are pinned in another file system", || {
        pinned_maps(&node) == maps && link_ids(&node) == links
    });
    until(&node, "the mount is counted", || repairs(&node, "bpffs") > 0);
    assert_eq!(repairs(&node, "bpffs"), 1);
    until_well(&node);

    // The restored pins suffice for a restart.
    node.kill();
    sleep(Duration::from_millis(100));
    node.start();
    sleep(Duration::from_millis(100));
    assert_perfect(flows, &node);
    let after = pinned_maps(&node);
    let kept = maps.iter().filter(|(name, _)| !name.starts_with("cilium_calls_"));
    for (name, id) in kept {
        assert_eq!(after.get(name), Some(id), "{name}");
    }
}

#[test]
fn programs_that_were_removed_come_back_and_nothing_passes_meanwhile() {
    require_root!();
    // So long that only the kernel's notifications trigger a comparison in time.
    let mut node = node("1h");
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_loaded(&node);

    // Removing a filter allows nothing: the nftables rule requires the mark of our programs.
    let host: IpAddr = Node::IPV4.parse().unwrap();
    let flow = UdpFlow::start(&a.ns, node.host(), host).unwrap();
    for removal in ["tc qdisc del dev {} clsact", "tc filter del dev {} ingress"] {
        // Not every repair is counted: an event of the interface itself may have been handled first.
        let before = repairs(&node, "program");
        until(&node, "a repair that is counted", || {
            node.host().exec(&removal.replace("{}", interface(&a))).unwrap();
            until(&node, "the program of the pod", || has_filter(interface(&a)));
            repairs(&node, "program") > before
        });
    }
    // Removed rules are restored, too.
    loader::remove_rule().unwrap();
    until(&node, "both rules", || repairs(&node, "nftables") == 2);
    sleep(Duration::from_millis(50));
    let report = flow.stop();
    let last = report.gaps.last().map_or(0, |gap| gap.1);
    assert!(last + 20 < report.sent, "it goes on: {report:?}");

    assert_perfect(traffic(&node, &a, &b), &node);
    until_well(&node);
}

#[test]
fn links_that_were_detached_are_made_again() {
    require_root!();
    let mut node = node("300ms");
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_loaded(&node);
    let before = link_ids(&node);
    if before.is_empty() {
        test_kit::skip!("needs tcx (Linux 6.6)");
    }
    for (path, _) in &before {
        Link::open(path).unwrap().detach().unwrap();
    }
    until(&node, "links that are attached", || {
        device_links(&node).len() == before.len()
            && device_links(&node).iter().all(|path| {
                let info = Link::open(path).and_then(|link| link.info());
                info.is_ok_and(|info| info.ifindex.is_some_and(|index| index != 0))
            })
    });
    until(&node, "all are counted", || repairs(&node, "program") >= before.len() as u64);
    assert_eq!(repairs(&node, "program"), before.len() as u64);
    assert_perfect(traffic(&node, &a, &b), &node);
    assert!(health(&node).starts_with("Ok "), "{}", health(&node));
}

#[test]
fn the_host_devices_their_addresses_and_routes_come_back() {
    require_root!();
    // They are restored upon the kernel's notifications.
    let mut node = node("1h");
    node.start();
    let [a, b] = ["a", "b"].map(|name| node.add_pod(name));
    until_loaded(&node);
    let shown = || {
        let of = |line: &str| node.host().ip(line).unwrap_or_default();
        let addresses = of("-br addr show dev cilium_host");
        let addresses: Vec<&str> = addresses.split_whitespace().skip(2).collect();
        let mut addresses: Vec<String> =
            addresses.into_iter().filter(|a| !a.starts_with("fe80")).map(str::to_owned).collect();
        addresses.sort();
        let routes = of("-4 route show dev cilium_host") + &of("-6 route show dev cilium_host");
        let mut routes: Vec<String> = routes
            .lines()
            .filter(|l| !l.contains("fe80") && !l.contains("ff00"))
            .map(str::to_owned)
            .collect();
        routes.sort();
        (addresses, routes)
    };
    until(&node, "routes", || shown().1.len() >= 4);
    let before = shown();
    // Traffic between pods is unaffected by changes of the host's side.
    let flows: Vec<UdpFlow> = b.addresses().map(|ip| UdpFlow::start(&a.ns, &b.ns, ip).unwrap()).into();

    let pods = "10.244.0.0/24";
    for change in [
        format!("route del {pods}"),
        format!("addr del {} dev cilium_host", before.0[0]),
        format!("addr del {} dev cilium_host", before.0[1]),
        "link set cilium_net down".to_owned(),
        "link del cilium_host".to_owned(),
        "link del cilium_net".to_owned(),
    ] {
        node.host().ip(&change).unwrap();
        until_equal(&node, &change, &before, &shown);
        until(&node, &change, || device_links(&node).len() >= 3);
        until(&node, &format!("{change}: the host reaches pods"), || {
            let flow = UdpFlow::start(node.host(), &a.ns, a.ipv4).unwrap();
            sleep(Duration::from_millis(30));
            flow.stop().received > 0
        });
    }
    assert_perfect(flows, &node);
    // Those of devices and addresses; routes have a reconciler of their own.
    until(&node, "repairs are counted", || repairs(&node, "network") >= 2);
    until_well(&node);
}

//! Lost notifications of the kernel.

use std::collections::BTreeSet;

use serde_json::Value;
use test_kit::require_root;

use super::kit::{logged, node, rows, until, until_well};

/// Links in the storm: their messages exceed the receive buffer of the agent's socket.
const LINKS: usize = 60;
/// Changes of one of them, a message each.
const CHANGES: usize = 6000;

/// Names and addresses of interfaces, as `ip` prints them.
fn of_ip(node: &integration_tests::Node) -> BTreeSet<(String, String)> {
    let shown: Value = serde_json::from_str(&node.host().ip("-j addr show").unwrap()).unwrap();
    let mut found = BTreeSet::new();
    for link in shown.as_array().unwrap() {
        let name = link["ifname"].as_str().unwrap();
        found.insert((name.to_owned(), String::new()));
        for address in link["addr_info"].as_array().unwrap() {
            found.insert((name.to_owned(), address["local"].as_str().unwrap().to_owned()));
        }
    }
    found
}

/// The same, as the table `devices` has it.
fn of_table(node: &integration_tests::Node) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for device in rows(node, "devices") {
        let name = device["Name"].as_str().unwrap();
        found.insert((name.to_owned(), String::new()));
        for address in device["Addrs"].as_array().into_iter().flatten() {
            found.insert((name.to_owned(), address["Addr"].as_str().unwrap().to_owned()));
        }
    }
    found
}

fn routes_of_ip(node: &integration_tests::Node) -> usize {
    let count = |family: &str| {
        let shown = node.host().ip(&format!("{family} -j route show table main")).unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown.as_array().unwrap().iter().filter(|route| route["dst"] != "multicast").count()
    };
    count("-4") + count("-6")
}

fn routes_of_table(node: &integration_tests::Node) -> usize {
    rows(node, "routes").iter().filter(|route| route["Table"] == 254).count()
}

#[test]
fn tables_are_the_kernels_again_after_lost_notifications() {
    require_root!();
    let mut node = node("30s");
    node.start();
    node.add_pod("a");
    until(&node, "tables before", || of_table(&node) == of_ip(&node));

    node.signal("STOP");
    let mut storm = String::new();
    for i in 0..LINKS {
        let (high, low) = (i / 250, i % 250 + 1);
        storm += &format!(
            "link add storm{i} type veth peer name peer{i}\naddr add 10.7{high}.{low}.1/24 dev storm{i}\n"
        );
        storm += &format!("link set storm{i} up\nlink set peer{i} up\n");
    }
    for i in 0..CHANGES {
        storm += &format!("link set storm{} mtu {}\n", LINKS - 1, 1300 + i % 200);
    }
    // The first ones are deleted again, and the uplink has another address, before the agent can read the changes.
    for i in 0..LINKS / 4 {
        storm += &format!("link del storm{i}\n");
    }
    storm += "addr add 192.0.2.77/24 dev eth0\nroute add 198.51.100.0/24 via 192.0.2.2\n";
    node.host().ip_batch(&storm).unwrap();
    node.signal("CONT");
    until(&node, "an overflow that is reported", || logged(&node, "Netlink messages were lost") > 0);
    until(&node, "links and addresses as the kernel has them", || of_table(&node) == of_ip(&node));
    until(&node, "routes as the kernel has them", || routes_of_table(&node) == routes_of_ip(&node));
    let selected = rows(&node, "node-addresses");
    assert!(selected.iter().any(|row| row.to_string().contains("192.0.2.77")), "{selected:?}");
    until_well(&node);
    assert!(logged(&node, "Netlink messages were lost") <= 3, "{}", node.log());

    // Notifications are received again.
    node.host().ip("link add last type veth peer name tsal").unwrap();
    until(&node, "the last link", || of_table(&node).contains(&("last".to_owned(), String::new())));
}

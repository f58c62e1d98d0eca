//! Rules of iptables of a whole node: they take the mark of the host's packets over from nftables, survive kills, and go
//! with `agent cleanup`.

use std::time::Duration;

use integration_tests::Node;
use test_kit::{NetNs, require_command, require_root, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the host's packets are marked by rules of iptables in both families.
fn by_iptables(host: &NetNs) -> bool {
    ["iptables-nft-save", "ip6tables-nft-save"].iter().all(|tool| {
        let rules = host.exec(tool).unwrap();
        rules.contains("mark as from host")
            && rules.contains("-A OUTPUT -m comment --comment \"cilium-feeder: ")
    })
}

fn by_nftables(host: &NetNs) -> bool {
    host.exec("nft list chain inet apiary host-packets").is_ok_and(|chain| chain.contains("meta mark set"))
}

#[test]
fn the_mark_of_the_hosts_packets_is_handed_over() {
    require_root!();
    require_command!("iptables-nft-save");
    require_command!("nft");
    let mut node = Node::new();
    let host = node.host().clone();
    host.exec("iptables-nft -A INPUT -s 198.51.100.1/32 -j DROP").unwrap();
    node.config.insert("install-iptables-rules".into(), "true".into());
    let handed_over = || by_iptables(&host) && !by_nftables(&host);
    node.start();
    wait_until("iptables marks the host's packets", PATIENCE, handed_over);
    let masquerading = &node.get("/v1/healthz")["masquerading"];
    assert_eq!(masquerading["mode"], "iptables", "{masquerading}");
    assert_eq!(masquerading["snat-exclusion-cidr-v4"], "10.244.0.0/24", "{masquerading}");
    let protocols = &node.get("/v1/config")["status"]["masqueradeProtocols"];
    assert_eq!((&protocols["ipv4"], &protocols["ipv6"]), (&true.into(), &true.into()), "{protocols}");

    // Killed at any moment, the next start completes the rules.
    for _ in 0..3 {
        node.kill();
        host.exec("iptables-nft -F CILIUM_OUTPUT").unwrap();
        node.spawn();
        node.kill();
        node.start();
        wait_until("the rules are complete", PATIENCE, handed_over);
    }
    node.stop();
    assert!(by_iptables(&host), "rules stay at the stop");

    node.config.insert("install-iptables-rules".into(), "false".into());
    node.start();
    wait_until("nftables marks the host's packets", PATIENCE, || by_nftables(&host) && !by_iptables(&host));
    node.stop();
    node.config.insert("install-iptables-rules".into(), "true".into());
    node.config.insert("routing-mode".into(), "native".into());
    node.start();
    wait_until("iptables marks the host's packets again", PATIENCE, handed_over);
    node.stop();

    let cleanup = |arguments: &[&str]| {
        let output =
            node.agent_command().arg("cleanup").args(arguments).stdout(std::process::Stdio::piped()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let removed = cleanup(&["--force"]);
    assert!(removed.contains("removed ipset cilium_node_set_v4"), "{removed}");
    assert_eq!(cleanup(&["--dry-run"]), "");
    let rules = host.exec("iptables-nft-save").unwrap() + &host.exec("ip6tables-nft-save").unwrap();
    let rules: Vec<&str> =
        rules.lines().filter(|line| line.starts_with("-A") || line.contains("CILIUM")).collect();
    assert_eq!(rules, ["-A INPUT -s 198.51.100.1/32 -j DROP"]);
}

//! `agent cleanup`: restores the state before the first start, independent of the state that the agent has left.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Program};
use integration_tests::Node;
use test_kit::{NetNs, require_command, require_root, wait_until};

/// Links, addresses, routes, rules and what is attached, and every file of the run folder and the bpf file system. Not
/// the kernel's settings, which stay, nor the anycast routes that follow from one of them.
fn facts(node: &Node) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    let host: &NetNs = node.host();
    for line in [
        "ip -o -d link show",
        "ip -o addr show",
        "ip -o -4 route show table all",
        "ip -o -6 route show table all",
        "ip -4 rule show",
        "ip -6 rule show",
        "tc qdisc show",
    ] {
        let output = host.exec(line).unwrap();
        let stays = |text: &&str| !text.contains("anycast") && !text.is_empty();
        facts.extend(output.lines().filter(stays).map(|text| format!("{line}: {text}")));
    }
    facts.extend(files(node));
    facts
}

/// Returns every file of the run folder and the bpf file system, and all attachments.
fn files(node: &Node) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for folder in [node.sandbox().run_dir(), node.sandbox().bpf_root()] {
        tree(&folder, &mut files);
    }
    let net = node.host().exec("bpftool net show").unwrap();
    files.extend(net.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    files
}

fn assert_same(found: &BTreeSet<String>, wanted: &BTreeSet<String>, what: &str) {
    let differs: Vec<&String> = found.symmetric_difference(wanted).collect();
    assert!(differs.is_empty(), "{what}: {differs:#?}");
}

fn tree(folder: &Path, facts: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        facts.insert(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            tree(&entry.path(), facts);
        }
    }
}

fn cleanup(node: &Node, flags: &[&str]) -> Output {
    let mut command = node.agent_command();
    command.arg("cleanup").args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.output().unwrap()
}

/// Returns the output lines of a run that must succeed.
fn lines(node: &Node, flags: &[&str]) -> Vec<String> {
    let output = cleanup(node, flags);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{flags:?}: {}\n{out}{err}", output.status);
    out.lines().map(str::to_owned).collect()
}

fn refused(node: &Node, flags: &[&str]) -> String {
    let output = cleanup(node, flags);
    assert!(!output.status.success() && output.stdout.is_empty(), "{flags:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns a program that passes all packets on to other programs.
fn pass() -> Program {
    const MOV_R0_UNSPEC: u64 = 0xffff_ffff_0000_00b7;
    const EXIT: u64 = 0x95;
    Program::from_instructions("pass", &[MOV_R0_UNSPEC, EXIT]).unwrap()
}

/// The test for an agent with tcx links on devices, or with filters.
fn everything_goes(tcx: bool) {
    let mut node = Node::new();
    node.config.insert("enable-tcx".into(), tcx.to_string());
    // Objects of other programs must stay.
    let host = node.host().clone();
    let eth0 = host.ip("-o link show dev eth0").unwrap().split(':').next().unwrap().parse().unwrap();
    let tc = Tc::new().unwrap();
    tc.attach_with_clsact(eth0, Direction::Ingress, 77, "of_somebody", &pass()).unwrap();
    fs::create_dir_all(node.sandbox().bpf_root().join("tc/globals")).unwrap();
    let foreign = node.pin("ep_of_somebody");
    host.exec(&format!(
        "bpftool map create {} type hash key 4 value 4 entries 1 name foreign",
        foreign.display()
    ))
    .unwrap();
    fs::write(node.sandbox().run_dir().join("notes.txt"), "of the operator").unwrap();
    assert_eq!(lines(&node, &["--dry-run"]), Vec::<String>::new(), "nothing of these is an agent's");
    wait_until("addresses are unique", Duration::from_secs(5), || {
        !host.ip("-o addr show").unwrap().contains("tentative")
    });
    let before = facts(&node);

    node.start();
    let pod = node.add_pod("a");
    node.add_pod("b");
    wait_until("maps that only tools want are there", Duration::from_secs(20), || {
        let pinned = node.sandbox().bpf_root().join("tc/globals");
        ["lb6_reverse_sk", "node_map_v2", "skip_lb4", "skip_lb6"]
            .iter()
            .all(|map| pinned.join(format!("cilium_{map}")).exists())
    });
    let running = files(&node);
    let reported = refused(&node, &["--force"]);
    assert!(reported.contains(&format!("an agent (pid {}) runs on", node.agent_pid())), "{reported}");
    assert_same(&files(&node), &running, "a running agent's things stay");
    node.kill();

    let killed = files(&node);
    let listed = lines(&node, &["--dry-run"]);
    let interface = pod.result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    for begin in [
        &format!("interface {interface}"),
        "interface cilium_host",
        "interface cilium_net",
        "interface cilium_vxlan",
        "nftables table inet apiary",
        &format!("pin {}", node.pin("cilium_lxc").display()),
        &format!("pin {}", node.pin("ep_config").display()),
        &format!("folder {}/state with", node.sandbox().run_dir().display()),
    ] {
        assert_eq!(listed.iter().filter(|line| line.starts_with(begin)).count(), 1, "{begin}: {listed:#?}");
    }
    let kind =
        if tcx { "links/cil_from_netdev" } else { "tc filter cil_from_netdev-eth0 at ingress of eth0" };
    assert!(listed.iter().any(|line| line.contains(kind)), "{listed:#?}");
    for (flags, remedy) in [
        (&[][..], "give --force"),
        (&["--dry-rum"], "unknown flag: --dry-rum (did you mean --dry-run?)"),
        (&["--force=perhaps"], r#"option force: \"perhaps\" is not a bool"#),
        (&["-x"], "unknown shorthand flag: -x"),
    ] {
        let reported = refused(&node, flags);
        assert!(reported.contains(remedy), "{reported}");
    }
    assert_same(&files(&node), &killed, "neither a dry run nor a refusal changes anything");

    // Some leftovers are removed already, and a change of a map was interrupted.
    fs::remove_file(node.pin("cilium_ipcache_v2")).unwrap();
    fs::rename(node.pin("ep_ids"), node.pin("ep_ids_pending")).unwrap();
    host.ip("link del cilium_net").unwrap();
    let removed = lines(&node, &["-f"]);
    assert!(!removed.is_empty() && removed.iter().all(|line| line.starts_with("removed ")), "{removed:#?}");
    assert_same(&facts(&node), &before, "all is gone");
    assert_eq!(lines(&node, &["--dry-run"]), Vec::<String>::new());
    assert_eq!(lines(&node, &["--force"]), Vec::<String>::new(), "the second finds nothing");
    assert_same(&facts(&node), &before, "and stays so");

    // And the node can be used again.
    node.start();
    node.stop();
}

#[test]
fn a_node_with_links_is_as_before_the_first_start() {
    require_root!();
    require_command!("bpftool");
    everything_goes(true);
}

#[test]
fn a_node_with_filters_is_as_before_the_first_start() {
    require_root!();
    require_command!("bpftool");
    everything_goes(false);
}

/// As done by Cilium's init container with `cilium-dbg`.
#[test]
fn only_programs_links_and_maps_go() {
    require_root!();
    let mut node = Node::started();
    node.add_pod("a");
    node.stop();
    let configured = node.agent_command();
    let configured: Vec<&str> = configured.get_args().map(|argument| argument.to_str().unwrap()).collect();
    let removed = node.apiary(&[&["post-uninstall-cleanup", "-f", "--bpf-state"], &configured[..]].concat());
    let removed: Vec<&str> = removed.lines().collect();
    let kinds: BTreeSet<&str> = removed.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(kinds, BTreeSet::from(["link", "pin"]), "{removed:#?}");
    let left = lines(&node, &["--dry-run"]);
    assert!(left.iter().any(|line| line == "interface cilium_host"), "{left:#?}");
    assert!(!left.iter().any(|line| line.starts_with("pin ") || line.starts_with("link ")), "{left:#?}");
}

/// Leftovers of Cilium alone: chains of iptables as recorded from one, and the routes to its proxies.
#[test]
fn what_the_original_has_put_into_iptables_and_routing_goes() {
    require_root!();
    require_command!("iptables-nft-save");
    let node = Node::new();
    let host = node.host().clone();
    // Tables with nothing in them are the system's own.
    let tables = || {
        let text = host.exec("iptables-nft-save").unwrap() + &host.exec("ip6tables-nft-save").unwrap();
        let facts = text.lines().filter(|line| line.starts_with('-') || line.contains(" - "));
        facts.map(str::to_owned).collect::<Vec<String>>()
    };
    let restore = |tool: &str, file: &str| {
        let path = node.sandbox().dir().join(tool);
        fs::write(&path, file).unwrap();
        host.exec(&format!("{tool} --noflush {}", path.display())).unwrap();
    };
    // Foreign objects: a chain, a rule, a route and a routing rule.
    let others = "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n\
                  -A INPUT -m comment --comment \"not CILIUM_INPUT\" -j ACCEPT\nCOMMIT\n";
    restore("iptables-nft-restore", others);
    fs::write(node.sandbox().run_dir().join("notes.txt"), "of the operator").unwrap();
    host.ip_batch("rule add fwmark 0x200/0xff00 lookup 77 pref 9\nroute add 192.0.2.0/24 dev lo table 77\n")
        .unwrap();
    wait_until("addresses are unique", Duration::from_secs(5), || {
        !host.ip("-o addr show").unwrap().contains("tentative")
    });
    let before = (tables(), facts(&node));
    assert_eq!(lines(&node, &["--dry-run"]), Vec::<String>::new(), "nothing of these is the original's");

    restore("iptables-nft-restore", include_str!("../packets/takeover/iptables-save.txt"));
    let six = "*filter\n:CILIUM_INPUT - [0:0]\n-A INPUT -j CILIUM_INPUT\nCOMMIT\n";
    restore("ip6tables-nft-restore", six);
    for family in ["-4", "-6"] {
        for change in [
            "rule add pref 9 fwmark 0x200/0xf00 lookup 2004",
            "rule add pref 10 fwmark 0xa00/0xf00 lookup 2005",
            "rule add pref 100 lookup local",
            "rule del pref 0 lookup local",
            "route add local default dev lo table 2004",
            "route add default dev lo table 2005",
        ] {
            host.ip(&format!("{family} {change}")).unwrap();
        }
    }
    let installed = (tables(), facts(&node));
    let listed = lines(&node, &["--dry-run"]);
    for line in [
        "iptables-nft table filter: chains CILIUM_FORWARD CILIUM_INPUT CILIUM_OUTPUT and 3 rules that lead to them",
        "ip6tables-nft table filter: chains CILIUM_INPUT and 1 rules that lead to them",
        "ip rule 9: from all fwmark 0x200/0xf00 lookup 2004",
        "ip -6 rule 100: from all lookup local",
        "route 0.0.0.0/0 in table 2004",
        "route ::/0 in table 2005",
    ] {
        assert!(listed.iter().any(|found| found == line), "{line}: {listed:#?}");
    }
    assert_eq!(listed.len(), 4 + 1 + 2 * 3 + 2 * 2, "{listed:#?}");
    assert_eq!((tables(), facts(&node)), installed, "a dry run changes nothing");
    assert_eq!(lines(&node, &["--bpf-state", "--force"]), Vec::<String>::new(), "nothing of these is bpf");

    let removed = lines(&node, &["--force"]);
    assert!(listed.iter().all(|line| removed.contains(&format!("removed {line}"))), "{removed:#?}");
    assert_same(&facts(&node), &before.1, "all is gone");
    assert_eq!(tables(), before.0, "and nothing of others");
    assert_eq!(lines(&node, &["--force"]), Vec::<String>::new(), "the second finds nothing");
}

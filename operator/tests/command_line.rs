//! The binary as a user starts it, without a cluster.

use std::process::{Command, Output};

fn operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_operator")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn commands_show_cells_and_options() {
    let tree = operator(&["hive"]);
    assert!(tree.status.success());
    for module in [
        "module leader-election: ",
        "module leader: ",
        "module create-crds: ",
        "module ipam: ",
        "module node-taint-sync: ",
        "module garbage-collection: ",
    ] {
        assert!(text(&tree.stdout).contains(module), "{module}");
    }
    let config = operator(&["config", "--cluster-pool-ipv4-mask-size=26"]);
    let shown = text(&config.stdout);
    assert!(shown.contains("cluster-pool-ipv4-mask-size: \"26\"  # command line"), "{shown}");
    assert!(shown.contains("cluster-pool-ipv6-mask-size: \"112\"  # default"), "{shown}");
}

#[test]
fn wrong_options_are_named_with_the_values_that_are_right() {
    for (argument, expected) in [
        ("--cluster-pool-ipv4-mask-size=nonsense", "\\\"nonsense\\\" is not an integer from 0 to 255"),
        ("--ipam=eni", "this operator knows cluster-pool, multi-pool, kubernetes, crd and delegated-plugin"),
    ] {
        let refused = operator(&[argument]);
        assert_eq!(refused.status.code(), Some(255), "{argument}");
        let printed = text(&refused.stdout) + &text(&refused.stderr);
        assert!(printed.contains(expected), "{printed}");
    }
    assert_eq!(operator(&["nonsense"]).status.code(), Some(1));
}

/// The agent and `agent preflight` know by this list which options of the ConfigMap the operator reads.
#[test]
fn the_list_of_the_operators_options_is_complete() {
    let shown = text(&operator(&["config"]).stdout);
    let keys = shown.lines().filter_map(|line| Some(line.split_once(": ")?.0));
    let declared: Vec<&str> = keys.filter(|key| !["config", "config-dir"].contains(key)).collect();
    assert_eq!(known_options::operator_options().collect::<Vec<_>>(), declared);
}

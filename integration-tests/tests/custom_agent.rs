//! `examples/custom-agent`: a third-party agent in a separate workspace, with our cells and one more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use integration_tests::Node;
use serde_json::json;
use test_kit::require_root;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/custom-agent")
}

/// Builds it as a third party does, on stable Rust and without a toolchain for eBPF; what these tests have compiled is
/// used again.
fn build() -> PathBuf {
    // target/debug/deps/test-1234 -> target
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    // The versions of our workspace, nothing to look up.
    fs::copy(folder().join("../../Cargo.lock"), folder().join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline"])
        .current_dir(folder())
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("APIARY_EBPF_OBJECT_DIR")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("debug/beekeeper")
}

#[test]
fn an_agent_of_a_third_party() {
    require_root!();
    let main = fs::read_to_string(folder().join("src/main.rs")).unwrap();
    assert!(main.lines().count() < 50, "the program is short");
    let beekeeper = build();

    // Its own name, options and defaults.
    let help = Command::new(&beekeeper).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.starts_with("Usage: beekeeper "), "{help}");
    assert!(help.contains("(default /run/beekeeper/beekeeper.sock)"), "{help}");
    assert!(help.contains("--census-interval duration"), "{help}");

    // Its environment has a prefix of its own, too.
    let mut node = Node::new();
    let start = |node: &mut Node, census: &str| {
        let mut command = node.agent_command_of(&[beekeeper.to_str().unwrap()]);
        // The folder does not say it: the environment does.
        fs::remove_file(node.sandbox().dir().join("config/socket-path")).unwrap();
        command
            .env("BEEKEEPER_SOCKET_PATH", node.socket())
            .env("CILIUM_SOCKET_PATH", "/run/nobody/listens/here.sock")
            .env("BEEKEEPER_ENABLE_CENSUS", census);
        node.spawn_command(command);
        node.wait_ready();
    };
    start(&mut node, "true");
    // All cells of ours, and one more.
    let endpoints = node.get("/v1/endpoint").as_array().unwrap().len();
    assert_eq!(node.get("/apiary/census"), json!({ "endpoints": endpoints }));
    node.stop();

    start(&mut node, "false");
    assert_eq!(node.request("GET", "/apiary/census", None).unwrap().status, 404);
    node.stop();
}

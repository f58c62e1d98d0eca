//! `make run NODES=3`: three nodes talk in a playground, and the machine is as before.

use std::path::Path;
use std::process::Command;

use test_kit::{MachineState, require_command, require_root};

#[test]
fn three_nodes_of_a_playground_talk_and_leave_nothing() {
    require_root!();
    require_command!("perl");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let binaries = integration_tests::binary("agent").parent().unwrap().to_owned();
    let target = tempfile::tempdir().unwrap();
    let run = |nodes: &str, routing: &str| {
        let output = Command::new(root.join("tools/playground"))
            .arg("run")
            .envs([("ONCE", "1"), ("NODES", nodes), ("ROUTING", routing)])
            .env("APIARY_BINARIES", &binaries)
            .env("CARGO_TARGET_DIR", target.path())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.success(), text.concat())
    };
    let before = MachineState::capture();
    let (is_ok, text) = run("3", "native");
    assert!(is_ok, "{text}");
    for line in [
        "  client-3 is answered by server-1 ([fd00:10:241::",
        "  server-3 is NOT answered by server-1 (10.241.0.",
        "Network: Native",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let changes = before.changes(&MachineState::capture());
    assert!(changes.is_empty(), "{changes:?}");
    for (nodes, routing, remedy) in
        [("many", "", "give a number of nodes from 2 to 9"), ("2", "bgp", "tunnel and native are possible")]
    {
        let (is_ok, text) = run(nodes, routing);
        assert!(!is_ok && text.contains(remedy), "{text}");
    }
    assert!(!target.path().join("playground").exists(), "its folder is gone");
}

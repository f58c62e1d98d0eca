//! `make run` leaves the machine as it was.

use std::path::Path;
use std::process::Command;

use test_kit::{MachineState, require_command, require_root};

#[test]
fn the_playground_touches_nothing_outside() {
    require_root!();
    require_command!("ping");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let binaries = integration_tests::binary("agent");
    // The playground looks for `release` below the target folder.
    let target = binaries.ancestors().nth(2).unwrap();
    let before = MachineState::capture();
    let output = Command::new(root.join("tools/playground"))
        .arg("run")
        .env("ONCE", "1")
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("client reaches server") && text.contains("over IPv6"), "{text}");
    let changes = before.changes(&MachineState::capture());
    assert!(changes.is_empty(), "{changes:?}");
    assert!(!target.join("playground").exists(), "its folder is gone");
}

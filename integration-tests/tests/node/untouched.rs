//! `make run` leaves the machine unchanged.

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
    let without_kube_proxy = ["world is answered by 203.0.113.10:80", "the world sees client as 192.0.2.1"];
    assert!(without_kube_proxy.iter().all(|line| text.contains(line)), "{text}");
    let changes = before.changes(&MachineState::capture());
    assert!(changes.is_empty(), "{changes:?}");
    assert!(!target.join("playground").exists(), "its folder is gone");
}

/// A playground that ends leaves the folder of another one of the same checkout.
#[test]
fn a_playground_of_several_is_chosen_by_its_number() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = tempfile::tempdir().unwrap();
    std::fs::create_dir(target.path().join("release")).unwrap();
    let home = target.path().join("playground");
    let exec = |chosen: &str| {
        let output = Command::new(root.join("tools/playground"))
            .arg("exec")
            .env("CMD", "true")
            .env("PLAYGROUND", chosen)
            .env("CARGO_TARGET_DIR", target.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(exec("").contains("no playground runs"), "{}", exec(""));
    // A sandbox of a dead process, and two of a running one: this test's own.
    for (number, pid) in [
        ("11", "999999999".to_owned()),
        ("12", std::process::id().to_string()),
        ("13", std::process::id().to_string()),
    ] {
        std::fs::create_dir_all(home.join(number)).unwrap();
        std::fs::write(home.join(number).join("pid"), pid).unwrap();
    }
    let answer = exec("");
    assert!(answer.contains("several playgrounds run") && answer.contains("(12 13)"), "{answer}");
    let answer = exec("11");
    assert!(answer.contains("playground 11 does not run, these do: 12 13"), "{answer}");
}

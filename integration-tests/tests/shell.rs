//! `apiary shell` on a running agent.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use integration_tests::{Node, binary};

fn shell(node: &Node, words: &[&str]) -> Output {
    command(node).args(words).output().unwrap()
}

fn command(node: &Node) -> Command {
    let mut command = node.host().command(binary("apiary").to_str().unwrap());
    command.arg("shell").arg("--shell-sock-path").arg(&node.config["shell-sock-path"]);
    command
}

#[test]
fn the_shell_answers_from_the_running_agent() {
    test_kit::require_root!();
    let mut node = Node::started();
    let socket = std::path::PathBuf::from(&node.config["shell-sock-path"]);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let said = |words: &[&str]| {
        let output = shell(&node, words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    // The host's endpoint, by arguments and by one line.
    assert!(said(&["db/show", "endpoints", "--columns=ID"]).lines().count() >= 2);
    assert!(said(&["db/show endpoints --columns=ID"]).starts_with("ID"));
    assert!(
        said(&["db/get", "-f", "json", "health", "agent.infra.shell.job-listener"])
            .contains("\"Listening on ")
    );
    assert!(said(&["health", "agent.infra.shell"]).contains("job-listener"));
    assert!(said(&["--json", "metrics", "cilium_version"]).starts_with("[\n"));
    assert!(said(&["--json", "db/show", "health"]).starts_with("{\n"));
    assert!(said(&["help"]).contains("db/show [-fo]"));

    let unknown = shell(&node, &["nosuch", "a b"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&unknown.stdout), "error: <stdin>:0: nosuch 'a b': unknown command\n");
    for word in ["exec", "cat"] {
        assert_eq!(shell(&node, &[word, "/etc/passwd"]).status.code(), Some(1), "{word}");
    }

    // Lines from a pipe, up to the first that fails.
    let mut piped = command(&node).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"help -a health\nnosuch\nhelp -a db\n").unwrap();
    let output = piped.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text, "health\nhealth/history\nhealth/ok\nerror: <stdin>:0: nosuch: unknown command\n");

    let _status = node.kill();
    assert!(socket.exists(), "a killed agent leaves its socket");
    node.start();
    assert!(shell(&node, &["health/history"]).status.success());
    node.stop();
    assert!(!socket.exists(), "a stop removes it");
}

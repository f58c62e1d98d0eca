//! `apiary shell` on a running agent.

use std::io::{BufRead as _, BufReader, Write as _};
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

/// `apiary db` on tables that every node has.
fn db_verbs(node: &Node) {
    let db = |line: &str| {
        let mut command = node.host().command(binary("apiary").to_str().unwrap());
        command.arg("db").args(line.split(' ')).arg("--shell-sock-path").arg(&node.config["shell-sock-path"]);
        command
    };
    let said = |line: &str| {
        let output = db(line).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    assert_eq!(said("get devices lo -i name --columns name,index"), "name   index\nlo     1\n");
    assert_eq!(said("list devices 1 --columns=Name"), "Name\nlo\n");
    assert!(said("prefix devices l -i name -o yaml").starts_with("index: 1\n"));
    assert!(said("lower-bound devices 1 --columns Name").lines().count() > 3);
    assert!(said("show devices -o json").contains("\n  \"Name\": \"lo\""));
    let tables = said("tables");
    let devices = tables.lines().find(|line| line.starts_with("devices ")).unwrap();
    assert!(
        devices.contains("id, name, selected   ") && devices.contains("   devices-controller ("),
        "{devices}"
    );
    assert!(said("dump").starts_with("{\n  \""));
    let nosuch = db("show nosuch").output().unwrap();
    assert_eq!(nosuch.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nosuch.stdout).ends_with("table \"nosuch\" not found\n"));

    let mut watch = db("watch devices").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("Name "));
    assert!(lines.next().unwrap().starts_with("lo "));
    node.host().ip("link add watched0 type veth peer name watched1").unwrap();
    lines.find(|line| line.starts_with("watched0 ")).unwrap();
    node.host().ip("link del watched0").unwrap();
    let gone = lines.find(|line| line.contains("watched0 ") && line.contains("(deleted)")).unwrap();
    assert!(gone.starts_with("\x1b[9m\x1b[31mwatched0 "), "{gone}");
    watch.kill().unwrap();
    watch.wait().unwrap();
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

    db_verbs(&node);

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

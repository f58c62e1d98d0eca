//! The tracer counts what it should and kills after the k-th write, not before and not later.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use test_kit::{Traced, require_root};

const LIMIT: Duration = Duration::from_secs(10);

fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    // Output to a file would count as writes, and test runners may redirect to one.
    command.args(["-c", script]).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("apiary-trace-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Makes, fills, renames and removes files, itself and by children; fails at one; writes to a log, which is not
/// counted.
const SCRIPT: &str = "echo said; echo 1 > a; mkdir b; mkdir b 2>/dev/null; mv a b/c; (echo 2 > d) & wait; rm d; cat b/c > /dev/null";
const KINDS: [&str; 7] = ["open", "write", "mkdir", "rename", "open", "write", "unlink"];

#[test]
fn a_process_is_killed_after_each_of_its_writes() {
    require_root!();
    let mut k = 1;
    loop {
        let folder = folder("each");
        let traced = Traced::start_armed(shell(SCRIPT, &folder), k).unwrap();
        let status = traced.wait(LIMIT).expect("it ends");
        let writes = traced.writes();
        let kinds: Vec<&str> = writes.iter().map(|write| write.kind.as_str()).collect();
        assert_eq!(kinds, KINDS[..kinds.len()], "{writes:?}");
        let there = ["a", "b", "b/c", "d"].map(|file| folder.join(file).exists());
        let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let texts = (text("a"), text("b/c"), text("d"));
        drop(traced);
        fs::remove_dir_all(&folder).unwrap();
        if status.success() {
            assert_eq!((k, writes.len()), (8, 7), "{writes:?}");
            break;
        }
        assert_eq!(writes.len() as u64, k, "{writes:?}");
        let [a, b, c, d] = there;
        assert_eq!((a, b, c, d), (k < 4, k >= 3, k >= 4, (5..7).contains(&k)), "after {k}: {writes:?}");
        let has = |text: &str, from: u64, before: u64| (from..before).contains(&k) != text.is_empty();
        assert!(has(&texts.0, 2, 4) && has(&texts.1, 4, 9) && has(&texts.2, 6, 7), "after {k}: {texts:?}");
        k += 1;
    }
}

#[test]
fn counting_begins_and_ends_when_told() {
    require_root!();
    let folder = folder("reported");
    let traced =
        Traced::start(shell("> before; while ! [ -e go ]; do sleep 0.01; done; > after", &folder)).unwrap();
    test_kit::wait_until("its first file", LIMIT, || folder.join("before").exists());
    assert_eq!(traced.writes(), []);
    traced.arm(1);
    fs::write(folder.join("go"), "").unwrap();
    assert!(traced.wait(LIMIT).is_some_and(|status| !status.success()), "it is killed");
    assert!(traced.is_killed() && folder.join("after").exists());
    assert_eq!(traced.writes()[0].kind, "open");
    let traced = Traced::start(shell("> free", &folder)).unwrap();
    assert!(traced.wait(LIMIT).is_some_and(|status| status.success()));
    drop(traced);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn requests_to_the_kernel_count_and_questions_do_not() {
    require_root!();
    if !test_kit::has_command("ip") {
        test_kit::skip!("needs the program ip");
    }
    let ns = test_kit::Sandbox::new().unwrap();
    let kinds = |arguments: &[&str]| {
        let mut command = ns.host().command("ip");
        command.args(arguments).stdout(Stdio::null());
        let traced = Traced::start_armed(command, 100).unwrap();
        let status = traced.wait(LIMIT).unwrap();
        assert!(status.success(), "{status} {:?}", traced.writes());
        traced.writes().into_iter().map(|write| write.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&["address", "show"]), Vec::<String>::new());
    // Some versions first probe whether the kernel supports a format.
    let made = kinds(&["link", "add", "d0", "type", "veth"]);
    assert!(!made.is_empty() && made.iter().all(|write| write == "netlink route message 16"), "{made:?}");
    assert_eq!(kinds(&["address", "add", "10.1.2.3/32", "dev", "d0"]), ["netlink route message 20"]);
    // A missing command is an error, not a process that waits.
    assert!(Traced::start(Command::new("/nowhere")).is_err());
}

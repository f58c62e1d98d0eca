//! Steps of the agent's pod as processes, in mount namespaces of the test's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use test_kit::{Process, Sandbox, require_root, wait_until};

const PLUGIN: &str = env!("CARGO_BIN_EXE_apiary-cni");

/// Runs the binary under a name; its output and whether it succeeded.
fn run(sandbox: &Sandbox, program: &str, line: &str) -> (String, bool) {
    let output = sandbox.host().command(program).args(line.split_whitespace()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

/// Types of the file systems that are mounted at a path.
fn mounted(process: &str, path: &Path) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let at = |line: &&str| line.split(' ').nth(4) == path.to_str();
    let kind = |line: &str| line.split(" - ").nth(1)?.split(' ').next().map(str::to_owned);
    table.lines().filter(at).filter_map(kind).collect()
}

#[test]
fn file_systems_are_mounted_once() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    for (step, kind) in [("mount-cgroup", "cgroup2"), ("mount-bpf-fs", "bpf")] {
        let path = sandbox.dir().join("deep").join(kind);
        let line = format!("init {step} {}", path.display());
        let (text, good) = run(&sandbox, PLUGIN, &line);
        assert!(good && text.starts_with(&format!("mounted {kind} at ")), "{text}");
        let (text, good) = run(&sandbox, PLUGIN, &line);
        assert!(good && text.starts_with(&format!("{kind} is mounted at ")), "{text}");
        assert_eq!(mounted("thread-self", &path), [kind]);
    }
    // A file system of another type stays, with a warning.
    let other = sandbox.dir().join("deep/bpf");
    let (text, good) = run(&sandbox, PLUGIN, &format!("init mount-cgroup {}", other.display()));
    assert!(good && text.starts_with("warning: bpf is mounted at "), "{text}");
    assert_eq!(mounted("thread-self", &other), ["bpf"]);

    let file = sandbox.dir().join("file");
    fs::write(&file, "").unwrap();
    let line = format!("init mount-bpf-fs {}/x", file.display());
    let (text, good) = run(&sandbox, PLUGIN, &line);
    assert!(
        !good && text.starts_with("unable to create ") && text.contains("/file/x: Not a directory"),
        "{text}"
    );
    let (text, good) = run(&sandbox, PLUGIN, "init mount-nothing");
    assert!(!good && text.starts_with("unknown step \"mount-nothing\", known are mount-cgroup, "), "{text}");
}

#[test]
fn the_hosts_mount_namespace_is_entered_by_its_first_process() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let mut command = sandbox.host().command("unshare");
    let mut host =
        Process::start(command.args(["--mount", "--propagation", "private", "sleep", "600"])).unwrap();
    let pid = host.id().to_string();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    wait_until("it has a namespace of its own", Duration::from_secs(60), || {
        namespace(&pid) != namespace("thread-self")
            && fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n"
    });
    let proc = sandbox.dir().join("hostproc");
    fs::create_dir(&proc).unwrap();
    symlink(format!("/proc/{pid}"), proc.join("1")).unwrap();

    // The names and the places of Cilium's image.
    let path = sandbox.dir().join("cgroupv2");
    for name in ["cilium-mount", "cilium-sysctlfix"] {
        symlink(PLUGIN, sandbox.dir().join(name)).unwrap();
    }
    let mount = sandbox.dir().join("cilium-mount");
    let line = format!("--host-proc={} {}", proc.display(), path.display());
    for expected in ["mounted cgroup2 at ", "cgroup2 is mounted at "] {
        let (text, good) = run(&sandbox, mount.to_str().unwrap(), &line);
        assert!(good && text.starts_with(expected), "{text}");
    }
    assert_eq!(mounted(&pid, &path), ["cgroup2"]);
    assert_eq!(mounted("thread-self", &path), Vec::<String>::new(), "only there");
    let (text, good) = run(&sandbox, mount.to_str().unwrap(), "--host-proc=/nonexistent /x");
    assert!(
        good && text.contains("unable to open /nonexistent/1/ns/cgroup"),
        "it never fails, as Cilium's: {text}"
    );

    let folder = sandbox.dir().join("sysctl.d");
    fs::create_dir(&folder).unwrap();
    let line = format!("--sysctl-conf-dir={} --systemd-sysctl-unit=none-of-a-test.service", folder.display());
    let (text, good) = run(&sandbox, sandbox.dir().join("cilium-sysctlfix").to_str().unwrap(), &line);
    assert!(good && text.starts_with("wrote "), "{text}");
    let written = fs::read_to_string(folder.join("99-zzz-override_cilium.conf")).unwrap();
    assert!(written.contains("\n-net.ipv4.conf.lxc*.rp_filter = 0\n"), "{written}");
    host.kill().unwrap();
}

#[test]
fn kube_proxy_is_awaited_and_rules_of_aws_go() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    // Tools that have one set of rules in a file.
    let (bin, rules) = (sandbox.dir().join("bin"), sandbox.dir().join("rules"));
    fs::create_dir(&bin).unwrap();
    let tool = |name: &str, body: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body} {}\n", rules.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    tool("iptables-nft-save", "exec /bin/cat");
    tool("iptables-save", "exec /bin/cat");
    tool("iptables-restore", "exec /bin/cat >");
    let step = |line: &str| {
        let mut command = sandbox.host().command(PLUGIN);
        command.env("PATH", &bin).arg("init").args(line.split(' '));
        command
    };
    fs::write(&rules, "*mangle\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n").unwrap();
    let output = step("wait-for-kube-proxy --timeout=0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text == "kube-proxy has written no rules within 0 s\n", "{text}");
    let mut waiting = Process::start(&mut step("wait-for-kube-proxy")).unwrap();
    assert!(waiting.child().try_wait().unwrap().is_none(), "no rules yet");
    let all = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*nat\n:AWS-SNAT-CHAIN-0 - [0:0]\nCOMMIT\n";
    fs::write(rules.with_extension("new"), all).unwrap();
    fs::rename(rules.with_extension("new"), &rules).unwrap();
    assert!(waiting.wait(Duration::from_secs(60)).unwrap().success());

    for expected in ["removed the chains of the AWS plugin\n", "no chains of the AWS plugin\n"] {
        let output = step("remove-aws-chains").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    }
    assert_eq!(fs::read_to_string(&rules).unwrap(), all.replace(":AWS-SNAT-CHAIN-0 - [0:0]\n", ""));
    fs::remove_file(bin.join("iptables-save")).unwrap();
    let output = step("remove-aws-chains").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.starts_with("iptables-save failed: "), "{text}");
}

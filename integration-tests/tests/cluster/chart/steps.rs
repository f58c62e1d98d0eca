//! Steps of the agent's pod that act on the host, which is another mount namespace here.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use integration_tests::binary;
use test_kit::{Process, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn file_systems_are_mounted_in_the_namespace_of_the_host_alone() {
    require_root!();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let ready = path("ready");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", "touch $0; exec sleep 600"]).arg(&ready);
    let host = Process::start(&mut command).unwrap();
    wait_until("the host is there", LIMIT, || ready.exists());
    // As a container sees the host's procfs.
    let namespaces = path("hostproc/1/ns");
    fs::create_dir_all(&namespaces).unwrap();
    for kind in ["mnt", "cgroup"] {
        symlink(format!("/proc/{}/ns/{kind}", host.id()), namespaces.join(kind)).unwrap();
    }
    let mounts = |pid: &str| fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let host_pid = host.id().to_string();
    for (step, name, kind) in [("mount-bpf-fs", "bpf", " - bpf "), ("mount-cgroup", "cgroup", " - cgroup2 ")]
    {
        let target = path(name);
        let run = || {
            let output = Command::new(binary("apiary-cni"))
                .args(["init", step, &format!("--host-proc={}", path("hostproc").display())])
                .arg(&target)
                .output()
                .unwrap();
            assert!(output.status.success(), "{step}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(run().starts_with("mounted "), "{step}");
        assert!(run().contains("is mounted at "), "{step}: a second run leaves it");
        let place = format!(" {} ", target.display());
        let of_host: Vec<String> =
            mounts(&host_pid).lines().filter(|line| line.contains(&place)).map(str::to_owned).collect();
        assert!(of_host.len() == 1 && of_host[0].contains(kind), "{step}: {of_host:?}");
        assert!(!mounts("self").contains(&place), "{step}: mounted in the container");
    }
}

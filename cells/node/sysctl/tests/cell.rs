//! The cell in a hive: with a folder in place of procfs, and with the real kernel.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hive::prelude::*;
use statedb::TableDisplay;
use sysctl::{Error, Name, Setting, Sysctl};
use test_kit::{Sandbox, require_root};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn started(procfs: &Path) -> (TestHive, Arc<Sysctl>) {
    let cells = [statedb::cell(), sysctl::cell()];
    let mut hive = TestHive::needing::<Sysctl>(cells).set("procfs", procfs.display());
    hive.start().await;
    let sysctl = hive.get::<Sysctl>();
    (hive, sysctl)
}

#[tokio::test]
async fn settings_are_written_and_failures_reported() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("sys/net/ipv4")).unwrap();
    fs::write(dir.path().join("sys/net/ipv4/ip_forward"), "0\n").unwrap();
    let (mut hive, sysctl) = started(dir.path()).await;
    sysctl.enable(name("net.ipv4.ip_forward")).await.unwrap();
    assert_eq!(sysctl.read(&name("net.ipv4.ip_forward")).unwrap(), "1");

    let error = sysctl.write(name("net.ipv4.nosuch"), 7).await.unwrap_err();
    assert!(matches!(&error, Error::Write { value, .. } if value == "7"));
    assert!(error.to_string().starts_with("kernel setting net.ipv4.nosuch=7: "), "{error}");
    let optional = Setting::new(name("kernel.nosuch"), 0).optional().warn("slower");
    sysctl.apply(vec![optional]).await.unwrap();

    let table = sysctl.table();
    let snapshot = table.snapshot();
    let rows: Vec<String> = table.all(&snapshot).map(|row| row.row().join(" ")).collect();
    assert!(rows[0].starts_with("kernel.nosuch 0 Error: "), "{rows:?}");
    assert!(rows[1].starts_with("net.ipv4.ip_forward 1 Done ("), "{rows:?}");
    assert!(rows[2].starts_with("net.ipv4.nosuch 7 Error: "), "{rows:?}");
    let health = hive.health("sysctl.settings");
    assert_eq!(health.level, Level::Degraded, "{health:?}");

    sysctl.forget(&name("net.ipv4.nosuch"));
    sysctl.forget(&name("net.ipv4.nosuch"));
    assert_eq!(table.len(&table.snapshot()), 2);
    hive.stop().await;
}

#[test]
fn interfaces_with_dots_and_read_only_settings() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    sandbox.host().ip("link add eth0.100 type veth peer name peer").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut hive, sysctl) = started(Path::new("/proc")).await;
        let dotted = Name::new(["net", "ipv4", "conf", "eth0.100", "rp_filter"]).unwrap();
        sysctl.write(dotted.clone(), 2).await.unwrap();
        assert_eq!(sandbox.host().sysctl("net/ipv4/conf/eth0.100/rp_filter").unwrap(), "2");

        // Machine-wide settings are read-only in the sandbox: the current value succeeds, another one fails with the
        // reason.
        let pid_max = name("kernel.pid_max");
        let value = sysctl.read(&pid_max).unwrap();
        sysctl.write(pid_max.clone(), &value).await.unwrap();
        let error = sysctl.write(pid_max, "1").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "kernel setting kernel.pid_max=1: /proc/sys/kernel/pid_max is read-only: set it on the host, or mount it writable"
        );
        let refused = sysctl.write(dotted, "many").await.unwrap_err().to_string();
        assert!(refused.ends_with("the kernel refuses this value"), "{refused}");
        hive.stop().await;
    });
}

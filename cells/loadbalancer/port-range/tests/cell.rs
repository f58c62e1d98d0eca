//! The cell in a hive, with the settings of a network namespace.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hive::prelude::*;
use loadbalancer::ServicesConfig;
use local_node::StateConfig;
use sysctl::SysctlConfig;
use test_kit::{Sandbox, require_root};

const RESERVED: &str = "net/ipv4/ip_local_reserved_ports";
const EPHEMERAL: &str = "net/ipv4/ip_local_port_range";

/// A hive with the cell; `options` are added to those of a node that replaces kube-proxy.
fn hive(state: &Path, options: &[(&str, &str)]) -> TestHive {
    let cells = [
        config::<ServicesConfig>(),
        config::<StateConfig>(),
        config::<SysctlConfig>(),
        loadbalancer_port_range::cell(),
    ];
    let hive = TestHive::new(cells).set("state-dir", state.display()).set("kube-proxy-replacement", true);
    options.iter().fold(hive, |hive, (key, value)| hive.set(key, value))
}

/// Runs the cell until its job has worked; returns the health text.
async fn run(state: &Path, options: &[(&str, &str)]) -> String {
    let mut hive = hive(state, options);
    hive.start().await;
    let is_ok = |status: &hive::Status| {
        status.path().starts_with("node-port-range") && matches!(status.level, Level::Ok | Level::Stopped)
    };
    let health = || hive.hive().health().snapshot().into_iter().find(is_ok);
    hive.until("the list is compared", || health().is_some_and(|status| &*status.message != "Running")).await;
    let message = health().unwrap().message.to_string();
    hive.stop().await;
    message
}

/// Reads the list by one call: the kernel truncates it to the first one's buffer.
fn reserved() -> String {
    let mut buffer = vec![0; 1 << 18];
    let length = fs::File::open(Path::new("/proc/sys").join(RESERVED)).unwrap().read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned()
}

fn set(key: &str, value: &str) {
    fs::write(Path::new("/proc/sys").join(key), value).unwrap();
}

/// Runs a test in a network namespace of its own, with a folder for records.
fn in_sandbox<F: Future<Output = ()>>(test: impl FnOnce(std::path::PathBuf) -> F) {
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(sandbox.state_dir()));
}

#[test]
fn the_range_is_reserved_beside_others_and_released() {
    require_root!();
    in_sandbox(|state| async move {
        let record = state.join("state/node-port-range.json");
        let off = ("kube-proxy-replacement", "false");
        // The kernel's default has no port in common.
        assert_eq!(run(&state, &[]).await, "the kernel picks no source ports of the range");
        assert_eq!((reserved(), record.exists()), (String::new(), false));

        set(EPHEMERAL, "20000 60999");
        set(RESERVED, "80,31000-31009");
        assert_eq!(run(&state, &[]).await, "30000-30999,31010-32767 are reserved");
        assert_eq!(reserved(), "80,30000-32767");
        let first = fs::read(&record).unwrap();
        // Another process adds one and a restart finds its own.
        set(RESERVED, "80,30000-32767,50000");
        assert_eq!(run(&state, &[]).await, "30000-30999,31010-32767 are reserved");
        assert_eq!((reserved().as_str(), fs::read(&record).unwrap()), ("80,30000-32767,50000", first));
        assert_eq!(run(&state, &[("node-port-range", "40000,40009")]).await, "40000-40009 are reserved");
        assert_eq!(reserved(), "80,31000-31009,40000-40009,50000");
        // Without automatic protection ports that are reserved already suffice, and stay.
        let manual = [("node-port-range", "40000,40009"), ("enable-auto-protect-node-port-range", "false")];
        let mut hive = hive(&state, &manual);
        hive.start().await;
        hive.stop().await;
        assert_eq!(reserved(), "80,31000-31009,40000-40009,50000");

        assert_eq!(run(&state, &[off]).await, "off");
        assert_eq!((reserved().as_str(), record.exists()), ("80,31000-31009,50000", false));
        assert_eq!(run(&state, &[off]).await, "off");
        assert_eq!(reserved(), "80,31000-31009,50000");
    });
}

#[test]
fn long_lists_of_others_stay_whole() {
    require_root!();
    in_sandbox(|state| async move {
        // More than a page, and more than the buffers that libraries begin with.
        let others: Vec<String> = (0..2000).map(|number| (1001 + number * 2).to_string()).collect();
        let file = fs::OpenOptions::new().write(true).open(Path::new("/proc/sys").join(RESERVED)).unwrap();
        for part in others.chunks(500) {
            file.write_all_at(part.join(",").as_bytes(), 1).unwrap();
        }
        let others = others.join(",");
        assert_eq!(reserved(), others);
        set(EPHEMERAL, "1024 60999");
        let _ = run(&state, &[]).await;
        assert_eq!(reserved(), format!("{others},30000-32767"));
        let _ = run(&state, &[("kube-proxy-replacement", "false")]).await;
        assert_eq!(reserved(), others);
    });
}

#[test]
fn records_of_another_boot_and_damaged_ones_release_nothing() {
    require_root!();
    in_sandbox(|state| async move {
        let record = state.join("state/node-port-range.json");
        let off = [("kube-proxy-replacement", "false")];
        fs::create_dir_all(state.join("state")).unwrap();
        set(RESERVED, "30000-32767");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let of = |boot: &str| format!("{{\"boot\":\"{boot}\",\"ports\":\"30000-32767\"}}");
        for content in
            [of("another"), "{".to_owned(), of(boot.trim()).replace("32767", "x"), "\u{0}".to_owned()]
        {
            fs::write(&record, &content).unwrap();
            assert_eq!(run(&state, &off).await, "off");
            assert_eq!(reserved(), "30000-32767", "{content}");
        }
        // A control: the same of this boot.
        fs::write(&record, of(boot.trim())).unwrap();
        assert_eq!(run(&state, &off).await, "off");
        assert_eq!(reserved(), "");
    });
}

#[test]
fn ranges_that_cannot_be_served_are_refused_before_anything_is_written() {
    require_root!();
    in_sandbox(|state| async move {
        set(EPHEMERAL, "32767 60999");
        let manual = ("enable-auto-protect-node-port-range", "false");
        for (options, expected) in [
            (&[manual][..], "of which 32767 are in 30000-32767 and not reserved"),
            (&[("node-port-range", "61000,62000")], "61000-62000 lies behind the kernel's source ports"),
            (&[("procfs", "/nowhere")], "could not read /nowhere/sys/net/ipv4/ip_local_port_range"),
        ] {
            let mut hive = hive(&state, options);
            let error = hive.try_start().await.unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
        assert_eq!(reserved(), "");
        // A control: the port above is free, and without kube-proxy-replacement nothing is checked.
        let _ =
            run(&state, &[("node-port-range", "30000,32766"), manual, ("kube-proxy-replacement", "false")])
                .await;
        let mut hive = hive(&state, &[("node-port-range", "30000,32766"), manual]);
        hive.start().await;
        hive.stop().await;
    });
}

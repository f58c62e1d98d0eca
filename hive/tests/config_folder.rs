//! Folders of options that are not as they should be, or not for long.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hive::prelude::*;
use hive::{HiveBuilder, HiveError};
use tempfile::TempDir;

#[derive(hive::Config)]
#[expect(dead_code, reason = "seen in settings only")]
struct Options {
    cluster_name: String,
    mtu: u16,
    offset: i64,
    ratio: f64,
    wait: Duration,
    address: String,
}

fn on(dir: &TempDir) -> HiveBuilder {
    let args = [format!("--config-dir={}", dir.path().display())];
    Hive::builder(config::<Options>()).config_files().args(args)
}

#[test]
fn odd_files_of_a_folder() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new().unwrap();
    // A key that is a folder is not read, as by the original, and reported; other folders are nobody's.
    for name in ["cluster-name", "other"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let hive = on(&dir).build().unwrap();
    let unknown: Vec<_> = hive.settings().unknown().iter().map(|u| (u.key.as_str(), u.note)).collect();
    assert_eq!(unknown, [("cluster-name", Some("a folder; an option is a file that holds its value"))]);

    let at = |name: &str| dir.path().join(name);
    fs::write(at("wait"), b"1\xff").unwrap();
    fs::write(at("offset"), vec![b'1'; (1 << 20) + 1]).unwrap();
    std::os::unix::fs::symlink("nowhere", at("ratio")).unwrap();
    pipe(&at("address"));
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"mt\xff")), "1").unwrap();
    let Err(HiveError::Config(errors)) = on(&dir).build() else { panic!("read") };
    let faults: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let fault = |name: &str, text: &str| format!("cannot read {}: {text}", at(name).display());
    assert_eq!(
        faults,
        [
            fault("address", "it is no file of text; replace or remove it"),
            fault("mt\u{fffd}", "its name is not UTF-8, as the name of an option is; rename or remove it"),
            fault("offset", "it has more than 1048576 bytes, the most that is read; shorten it"),
            fault("ratio", "No such file or directory (os error 2)"),
            fault("wait", "byte 1 is not UTF-8; write it as plain text"),
        ]
    );
}

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A mounted ConfigMap is exchanged again and again; whoever reads it sees one of its two states.
#[test]
fn a_folder_that_is_replaced_while_it_is_read() {
    let dir = TempDir::new().unwrap();
    for (data, value) in [("..1", "1"), ("..2", "2")] {
        fs::create_dir(dir.path().join(data)).unwrap();
        for name in ["mtu", "offset"] {
            fs::write(dir.path().join(data).join(name), value).unwrap();
        }
    }
    let exchange = |to: &str| {
        let next = dir.path().join("..next");
        std::os::unix::fs::symlink(to, &next).unwrap();
        fs::rename(&next, dir.path().join("..data")).unwrap();
    };
    exchange("..1");
    for name in ["mtu", "offset"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), dir.path().join(name)).unwrap();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for to in ["..2", "..1"] {
                    exchange(to);
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..300 {
            match on(&dir).build() {
                Ok(hive) => {
                    let value = |key| hive.settings().get(key).unwrap().value.clone();
                    assert_eq!(value("mtu"), value("offset"));
                    seen.insert(value("mtu"));
                }
                Err(error) => assert!(error.to_string().contains("it was replaced 10 times"), "{error}"),
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(seen.len(), 2, "it was exchanged meanwhile");
    });
}

//! Folders of options that are malformed or change while they are read.

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
    // A key that is a folder is not read, as in Cilium, and reported; other folders are ignored.
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
            fault(
                "ratio",
                "No such file or directory (os error 2); create it, or remove the link that leads there"
            ),
            fault("wait", "byte 1 is not UTF-8; write it as plain text"),
        ]
    );
}

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A mounted ConfigMap is replaced repeatedly; each read sees one of its two states.
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

fn faults(builder: HiveBuilder) -> Vec<String> {
    match builder.build() {
        Err(HiveError::Config(errors)) => errors.iter().map(ToString::to_string).collect(),
        other => panic!("{:?}", other.map(|hive| hive.settings().clone())),
    }
}

#[test]
fn hostile_values_are_named_in_one_line() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("mtu"), "9".repeat(1 << 20)).unwrap();
    fs::write(at("offset"), "1\x1b[2J\n2").unwrap();
    fs::write(at("ratio"), "NaN").unwrap();
    fs::write(at("wait"), b"1s\0").unwrap();
    std::os::unix::fs::symlink("cluster-name", at("cluster-name")).unwrap();
    let faults = faults(on(&dir));
    let says = |name: &str, text: &str| format!("file {}: option {name}: {text}", at(name).display());
    let cut = format!("\"{}... (1048576 bytes)\" is not an integer from 0 to 65535", "9".repeat(200));
    let unreadable = |name: &str, text: &str| format!("cannot read {}: {text}", at(name).display());
    assert_eq!(
        faults,
        [
            unreadable(
                "cluster-name",
                "Too many levels of symbolic links (os error 40); its links lead in a circle, replace or remove them"
            ),
            unreadable("wait", "byte 2 is NUL; write it as plain text"),
            says("mtu", &cut),
            says("offset", "\"1\\u{1b}[2J\\n2\" is not an integer"),
            says("ratio", "\"NaN\" is not a number"),
        ]
    );
}

/// Files of all sizes and shapes in place of the configuration file: an immediate error each, and no stack overflow.
#[test]
fn hostile_configuration_files_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("c.yaml");
    let args = [format!("--config={}", path.display())];
    let fault = || faults(Hive::builder(config::<Options>()).config_files().args(args.clone())).join("; ");
    let deep = |open: &str, close: &str, depth: usize| open.repeat(depth) + "1" + &close.repeat(depth);
    let bomb = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        let of = format!("*a{}", n - 1);
        text + &format!("a{n}: &a{n} [{of}, {of}, {of}, {of}]\n")
    });
    let cases = [
        (" ".repeat(10 << 20) + "{}", "more than 1048576 bytes"),
        (format!("mtu: {}", deep("[", "]", 100_000)), "recursion limit exceeded"),
        (deep("{\"a\":", "}", 100_000), "recursion limit exceeded"),
        (format!("mtu: {}", deep("[", "]", 100)), "lies deeper than 64 levels"),
        ("- ".repeat(400_000), "lies deeper than 64 levels"),
        (bomb, "aliases make the file too big"),
        ("- 1\n".to_owned(), "its options are no map"),
        ("mtu: 1\n---\nmtu: 2\n".to_owned(), "second document"),
        ("mtu: {a: 1}\n".to_owned(), "is not an integer from 0 to 65535"),
        ("mtu: 1\0".to_owned(), "is NUL"),
    ];
    for (text, expected) in cases {
        fs::write(&path, &text).unwrap();
        let begin = std::time::Instant::now();
        let fault = fault();
        assert!(begin.elapsed() < Duration::from_secs(20), "{expected}: {:?}", begin.elapsed());
        assert!(fault.contains(expected), "{expected}: {fault}");
        assert!(fault.contains(path.to_str().unwrap()) && fault.len() < 1000, "{fault}");
    }
    fs::remove_file(&path).unwrap();
    pipe(&path);
    assert!(fault().ends_with("it is no file of text; replace or remove it"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(fault().ends_with("it is no file of text; replace or remove it"));
}

/// As in Cilium: two values for one key are ambiguous, but JSON parsers traditionally take the last.
#[test]
fn duplicate_keys_are_refused_in_yaml() {
    let dir = TempDir::new().unwrap();
    let read = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let args = [format!("--config={}", path.display())];
        let builder = Hive::builder(config::<Options>()).config_files().args(args);
        (format!("configuration file {}: ", path.display()), builder)
    };
    let twice = "is there more than once; keep the one that is meant";
    for (text, keys) in [
        ("mtu: 1\noffset: 2\nmtu: 3\n", &["mtu"][..]),
        ("MTU: 1\nmtu: 1\n", &["mtu"]),
        ("x: {a: 1, b: {c: 1, c: 2}, a: 2}\nmtu: 1\nx: 2\n", &["x.b.c", "x.a", "x"]),
        ("x: [{a: 1, a: 1}]", &["x[0].a"]),
    ] {
        let (place, builder) = read("c.yaml", text);
        let expected: Vec<String> = keys.iter().map(|key| format!("{place}{key} {twice}")).collect();
        assert_eq!(faults(builder), expected, "{text}");
    }
    let (_, builder) = read("c.json", r#"{"mtu": 1, "mtu": 2}"#);
    assert_eq!(builder.build().unwrap().settings().get("mtu").unwrap().value, "2");
}

#[test]
fn a_folder_that_is_none() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let builder = Hive::builder(config::<Options>()).config_files();
    let fault = faults(builder.args([format!("--config-dir={}", file.display())])).join("; ");
    let place = format!("cannot read {}: ", file.display());
    assert_eq!(fault, place + "Not a directory (os error 20); name a folder with a file for each option");

    // The options that name the sources are not valid inside of them.
    let within = TempDir::new().unwrap();
    for key in ["config", "config-dir"] {
        fs::write(within.path().join(key), "/elsewhere").unwrap();
    }
    let hive = on(&within).build().unwrap();
    assert_eq!(hive.settings().get("config").unwrap().value, "");
    let notes: Vec<_> = hive.settings().unknown().iter().map(|unknown| unknown.note.unwrap()).collect();
    assert_eq!(notes, ["it counts on the command line and in the environment only"; 2]);
}

/// A file that becomes a pipe between the check and the open must not block the reader.
#[test]
fn a_file_that_becomes_a_pipe() {
    let dir = TempDir::new().unwrap();
    let [file, next, ready] = ["mtu", "..next", "..pipe"].map(|name| dir.path().join(name));
    pipe(&ready);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&next, "1").unwrap();
                fs::rename(&next, &file).unwrap();
                fs::remove_file(&file).unwrap();
                fs::hard_link(&ready, &file).unwrap();
            }
        });
        let deadline = std::time::Instant::now() + Duration::from_millis(500);
        while std::time::Instant::now() < deadline {
            drop(on(&dir).build());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

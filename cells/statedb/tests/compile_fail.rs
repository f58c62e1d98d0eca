//! Compiler errors about invalid tables: each names the invalid part and the remedy.
//!
//! The errors of a file of `tests/ui` must contain the texts behind `//~`, and not those behind `//!~`. The rest differs
//! between versions of the compiler, so whole outputs are not compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE_DIR: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn messages_name_the_wrong_part() {
    let cases: BTreeMap<String, PathBuf> = fs::read_dir(Path::new(CRATE_DIR).join("tests/ui"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    assert!(!cases.is_empty());

    let messages = check(&cases);
    for (name, path) in &cases {
        let message = messages.get(name).unwrap_or_else(|| panic!("{name} compiles"));
        let source = fs::read_to_string(path).unwrap();
        let expected: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        assert!(!expected.is_empty(), "{name} expects nothing");
        for text in expected {
            assert!(message.contains(text), "{name}: `{text}` is not in:\n{message}");
        }
        for text in source.lines().filter_map(|line| line.strip_prefix("//!~ ")) {
            assert!(!message.contains(text), "{name}: `{text}` is in:\n{message}");
        }
    }
}

/// Checks all cases as programs of one package; returns the errors of each.
fn check(cases: &BTreeMap<String, PathBuf>) -> BTreeMap<String, String> {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tmp.join("statedb-ui");
    fs::create_dir_all(&dir).unwrap();
    let mut manifest = format!(
        "[package]\nname = \"statedb-ui\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}\n\
         statedb = {{ package = {package:?}, path = {CRATE_DIR:?}, features = [\"untyped\"] }}\n",
        package = env!("CARGO_PKG_NAME"),
    );
    for (name, path) in cases {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    // The lock file of the crate or of its workspace: the same versions, which need no network.
    let lock = Path::new(CRATE_DIR).ancestors().map(|dir| dir.join("Cargo.lock"));
    fs::copy(lock.into_iter().find(|lock| lock.exists()).unwrap(), dir.join("Cargo.lock")).unwrap();

    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--bins", "--keep-going", "--message-format=json"])
        .current_dir(&dir)
        // One folder for such tests of several crates: they have most dependencies in common.
        .env("CARGO_TARGET_DIR", tmp.join("ui"))
        .output()
        .unwrap();
    let mut messages: BTreeMap<String, String> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["message"]["level"] == "error" {
            let case = message["target"]["name"].as_str().unwrap_or_default();
            let rendered = message["message"]["rendered"].as_str().unwrap_or_default();
            messages.entry(case.to_owned()).or_default().push_str(rendered);
        }
    }
    assert!(!messages.is_empty(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    messages
}

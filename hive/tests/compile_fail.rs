//! What the compiler says about cells that are wrong: it names the wrong part and what would be right.
//!
//! Each file of `tests/ui` must not compile, and what the compiler says must contain the texts behind `//~`, and not those
//! behind `//!~`. The rest of its words differ between versions, so whole outputs are not compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn messages_name_the_wrong_part() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases: BTreeMap<String, PathBuf> = fs::read_dir(crate_dir.join("tests/ui"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    assert!(!cases.is_empty());

    let messages = check(crate_dir, &cases);
    for (name, path) in &cases {
        let said = messages.get(name).unwrap_or_else(|| panic!("{name} compiles"));
        let source = fs::read_to_string(path).unwrap();
        let wanted: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        assert!(!wanted.is_empty(), "{name} expects nothing");
        for text in wanted {
            assert!(said.contains(text), "{name}: `{text}` is not in:\n{said}");
        }
        for text in source.lines().filter_map(|line| line.strip_prefix("//!~ ")) {
            assert!(!said.contains(text), "{name}: `{text}` is in:\n{said}");
        }
    }
}

/// Checks all cases as programs of one package; gives the errors of each.
fn check(crate_dir: &Path, cases: &BTreeMap<String, PathBuf>) -> BTreeMap<String, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hive-ui");
    fs::create_dir_all(&dir).unwrap();
    let mut manifest = format!(
        "[package]\nname = \"hive-ui\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\nfutures = \"0.3\"\nhive = {{ path = {crate_dir:?} }}\n"
    );
    for (name, path) in cases {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    // The workspace's lock file: the same versions, nothing to look up.
    fs::copy(crate_dir.join("../Cargo.lock"), dir.join("Cargo.lock")).unwrap();

    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--bins", "--keep-going", "--message-format=json"])
        .current_dir(&dir)
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .output()
        .unwrap();
    let mut messages: BTreeMap<String, String> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["message"]["level"] == "error" {
            let case = message["target"]["name"].as_str().unwrap_or_default();
            let said = message["message"]["rendered"].as_str().unwrap_or_default();
            messages.entry(case.to_owned()).or_default().push_str(said);
        }
    }
    assert!(!messages.is_empty(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    messages
}

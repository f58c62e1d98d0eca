//! Programs that must not compile, and the errors of the compiler.
//!
//! The errors of a file must contain the texts after `//~`, and not those after `//!~`. Other parts of the output
//! differ between versions, so whole outputs are not compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks the files of the crate's `tests/ui` as programs with these dependencies, lines of a manifest.
pub(crate) fn messages_name_the_wrong_part(crate_dir: &str, name: &str, dependencies: &str) {
    let cases: BTreeMap<String, PathBuf> = fs::read_dir(Path::new(crate_dir).join("tests/ui"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    assert!(!cases.is_empty());

    let messages = check(name, dependencies, &cases);
    for (name, path) in &cases {
        let rendered = messages.get(name).unwrap_or_else(|| panic!("{name} compiles"));
        let source = fs::read_to_string(path).unwrap();
        let wanted: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        assert!(!wanted.is_empty(), "{name} expects nothing");
        for text in wanted {
            assert!(rendered.contains(text), "{name}: `{text}` is not in:\n{rendered}");
        }
        for text in source.lines().filter_map(|line| line.strip_prefix("//!~ ")) {
            assert!(!rendered.contains(text), "{name}: `{text}` is in:\n{rendered}");
        }
    }
}

/// Checks all cases as programs of one package; returns the errors of each.
fn check(name: &str, dependencies: &str, cases: &BTreeMap<String, PathBuf>) -> BTreeMap<String, String> {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tmp.join(name);
    fs::create_dir_all(&dir).unwrap();
    let mut manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{dependencies}"
    );
    for (name, path) in cases {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    // The workspace's lock file pins the same versions, so that no registry is accessed.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|dir| dir.join("Cargo.lock"));
    fs::copy(lock.into_iter().find(|lock| lock.exists()).unwrap(), dir.join("Cargo.lock")).unwrap();

    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--bins", "--keep-going", "--message-format=json"])
        .current_dir(&dir)
        // All such tests share a target folder: they have most dependencies in common.
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

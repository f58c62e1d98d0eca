//! The statements of ARCHITECTURE.md about the structure of the repository, checked on the repository itself.

mod lists;
mod proxy_scenarios;
mod scenarios;
mod skips;
mod stories;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use lists::{ALL_OPTIONS, ENVIRONMENT, LAYERS, MAPS_BEHIND_LOCKS, OWN_THREADS, OWN_WAITS, WALL_CLOCK};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Workspace members with the members that they depend on (not for tests only).
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<String> = packages.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect();
    packages
        .iter()
        .map(|package| {
            let uses = package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|d| d["kind"] != "dev" && !d["path"].is_null())
                .map(|d| d["name"].as_str().unwrap().to_owned())
                .filter(|name| names.contains(name))
                .collect();
            (package["name"].as_str().unwrap().to_owned(), uses)
        })
        .collect()
}

fn layer(name: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&name))
        .unwrap_or_else(|| panic!("crate `{name}` has no layer: add it to LAYERS and ARCHITECTURE.md"))
}

#[test]
fn no_arrow_points_to_a_later_layer() {
    let mut wrong = Vec::new();
    for (name, uses) in members() {
        for used in uses {
            if layer(&used) > layer(&name) {
                wrong.push(format!("{name} -> {used}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The line of a `mod.rs` that names what a folder inside a crate depends on.
const SIBLINGS: &str = "//! Sibling folders that it uses: ";

/// Folders inside a crate that say which siblings they use: each uses just those, and none is used back.
#[test]
fn inner_folders_use_the_siblings_that_they_name() {
    let mut folders: BTreeMap<PathBuf, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for file in rust_files(&["cells", "cli", "hive", "lib"], &["target"]) {
        let text = std::fs::read_to_string(&file).unwrap();
        let Some(line) = text.lines().find_map(|line| line.strip_prefix(SIBLINGS)) else { continue };
        let (folder, crate_folder) = (file.parent().unwrap(), file.ancestors().nth(2).unwrap());
        let named = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        folders.entry(crate_folder.to_owned()).or_default().insert(name, named);
    }
    assert!(folders.len() >= 3, "{folders:?}");
    for (crate_folder, named) in folders {
        let name = crate_folder.strip_prefix(root()).unwrap().display();
        for (folder, siblings) in &named {
            let mut used = BTreeSet::new();
            for file in rust_files(&[crate_folder.join(folder).to_str().unwrap()], &["tests"]) {
                if file.ends_with("tests.rs") {
                    continue;
                }
                let text = std::fs::read_to_string(&file).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                let paths = code.split("crate::").skip(1).filter_map(|rest| rest.split("::").next());
                used.extend(
                    paths.filter(|path| named.contains_key(*path) && path != folder).map(str::to_owned),
                );
            }
            assert_eq!(&used, siblings, "{name}/{folder}: left what is used, right what its mod.rs names");
        }
        // Remove files that no remaining file uses, until none is left.
        let mut left = named;
        while !left.is_empty() {
            let used: BTreeSet<String> = left.values().flatten().cloned().collect();
            let before = left.len();
            left.retain(|folder, _| used.contains(folder));
            assert!(left.len() < before, "{name}: a circle among {:?}", left.keys());
        }
    }
}

#[test]
fn cells_do_not_know_the_agent() {
    let binaries = ["agent", "operator", "apiary-cni", "apiary"];
    for (name, uses) in members() {
        if !["integration-tests", "test-kit", "fuzz"].contains(&name.as_str()) {
            assert!(!binaries.iter().any(|binary| uses.contains(*binary)), "{name} uses a binary: {uses:?}");
        }
    }
}

/// Every Rust file below the cells, without tests.
fn sources() -> Vec<PathBuf> {
    sources_of(&["cells", "lib"])
}

/// Source files below these folders, without those of tests, benchmarks and examples.
fn sources_of(folders: &[&str]) -> Vec<PathBuf> {
    rust_files(folders, &["tests", "benches", "examples", "target"])
}

/// Rust files below these folders, without those in folders of the other names.
fn rust_files(folders: &[&str], without: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !without.iter().any(|skip| path.ends_with(skip)) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

const KINDS: [&str; 4] = ["HashMap<", "BTreeMap<", "HashSet<", "BTreeSet<"];

/// Names of the structs in a text that have a map or set among their fields.
fn structs_with_maps(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for definition in code.split("struct ").skip(1) {
        let Some((head, rest)) = definition.split_once('{') else { continue };
        let fields = rest.split("\n}").next().unwrap();
        let name: String = head.chars().take_while(|c| c.is_alphanumeric()).collect();
        if !head.contains(';') && KINDS.iter().any(|kind| fields.contains(kind)) {
            found.insert(name);
        }
    }
    found
}

#[test]
fn state_that_others_read_lives_in_tables() {
    let locks = ["Mutex<", "RwLock<", "ArcSwap<"];
    let mut found = BTreeSet::new();
    let mut crates: BTreeMap<PathBuf, Vec<(String, String)>> = BTreeMap::new();
    for path in sources() {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        // The tables' own engine is where such maps belong; fakes are for tests.
        if file.starts_with("cells/statedb/") || file.ends_with("testing.rs") || file.contains("/testing/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
        crates.entry(path.parent().unwrap().to_owned()).or_default().push((file, code));
    }
    for files in crates.values() {
        let structs: BTreeSet<String> = files.iter().flat_map(|(_, code)| structs_with_maps(code)).collect();
        for (file, code) in files {
            for line in code.lines().map(str::trim).filter(|l| !l.starts_with("//")) {
                for lock in locks {
                    let Some((_, inside)) = line.split_once(lock) else { continue };
                    let name: String = inside.chars().take_while(|c| c.is_alphanumeric()).collect();
                    if KINDS.iter().any(|kind| inside.contains(kind)) || structs.contains(&name) {
                        found.insert(file.clone());
                    }
                }
            }
        }
    }
    let allowed: BTreeSet<String> = MAPS_BEHIND_LOCKS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "maps behind locks (left) against the list of allowed ones (right)");
    let example = "struct A {\n    b: BTreeMap<u8, u8>,\n}\nstruct C {\n    a: Mutex<A>,\n}\n";
    assert_eq!(
        structs_with_maps(example),
        BTreeSet::from(["A".to_owned()]),
        "the check itself can find something"
    );
}

#[test]
fn the_systems_clock_is_only_read_to_be_shown() {
    let reads = ["SystemTime::now", "CLOCK_REALTIME", "Utc::now", "Local::now"];
    let found = files_with(&["agent", "cells", "cli", "cni", "hive", "lib", "operator"], &reads);
    let allowed: BTreeSet<String> = WALL_CLOCK.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "files that read the system's clock (left) against those that may (right)");
}

#[test]
fn what_runs_beside_is_a_job() {
    let ways = [
        "thread::spawn",
        "thread::Builder",
        "thread::scope",
        "thread::sleep",
        "tokio::spawn",
        "task::spawn",
        "block_in_place",
        "block_on(",
        "JoinSet",
        "TaskTracker",
        "Runtime::new",
        "runtime::Builder",
    ];
    let allowed = OWN_THREADS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(
        files_with(&["agent", "cells", "hive", "lib", "operator"], &ways),
        allowed,
        "files with threads or tasks of their own (left) against those that may (right)"
    );
}

#[test]
fn options_are_read_from_configuration_structs() {
    // The words before the cells' own `Settings`, of which some have their own.
    let all = |line: &str| {
        let imported = line.starts_with("use hive::") && line.contains("Setting");
        let ways = ["hive::Setting", "hive.settings()", "hive().settings()", "watch_settings"];
        imported || ways.iter().any(|way| line.contains(way))
    };
    let mut found = files_where(&["agent", "cells", "cli", "cni", "lib", "operator"], all);
    // Written to the log as a whole.
    assert!(found.remove("agent/src/main.rs"), "the check itself can find something");
    let allowed = ALL_OPTIONS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "files that go over all options (left) against those that may (right)");
}

#[test]
fn tests_wait_by_their_hive() {
    // A loop with a sleep among its first lines, up to the line.
    let polls = |lines: &[&str]| {
        let is_loop = |line: &&str| line.trim_start().starts_with("while ");
        lines.last().is_some_and(|line| line.contains("sleep(")) && lines.iter().any(is_loop)
    };
    let mut found = BTreeSet::new();
    for path in
        rust_files(&["agent", "cells", "examples", "fuzz", "lib", "hive/shaku", "hive/shell"], &["target"])
    {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        if text.contains("TestHive") && (1..=lines.len()).any(|n| polls(&lines[n.saturating_sub(4)..n])) {
            found.insert(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
        }
    }
    let allowed = OWN_WAITS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "tests with waiting of their own (left) against those that may (right)");
}

#[test]
fn the_environment_is_read_by_the_hive() {
    let ways = ["env::var", "env::args", "env::home_dir"];
    let found = files_with(&["agent", "cells", "cli", "cni", "hive", "lib", "operator"], &ways);
    let allowed = ENVIRONMENT.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, allowed, "files that read the environment (left) against those that may (right)");
}

/// Returns files below these folders with one of these texts in their code; tests, fakes and comments do not count.
fn files_with(folders: &[&str], texts: &[&str]) -> BTreeSet<String> {
    files_where(folders, |line| texts.iter().any(|text| line.contains(text)))
}

/// Files below these folders with a line of code of which this is true; tests, fakes and comments do not count.
fn files_where(folders: &[&str], is_so: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in sources_of(folders) {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let is_test =
            ["testing.rs", "tests.rs"].iter().any(|name| file.ends_with(name)) || file.contains("/testing/");
        let mut lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        if !is_test && lines.any(&is_so) {
            found.insert(file);
        }
    }
    found
}

/// ``"`a/b.rs` `f`"`` names a file and, behind it, functions of it; every path has to exist.
#[test]
fn what_the_documents_name_exists() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let architecture = read("ARCHITECTURE.md");
    assert!(architecture.lines().count() <= 260, "it is the reader's entrance and stays short");
    let text = architecture + &read("SPECIFICATION.md");
    let mut wrong = Vec::new();
    let words: Vec<&str> = text.split('`').collect();
    for (i, word) in words.iter().enumerate().skip(1).step_by(2) {
        let is_path = word.contains('/') && !word.contains(' ') && !word.starts_with('/');
        if is_path && !root().join(word).exists() {
            wrong.push(format!("{word} does not exist"));
        }
        let function =
            words.get(i + 2).filter(|_| is_path && words.get(i + 1).is_some_and(|s| s.trim().is_empty()));
        if let (true, Some(function)) = (word.ends_with(".rs"), function) {
            let code = std::fs::read_to_string(root().join(word)).unwrap_or_default();
            if !code.contains(&format!("fn {function}")) {
                wrong.push(format!("{word} has no function {function}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let table = manifest.split("[workspace.dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    for line in table.lines().filter(|l| l.contains(" = ") && !l.contains("path = ")) {
        assert!(line.contains("# "), "no reason is given for: {line}");
    }
}

/// Syntax that is newer than the workspace's `rust-version`, which compiles with the toolchain of the tests
/// nevertheless:
/// `if let` guards of match arms, stable since 1.95. For newer functions of the standard library there is clippy's
/// `incompatible_msrv`, a part of the test command.
#[test]
fn the_sources_need_no_newer_compiler() {
    let newer = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let code =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        if_let_guards(&code)
            .into_iter()
            .map(|guard| format!("{}: {guard}", path.display()))
            .collect::<Vec<_>>()
    };
    let folders = [
        "agent",
        "cells",
        "cli",
        "cni",
        "config",
        "ebpf/abi",
        "examples",
        "fuzz",
        "hive",
        "integration-tests",
        "lib",
        "operator",
    ];
    let found: Vec<String> = rust_files(&folders, &["target"]).iter().flat_map(newer).collect();
    assert_eq!(found, Vec::<String>::new());

    // It would find them.
    let (keyword, arm) = ("if let", "=> {}");
    assert_eq!(if_let_guards(&format!("x {keyword} Some(S {{ a }}) = f(|y| {{ y }}) {arm}")).len(), 1);
    assert_eq!(if_let_guards(&format!("_ {keyword} A = a\n    && b {arm}")).len(), 1);
    assert!(
        if_let_guards(&format!("{keyword} Some(S {{ a }}) = f(|y| {{ y }}) {{ match b {{ _ {arm} }} }}"))
            .is_empty()
    );
    assert!(if_let_guards(&format!("_ => {keyword} A = a {{ b }}, c {arm}")).is_empty());
}

/// Returns each `if let` with a condition that ends with the arrow of a match arm instead of a block.
fn if_let_guards(code: &str) -> Vec<&str> {
    // In two parts: this file is searched, too.
    let starts = code.match_indices(concat!("if ", "let ")).map(|(at, _)| &code[at..]);
    let is_guard = |text: &&str| {
        let equals = [" = ", " =\n"].into_iter().filter_map(|equals| text.find(equals)).min();
        let Some(condition) = equals.map(|at| &text[at + 3..]) else { return false };
        let mut depth = 0;
        for (at, c) in condition.char_indices() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '{' if depth == 0 => return false,
                '=' if depth == 0 && condition[at..].starts_with("=>") => return true,
                _ => {}
            }
            if depth < 0 {
                return false;
            }
        }
        false
    };
    starts.filter(is_guard).map(|text| text.lines().next().unwrap_or_default()).collect()
}

#[test]
fn the_sources_stay_readable() {
    // nine of ten files under 500 lines, none over 1,000
    let sizes: Vec<(usize, PathBuf)> =
        sources().into_iter().map(|p| (std::fs::read_to_string(&p).unwrap().lines().count(), p)).collect();
    let long: Vec<_> = sizes.iter().filter(|(lines, _)| *lines > 1000).collect();
    assert!(long.is_empty(), "files of more than 1,000 lines: {long:?}");
    let over = sizes.iter().filter(|(lines, _)| *lines > 500).count();
    assert!(over * 10 <= sizes.len(), "{over} of {} files have more than 500 lines", sizes.len());
}

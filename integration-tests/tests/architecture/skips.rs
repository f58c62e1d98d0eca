//! Tests that need a program which only `make test FULL=1` builds or fetches are in the list of permitted skips.

use std::collections::BTreeSet;
use std::fs;

/// The tools that bring such programs.
const TOOLS: [&str; 5] = [
    "tools/helm",
    "tools/envoy",
    "tools/kube-proxy",
    "tools/kube-controller-manager",
    "tools/cilium-clients",
];

/// Functions at the beginning of a line, or one level deeper, with their text.
fn functions(file: &str) -> Vec<(&str, bool, &str)> {
    let mut found = Vec::new();
    let mut is_test = false;
    let mut rest = file;
    while let Some(line) = rest.lines().next() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let name = code.trim_start_matches("pub(crate) ").trim_start_matches("async ").strip_prefix("fn ");
        if let Some(name) = name {
            let name = &name[..name.find(['(', '<']).unwrap_or(name.len())];
            let end = rest.find(&format!("\n{indent}}}")).unwrap_or(rest.len());
            found.push((name, is_test, &rest[..end]));
            is_test = false;
        }
        is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
        rest = rest.get(line.len() + 1..).unwrap_or("");
    }
    found
}

/// The tests of a file that are skipped without one of the programs, themselves or by a function that they call.
fn skipped(file: &str) -> BTreeSet<&str> {
    let functions = functions(file);
    let mut marked: BTreeSet<&str> = functions
        .iter()
        .filter(|(_, _, text)| {
            text.contains("require_helm!()")
                || text.contains("require!(") && TOOLS.iter().any(|tool| text.contains(tool))
        })
        .map(|(name, ..)| *name)
        .collect();
    loop {
        let callers: Vec<&str> = functions
            .iter()
            .filter(|(name, _, text)| {
                !marked.contains(name) && marked.iter().any(|called| text.contains(&format!(" {called}(")))
            })
            .map(|(name, ..)| *name)
            .collect();
        if callers.is_empty() {
            break;
        }
        marked.extend(callers);
    }
    functions.iter().filter(|(name, is_test, _)| *is_test && marked.contains(name)).map(|f| f.0).collect()
}

#[test]
fn skips_are_found_in_tests_and_in_what_they_call() {
    let text = "fn moves(mode: &str) {\n    require!(x, \"tools/kube-proxy does it\");\n}\n\n\
                #[test]\nfn by_a_function() {\n    moves(\"a\");\n}\n\n\
                #[test]\nfn itself() {\n    require_helm!();\n}\n\n\
                #[test]\nfn never() {\n    removes();\n}\n";
    assert_eq!(skipped(text), ["by_a_function", "itself"].into());
}

#[test]
fn tests_that_need_a_program_of_full_runs_may_be_skipped() {
    let list = fs::read_to_string(crate::root().join("tools/permitted-skips.tsv")).unwrap();
    let listed: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.split('\t').next())
        .map(|test| test.rsplit("::").next().unwrap())
        .collect();
    let mut count = 0;
    let mut missing = Vec::new();
    for file in crate::rust_files(&["agent", "cells", "cli", "integration-tests", "operator"], &["target"]) {
        if file.ends_with(file!()) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for test in skipped(&text) {
            count += 1;
            if !listed.contains(test) {
                missing.push(format!("{}: {test}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "not in tools/permitted-skips.tsv: {missing:#?}");
    assert!(count >= 20, "only {count} such tests were found: the search is wrong");
}

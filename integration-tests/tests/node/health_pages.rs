//! `docs/health.md`: each module of the agent has a page, and each table that a page names exists.

use std::collections::BTreeSet;
use std::process::Command;

use integration_tests::{Node, binary};
use test_kit::require_root;

const PAGES: &str = include_str!("../../../docs/health.md");

fn headings() -> BTreeSet<String> {
    PAGES.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect()
}

/// The modules of the tree that `agent hive` prints, by their identifiers, without those that only contain others.
fn modules(tree: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    let mut path: Vec<&str> = Vec::new();
    for line in tree.lines() {
        let text = line.trim_start();
        let Some((name, _)) = text.strip_prefix("module ").and_then(|rest| rest.split_once(':')) else {
            continue;
        };
        path.truncate((line.len() - text.len()) / 4);
        path.push(name);
        modules.insert(path.join("."));
    }
    let groups = ["agent", "agent.infra", "agent.datapath", "agent.controlplane"];
    modules.retain(|module| !groups.contains(&module.as_str()));
    modules
}

#[test]
fn each_module_has_a_page_and_each_page_a_module() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        Command::new(binary("agent")).arg("hive").arg("--config-dir").arg(folder.path()).output().unwrap();
    let modules = modules(&String::from_utf8(output.stdout).unwrap());
    assert!(modules.len() > 70, "{modules:?}");
    assert_eq!(headings(), modules);
}

#[test]
fn rows_of_health_and_tables_of_pages_are_those_of_an_agent() {
    require_root!();
    let mut node = Node::new();
    node.start();
    let tables = node.get("/statedb/dump");
    let tables = tables.as_object().unwrap();
    let headings = headings();
    for row in tables["health"].as_array().unwrap() {
        let module: Vec<&str> =
            row["ID"]["Module"].as_array().unwrap().iter().filter_map(|m| m.as_str()).collect();
        let module = module.join(".");
        assert!(headings.contains(&module), "no page for {module}: {row}");
    }
    let words = PAGES.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = words.filter_map(|text| text.strip_prefix("apiary db show ")).collect();
    let missing: Vec<&&str> = named.iter().filter(|table| !tables.contains_key(**table)).collect();
    assert!(named.len() > 20 && missing.is_empty(), "no tables of an agent: {missing:?}");
}

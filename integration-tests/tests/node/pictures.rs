//! `agent hive`: the composition of the agent, and the timeline of its start.

use std::process::Output;

use integration_tests::{Node, binary};
use test_kit::require_root;

/// Runs `agent hive` with these arguments.
fn hive(node: &Node, words: &[&str]) -> Output {
    let mut command = node.host().command(binary("agent").to_str().unwrap());
    command.arg("--socket-path").arg(node.socket()).arg("hive").args(words).output().unwrap()
}

fn printed(node: &Node, words: &[&str]) -> String {
    let output = hive(node, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_start_of_a_real_agent_is_drawn() {
    require_root!();
    let mut node = Node::new();
    let refused = hive(&node, &["timeline"]);
    assert_eq!(refused.status.code(), Some(1));
    let said =
        String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no agent answers at unix://"), "{said}");

    node.start();
    let svg = printed(&node, &["timeline"]);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("Started in "), "{svg}");
    // Rows are in the order of the start: maps are there before the loader starts, the server is last.
    let row = |hook: &str| svg.find(&format!(">{hook}")).unwrap_or_else(|| panic!("{hook} is not in {svg}"));
    assert!(row("agent.datapath.maps/") < row("agent.datapath.loader/"), "{svg}");
    // All but the first waited for another.
    let hooks = svg.matches("<text x=\"8\"").count() - 2;
    assert_eq!(svg.matches("<path class=\"w\"").count(), hooks - 1, "{svg}");
    assert!(svg.contains(", after agent."), "{svg}");
    assert!(!svg.contains("not ended"), "{svg}");
    assert_eq!(node.apiary(&["start-up", "--svg"]), svg);

    let all: serde_json::Value = serde_json::from_str(&node.apiary(&["start-up", "-o", "json"])).unwrap();
    let steps = all["steps"].as_array().unwrap();
    assert_eq!(steps.iter().filter(|step| step["hook"].is_string()).count(), hooks, "{all}");
    let whole = all["milliseconds"].as_f64().unwrap();
    for step in steps {
        let (begin, took) = (&step["beginMilliseconds"], &step["milliseconds"]);
        assert!(begin.as_f64().unwrap() + took.as_f64().unwrap() <= whole, "{step} of {whole} ms");
    }
    let longest = node.apiary(&["start-up"]);
    let took: Vec<f64> = longest
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(took.is_sorted_by(|a, b| a >= b) && took.len() == 20, "{longest}");
    assert_eq!(node.apiary(&["start-up", "--all"]).lines().count(), steps.len() + 2);
    let graph = node.apiary(&["graph", "mermaid"]);
    assert!(graph.contains("agent.datapath.loader"), "{graph}");
    node.stop();
}

#[test]
fn every_format_has_every_module() {
    require_root!();
    let node = Node::new();
    let json: serde_json::Value = serde_json::from_str(&printed(&node, &["json"])).unwrap();
    let modules: Vec<&str> =
        json["modules"].as_array().unwrap().iter().filter_map(|module| module["path"].as_str()).collect();
    assert!(modules.contains(&"agent.datapath.loader"), "{modules:?}");
    for words in [&["dot-graph"][..], &["mermaid"]] {
        let text = printed(&node, words);
        for module in &modules {
            assert!(text.contains(module), "{words:?} lacks {module}");
        }
    }
    let tree = printed(&node, &[]);
    assert!(tree.contains("module loader: "), "{tree}");
    assert_eq!(hive(&node, &["nonsense"]).status.code(), Some(1));
}

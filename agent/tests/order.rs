//! Start hooks of the whole agent in random legal orders: a dependency that only the order of listing satisfies fails.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use hive::Hive;
use integration_tests::Node;
use integration_tests::cast::{Cast, LONG, assert_nothing, assert_perfect};
use serde_json::Value;
use test_kit::{require_root, try_wait_until};

/// Environment variable: runs this test binary as an agent on that configuration folder.
const CONFIG: &str = "AGENT_IN_A_RANDOM_ORDER";
/// Environment variable: seed of the order; empty for the order of registration.
const SEED: &str = "AGENT_ORDER";
/// Timeout until a node has the expected state.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long packets flow before and after a restart.
const WHILE: Duration = Duration::from_millis(150);
/// Environment variable: count of orders to try (default 5).
const SEEDS: &str = "AGENT_ORDERS";

/// Not a test by itself: the agent of the test below, in a separate process.
#[test]
fn agent_in_a_random_order() {
    let Some(config) = std::env::var_os(CONFIG) else { return };
    let seed = std::env::var(SEED).unwrap();
    tracing_subscriber::fmt().with_ansi(false).init();
    let mut hive = Hive::builder(agent::cells())
        .args(["--config-dir", config.to_str().unwrap()])
        .config_files()
        .foreign(agent::known_options());
    if !seed.is_empty() {
        hive = hive.shuffle(seed.parse().unwrap());
    }
    let hive = hive.build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(hive.run());
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
}

/// Makes the next starts of this node use the order of `seed`.
fn order(node: &mut Node, seed: Option<u64>) {
    let program = node.sandbox().dir().join("agent-in-order");
    let itself = std::env::current_exe().unwrap();
    // Passed in the environment, because the test harness would parse arguments.
    let script = format!(
        "#!/bin/sh\n{CONFIG}=$2 {SEED}={} exec {} --exact agent_in_a_random_order --nocapture --test-threads=1\n",
        seed.map(|seed| seed.to_string()).unwrap_or_default(),
        itself.display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    node.program = program;
}

/// Returns the state of a node that is the same on each: reporters of health with their levels, rows of tables, maps
/// and pins, files of the state folder.
fn picture(node: &Node) -> BTreeSet<String> {
    let mut picture = BTreeSet::new();
    let tables = node.get("/statedb/dump");
    for (table, rows) in tables.as_object().unwrap() {
        let rows = rows.as_array().unwrap();
        // The kernel adds neighbours and IPv6 address routes asynchronously, so their counts vary.
        if !["health", "neighbors", "routes"].contains(&table.as_str()) {
            picture.insert(format!("{table}: {} rows", rows.len()));
        }
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let columns: &[&str] = match table.as_str() {
            "bpf-maps" => &["/name", "/max_entries"],
            "endpoints" => &["/Status/kind", "/Record/SecLabel/labels"],
            "frontends" => &["/Address", "/Status/kind"],
            "health" => &["/ID/Module", "/ID/Component", "/Level"],
            "ipcache" => &["/Status/kind"],
            "sysctl" => &["/Name", "/Val", "/Status/kind"],
            _ => &[],
        };
        for row in rows.iter().filter(|_| !columns.is_empty()) {
            let shown = columns.iter().map(|column| text(row.pointer(column).unwrap_or(&Value::Null)));
            // Jobs that have done their work end earlier or later.
            let shown = shown.map(|text| if text == "Stopped" { "OK".to_owned() } else { text });
            picture.insert(format!("{table}: {}", shown.collect::<Vec<_>>().join(" ")));
        }
    }
    for (name, folder) in [("pins", node.sandbox().bpf_root()), ("files", node.sandbox().run_dir())] {
        picture.extend(names(&folder).into_iter().map(|path| format!("{name}: {path}")));
    }
    picture
}

/// Returns paths below a folder, with ids of endpoints and slots replaced by `N`.
fn names(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(inner).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            let path = entry.path().strip_prefix(folder).unwrap().display().to_string();
            let is_number = |part: &str| part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_digit());
            let parts = path.split_inclusive(['/', '_', '.']);
            names.insert(
                parts
                    .map(|part| if is_number(part.trim_end_matches(['/', '_', '.'])) { "N/" } else { part })
                    .collect(),
            );
        }
    }
    names
}

/// Returns the state of the node once it is stable.
fn stable_state(node: &Node) -> BTreeSet<String> {
    let mut last = picture(node);
    loop {
        sleep(Duration::from_secs(1));
        let now = picture(node);
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Waits until the node has the expected state.
fn wait_for_state(node: &Node, wanted: &BTreeSet<String>, what: &str) {
    let outcome = try_wait_until(PATIENCE, || {
        let now = picture(node);
        let more: Vec<_> = now.difference(wanted).collect();
        let missing: Vec<_> = wanted.difference(&now).collect();
        match more.is_empty() && missing.is_empty() {
            true => Ok(()),
            false => Err(format!("too much: {more:#?}\nmissing: {missing:#?}")),
        }
    });
    if let Err(wrong) = outcome {
        panic!("{what}: {wrong}\nlog of the agent:\n{}", node.log());
    }
}

/// Asserts that no warning was logged, and that the history has each start and stop.
fn went_well(node: &Node, starts: usize) {
    let log = node.log();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
    let history = node.sandbox().run_dir().join("state/cilium-agent-health-history.log");
    let history = fs::read_to_string(history).unwrap();
    for word in ["Started", "Stopped"] {
        assert_eq!(
            history.lines().filter(|line| line.contains(&format!("| {word} |"))).count(),
            starts,
            "{history}"
        );
    }
}

/// Starts and restarts a node in orders derived from `seed`.
fn any_order(seed: u64, first: &BTreeSet<String>, second: &BTreeSet<String>) {
    let mut node = Node::new();
    order(&mut node, Some(seed));
    let mut cast = Cast::on(node);
    wait_for_state(&cast.node, first, &format!("a first start in order {seed}"));
    let (endpoints, identities) = (cast.node.endpoints(), cast.identities());
    let (allowed, denied) = (cast.allowed(LONG), cast.denied());
    sleep(WHILE);
    let connections = cast.all_connections();
    cast.node.stop();
    let again = seed + 1_000_000;
    order(&mut cast.node, Some(again));
    cast.node.start();
    sleep(WHILE);
    // A second agent on the same folder is rejected in any order and changes nothing.
    let piped = || Stdio::piped();
    let refused = cast.node.agent_command().stdout(piped()).stderr(piped()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && said.contains("another agent (pid"), "{said}");
    let what = format!("a restart in order {again}");
    assert_perfect(allowed, &what, &cast.node);
    assert_nothing(denied, &what, &cast.node);
    wait_for_state(&cast.node, second, &what);
    assert_eq!(cast.node.endpoints(), endpoints, "{what}");
    assert_eq!(cast.identities(), identities, "{what}");
    assert_eq!(cast.connections(), connections, "{what}");
    cast.node.stop();
    went_well(&cast.node, 2);
}

#[test]
fn any_legal_order_of_hooks_starts_the_agent() {
    require_root!();
    let mut node = Node::new();
    order(&mut node, None);
    let mut reference = Cast::on(node);
    let first = stable_state(&reference.node);
    reference.node.stop();
    reference.node.start();
    let second = stable_state(&reference.node);
    reference.node.stop();
    went_well(&reference.node, 2);
    let seeds = std::env::var(SEEDS).map_or(5, |seeds| seeds.parse().unwrap());
    let next = AtomicU64::new(1);
    let worker = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed <= seeds) {
            any_order(seed, &first, &second);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(worker);
        worker();
    });
}

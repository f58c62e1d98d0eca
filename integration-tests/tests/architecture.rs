//! The statements of ARCHITECTURE.md about the structure of the repository, checked on the repository itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crates by layer, from the leaf to the binary. A crate uses only crates of its own or an earlier layer.
const LAYERS: &[&[&str]] = &[
    &[
        "apiary-go-duration",
        "token-bucket",
        "apiary-hive-derive",
        "apiary-hive",
        "hive-script",
        "hive-shaku",
        "hive-shell",
        "cell-template",
    ],
    &[
        "apiary-statedb-derive",
        "apiary-statedb",
        "statedb-script",
        "apiary-reconciler",
        "labels",
        "netlink",
        "state-file",
        "file-watch",
        "http-server",
        "logging",
        "known-options",
    ],
    &["metrics", "memory-limit", "policy-engine", "k8s-types"],
    &["api-models", "api-client", "api", "statedb-remote"],
    &["datapath-abi", "datapath-object", "bpf"],
    &["maps", "devices", "sysctl"],
    &["tunnel"],
    &["local-node", "runtime-options", "k8s-tables", "k8s-client", "k8s-fake-apiserver", "k8s-writer"],
    &["datapath-api", "conntrack-gc", "routes"],
    &["identity", "k8s-node", "ciliumnode"],
    &["ipcache", "loadbalancer"],
    &[
        "ipam",
        "ipam-multi-pool",
        "policy",
        "node-manager",
        "loadbalancer-healthserver",
        "loadbalancer-sockets",
    ],
    &["iptables"],
    &["endpoints"],
    // Only the agent and its commands know the implementation of `datapath-api`.
    &["ciliumendpoint", "cni-config", "config-sources", "loadbalancer-redirectpolicy", "loader"],
    &["daemon-config", "status"],
    &["cilium-health"],
    &["cleanup", "node-routes", "neighbors", "operator-election", "operator-definitions", "operator-api"],
    &["operator-ipam"],
    &["agent", "operator", "apiary-cni", "apiary"],
    &["test-kit", "cluster-stage", "integration-tests", "fuzz"],
];

/// Maps behind locks without readers outside of their crate; other state belongs in a table.
/// Each line: a file, and the reason for the exception.
const MAPS_BEHIND_LOCKS: &[(&str, &str)] = &[
    (
        "cells/infra/status/src/collector.rs",
        "when each source of the status worked last; the answer is made from it",
    ),
    (
        "cells/kubernetes/tables/src/in_memory_source.rs",
        "what a source without a server has, read by its watches alone; others read the tables",
    ),
    (
        "cells/datapath/loader/src/endpoints/conntrack_purge.rs",
        "addresses of pods that have left, until their connections are forgotten: a work queue, which nothing else reads",
    ),
    (
        "cells/datapath/loader/src/endpoints/pod_programs.rs",
        "endpoints that a switch of programs has served, until they are attached again",
    ),
    (
        "cells/datapath/loader/src/endpoints/pool.rs",
        "descriptors of policy maps that endpoints have; the maps themselves and their pins are the state",
    ),
    (
        "cells/datapath/loader/src/endpoints/table.rs",
        "settings entries as they were written, which those of the kernel are compared with; endpoints with an interface that \
         went away, until it is back or the endpoint is deleted",
    ),
    (
        "cells/datapath/maps/src/drift_checks.rs",
        "when each keeper of rows may compare again; asked once a turn by itself",
    ),
    (
        "cells/datapath/maps/src/maps.rs",
        "descriptors of maps that are opened one by one; the maps themselves are the state",
    ),
    (
        "cells/ipam/multi-pool/src/waiting.rs",
        "requests that wait for a range of their pool, counted by the job that requests ranges",
    ),
    (
        "lib/state-file/src/records.rs",
        "contents of files that wait to be written, taken by the job that writes them",
    ),
    (
        "cells/infra/metrics/src/registry.rs",
        "which metrics the operator switched; read while metrics register",
    ),
    (
        "cells/infra/metrics/src/sampler.rs",
        "samples of the last two hours, which only the shell's commands show",
    ),
];

/// Files that read the system's clock, which may jump by days: each only to show or to log a time. Whatever waits,
/// expires or is compared goes by a clock that never goes back (`Instant`, tokio's time, the kernel's
/// `CLOCK_MONOTONIC`).
const WALL_CLOCK: &[(&str, &str)] = &[
    ("cells/config/daemon-config/src/cell.rs", "when the agent was started, in its stored configuration"),
    ("cells/endpoint/endpoints/src/gc.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/reconcile/ops.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/reconcile/regeneration.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/requests/description.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/requests/service.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/finish.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/start.rs", "times in an endpoint's log"),
    ("cells/health/cilium-health/src/cell.rs", "when the agent began to probe, in the health API"),
    (
        "cells/health/cilium-health/src/prober/run.rs",
        "when an address was probed and a cycle began, in the health API",
    ),
    ("cells/infra/status/src/cell.rs", "since when a source fails, in the status"),
    ("cells/infra/status/src/commands.rs", "how old reports are, in the tree that is shown"),
    ("cells/infra/status/src/thread.rs", "the time in the answer that kube-proxy would give"),
    ("cells/infra/status/src/watch.rs", "since when a job is stuck, in the status"),
    ("cells/kubernetes/tables/src/events.rs", "when an object was read, in its row"),
    ("cells/kubernetes/tables/src/numbers.rs", "when something was last heard of a kind, in a metric"),
    ("cells/datapath/maps/src/events.rs", "when a map was written, in `GET /map/{name}/events`"),
    ("cells/datapath/maps/src/runtime.rs", "the offset between the clocks, which programs add to theirs"),
    ("cells/reconciler/src/builder.rs", "where the times in statuses begin; they go on by tokio's clock"),
    ("cells/reconciler/src/status.rs", "times in statuses that were not made by a reconciler"),
    ("cli/src/commands/get/mod.rs", "how long ago objects were made"),
    ("cli/src/commands/status.rs", "how long ago something was"),
    ("cni/src/log.rs", "the time of a log line"),
    ("hive/src/health/mod.rs", "when a report was made"),
];

/// Files that start threads, tasks or runtimes of their own, or put a thread to sleep, and why. Everything else is a
/// job of a hive, a piece of its work (`hive::blocking`), or a reconciler.
const OWN_THREADS: &[(&str, &str)] = &[
    ("agent/src/build_config.rs", "the runtime of a command"),
    ("agent/src/main.rs", "the runtime"),
    ("operator/src/main.rs", "the runtime"),
    ("cells/infra/logging/src/sink.rs", "the thread that writes the log, for as long as the process runs"),
    ("cells/operator/api/src/server.rs", "a task for each connection; the server's job waits for them"),
    ("cells/health/cilium-health/src/health_api/server.rs", "as above"),
    (
        "cells/health/cilium-health/src/endpoint/namespace.rs",
        "a thread that makes a namespace never leaves it; it ends before the call returns",
    ),
    (
        "cells/infra/api/src/cell.rs",
        "requests are completed after their client has disconnected; the server's job waits for them",
    ),
    ("cells/infra/api/src/layers.rs", "as above"),
    (
        "cells/infra/api/src/tables/mod.rs",
        "changes of a table, sent as long as the client takes them; the server's job waits",
    ),
    (
        "cells/datapath/bpf/src/object.rs",
        "programs are verified side by side; the threads end before the call returns",
    ),
    (
        "lib/http-server/src/serve.rs",
        "a task for each connection, at most as many as fit; the server's job waits for them",
    ),
    ("lib/http-server/src/probes.rs", "as above"),
    (
        "cells/datapath/conntrack-gc/src/collect.rs",
        "the rest between two chunks of rows, in `hive::blocking`",
    ),
    (
        "cells/infra/cleanup/src/leftover.rs",
        "waits until the kernel has freed rules that use a set, in a command without a runtime",
    ),
    ("cells/datapath/iptables/src/program.rs", "waits for a program of iptables, off the runtime's threads"),
    ("lib/netlink/src/connection.rs", "waits before an interrupted dump is repeated"),
    (
        "cells/endpoint/endpoints/src/reconcile/regeneration.rs",
        "rests a millisecond for packets in flight, on the thread of the reconciler",
    ),
    ("cells/infra/status/src/kubelet.rs", "a task for each connection, on the thread below"),
    (
        "cells/infra/status/src/thread.rs",
        "the thread that answers the kubelet when no job moves and watches the jobs themselves",
    ),
    (
        "cells/kubernetes/client/src/access.rs",
        "the library reads the files of a kubeconfig in a future that waits for nothing, in `hive::blocking`",
    ),
    (
        "cells/kubernetes/client/src/access/exec.rs",
        "waits for a command that gives credentials, off the runtime's threads",
    ),
    (
        "cells/datapath/loader/src/interfaces/controller.rs",
        "links of devices are made while programs are loaded; the thread ends before the call returns",
    ),
    (
        "cells/datapath/loader/src/programs/set.rs",
        "maps are opened side by side; the threads end before the call returns",
    ),
    (
        "cells/datapath/maps/src/maps.rs",
        "maps are made side by side; the threads end before the call returns",
    ),
    ("cells/infra/metrics/src/server.rs", "a task for each connection; the server's job waits for them"),
    (
        "cells/loadbalancer/sockets/src/namespaces.rs",
        "a thread that enters a pod's namespace never leaves it; it ends before the call returns",
    ),
    (
        "cells/policy/cell/src/policymap/install.rs",
        "maps of many endpoints are written side by side; the threads end before the call returns",
    ),
    ("cells/reconciler/src/blocking.rs", "a blocking thread for operations where there is no hive"),
    ("hive/shell/src/serve.rs", "a task for each client; the listener's job waits for them"),
    ("hive/src/job/blocking.rs", "`hive::blocking` itself"),
    ("hive/src/job/thread.rs", "the thread of a job that asks for one"),
    ("hive/src/job/progress.rs", "counts what `hive::blocking` has begun, for the job that waits for it"),
    ("hive/src/random/mod.rs", "a runtime for each random hive of the test"),
    (
        "hive/src/signals.rs",
        "the second signal and the limits end the process, whatever the hive and its runtime do",
    ),
];

/// Files that go over all options whatever struct they belong to, and why. Everything else has a configuration struct,
/// which also programs read before their hive starts (`Hive::config`).
const ALL_OPTIONS: &[(&str, &str)] = &[
    ("agent/src/dump.rs", "shows all options that are in force"),
    ("agent/src/options.rs", "reports options that no cell declares"),
    ("cells/infra/api/src/cell.rs", "hands them to the file below"),
    ("cells/infra/api/src/debug.rs", "shows all options for debugging"),
    ("cells/config/daemon-config/src/cell.rs", "hands them to the files below"),
    ("cells/config/daemon-config/src/cluster.rs", "asks where an option comes from"),
    (
        "cells/config/daemon-config/src/files.rs",
        "stores the options of the configuration folder, as the original does",
    ),
    ("cells/config/daemon-config/src/names.rs", "shows all options under the original's names"),
    (
        "cells/config/daemon-config/src/runtime.rs",
        "follows options of several cells that the API changes under other names",
    ),
    (
        "cells/config/daemon-config/src/spec.rs",
        "options of several cells that the API changes under other names",
    ),
    ("cells/config/daemon-config/src/table.rs", "shows where each option comes from"),
    ("cells/infra/status/src/cell.rs", "asks whether an option was set"),
    ("operator/src/main.rs", "shows all options that are in force"),
    (
        "cells/operator/definitions/src/cell.rs",
        "asks which features of agents are on, which have kinds of their own",
    ),
    ("cells/endpoint/cni-config/src/cell.rs", "the plugin logs debug lines if the agent does"),
    (
        "cells/kubernetes/client/src/cell.rs",
        "reads which features are enabled: the server must know their kinds",
    ),
];

/// Tests of cells in a hive that poll in their own loops, and why. The others wait by
/// `TestHive::until`, which has a timeout and reports log and health.
const OWN_WAITS: &[(&str, &str)] = &[
    (
        "cells/infra/status/tests/liveness.rs",
        "probes as the kubelet makes them: the hive's runtime is what hangs",
    ),
    ("cells/statedb/script/tests/recorded.rs", "waits for what a script shows, which has the hive meanwhile"),
    ("hive/shell/tests/shell.rs", "clients that block a thread of their own, beside the hive's"),
];

/// Files that read the process's environment or command line, and why. Everything else is an option.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("agent/build.rs", "by which cargo passes target and profile to a build script"),
    ("agent/src/main.rs", "the home folder, where the configuration file may be"),
    ("cells/infra/api/client/src/address.rs", "`CILIUM_SOCK`, by which all clients of Cilium find the agent"),
    (
        "cells/config/sources/src/build.rs",
        "`K8S_NODE_NAME` and `CILIUM_K8S_NAMESPACE`, as the defaults of the command `build-config`",
    ),
    (
        "cells/kubernetes/client/src/cell.rs",
        "`KUBERNETES_SERVICE_HOST` and `_PORT`, by which all pods find the API server",
    ),
    (
        "cells/node/local/src/host.rs",
        "`K8S_NODE_NAME`, the name that Kubernetes gives; no option of the original",
    ),
    (
        "cells/infra/metrics/src/feature.rs",
        "`CILIUM_FEATURE_METRICS_WITH_DEFAULTS`, by which the original asks for gauges of features that are off",
    ),
    ("cli/src/commands/health.rs", "`CILIUM_HEALTH_SOCK`, by which clients find the health API"),
    ("cli/src/main.rs", "the name by which the tool was called, which selects its function"),
    ("cni/src/invocation.rs", "the variables of the CNI specification"),
    ("cni/src/main.rs", "a plugin has no options; steps of the pod have variables of Cilium's image"),
    ("hive/src/builder.rs", "flags and variables of options: the mechanism itself"),
    ("hive/src/program.rs", "the program's name"),
];

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

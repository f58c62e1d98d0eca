//! The objects of a node at a quiet moment, compared with those at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bpf::{MapType, RawMap};
use serde_json::Value;

use crate::Node;

/// Maps that are not part of the inventory: counters of the node, with an entry for each reason that has occurred.
const COUNTERS: [&str; 2] = ["cilium_metrics", "cilium_ratelimit_metrics"];

/// Tables in which the number of rows may vary without a leak. Identities without an endpoint are
/// kept for 15 minutes, one for each of the few sets of labels that the pods here have; neighbours are the kernel's.
const UNSTEADY: [&str; 2] = ["identities", "neighbors"];

/// Files and folders that are made when there is something to write for the first time, and stay.
const LASTING: [&str; 9] = [
    "state/identities.json",
    "state/service-ids.json",
    // Folders of last good versions; what is in them goes with what it is of.
    "state/manifests",
    "state/manifests/cluster-folder",
    "state/policies",
    // The configurations of the two runs before.
    "state/agent-runtime-config-1.json",
    "state/agent-runtime-config-2.json",
    "state/viper-agent-config-1.yaml",
    "state/viper-agent-config-2.yaml",
];

/// Objects by kind, each as a unique text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory(BTreeMap<String, BTreeSet<String>>);

impl Inventory {
    /// Everything that the node has now; an agent must be running.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn of(node: &Node) -> Result<Inventory, String> {
        let mut all = Inventory::default();
        let run = node.sandbox().run_dir();
        let files = names_below(&run).into_iter().filter(|name| !LASTING.contains(&name.as_str()));
        all.put("file", files);
        let pins = names_below(&node.sandbox().bpf_root());
        all.put("number of pins", [pins.len().to_string()]);
        all.put("pin", pins.iter().map(|name| of_any_start(name)));
        for (kind, line) in [
            ("link", "ip -o link show"),
            ("address", "ip -o addr show"),
            ("route", "ip -o -4 route show table all"),
            ("route of IPv6", "ip -o -6 route show table all"),
            ("rule", "ip rule show"),
            ("rule of IPv6", "ip -6 rule show"),
            ("program on a link", "bpftool net show"),
            ("rule of nftables", "nft list ruleset"),
        ] {
            let text = node.host().exec(line).map_err(|error| error.to_string())?;
            all.put(kind, text.lines().enumerate().map(|(at, line)| settled(kind, at, line)));
        }
        all.maps(&node.pin("x"))?;
        all.tables(node)?;
        all.put("process", processes(node));
        Ok(all)
    }

    /// The objects of one kind.
    pub fn items(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.0.get(kind).into_iter().flatten().map(String::as_str)
    }

    fn put(&mut self, kind: &str, items: impl IntoIterator<Item = String>) {
        self.0.entry(kind.to_owned()).or_default().extend(items);
    }

    /// The keys of every pinned map; of an array those places that are not zero.
    fn maps(&mut self, beside: &Path) -> Result<(), String> {
        let folder = beside.parent().unwrap_or(beside);
        for entry in fs::read_dir(folder).map_err(|error| error.to_string())?.flatten() {
            let name = of_any_start(&entry.file_name().to_string_lossy());
            if COUNTERS.contains(&name.as_str()) {
                continue;
            }
            let Ok(map) = RawMap::open(&entry.path()) else { continue };
            let array = matches!(map.layout().map_type, MapType::Array | MapType::PerCpuArray);
            let mut keys = Vec::new();
            // Maps of programs and of rings cannot be read by userspace; they have no entries.
            let _ = map.scan(|some, values| {
                let rows = some.chunks_exact(map.layout().key_size as usize);
                for (key, value) in rows.zip(values.chunks_exact(map.value_len())) {
                    if !array || value.iter().any(|&byte| byte != 0) {
                        keys.push(key.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")));
                    }
                }
            });
            self.put(&format!("row of {name}"), keys);
        }
        Ok(())
    }

    /// Rows of the agent's tables, as many as there are.
    fn tables(&mut self, node: &Node) -> Result<(), String> {
        for (table, rows) in dump(node)? {
            if !UNSTEADY.contains(&table.as_str()) {
                let rows = rows.iter().filter(|row| !rests(row)).count();
                self.put(&format!("row of table {table}"), (0..rows).map(|row| format!("{row:06}")));
            }
        }
        Ok(())
    }

    /// How many addresses rest.
    pub(super) fn resting(node: &Node) -> Result<usize, String> {
        Ok(dump(node)?.iter().flat_map(|(_, rows)| rows).filter(|row| rests(row)).count())
    }

    /// Returns the objects that were added and those that are missing, one text each.
    #[must_use]
    pub fn beyond(&self, start: &Inventory) -> Vec<String> {
        let mut found = Vec::new();
        let none = BTreeSet::new();
        for kind in self.0.keys().chain(start.0.keys()).collect::<BTreeSet<_>>() {
            let (now, then) = (self.0.get(kind).unwrap_or(&none), start.0.get(kind).unwrap_or(&none));
            found.extend(now.difference(then).map(|item| format!("leaked {kind}: {item}")));
            found.extend(then.difference(now).map(|item| format!("lost {kind}: {item}")));
        }
        found
    }

    /// How many there are of each kind.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Whether there is nothing at all, which cannot be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Another thing of a kind, to see that it would be found.
    #[must_use]
    pub fn with(mut self, kind: &str, item: &str) -> Inventory {
        self.put(kind, [item.to_owned()]);
        self
    }
}

/// The agent's tables with their rows.
fn dump(node: &Node) -> Result<Vec<(String, Vec<Value>)>, String> {
    let answer = node.request("GET", "/statedb/dump", None).map_err(|error| error.to_string())?;
    let dump: BTreeMap<String, Value> =
        serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
    let rows = |rows: Value| rows.as_array().cloned().unwrap_or_default();
    Ok(dump.into_iter().map(|(table, all)| (table, rows(all))).collect())
}

/// An address that was given back rests for half a minute before it is given again.
fn rests(row: &Value) -> bool {
    !row["Lease"]["Resting"].is_null()
}

/// A line without what changes by itself. Lines that say the same in different places are different things.
fn settled(kind: &str, at: usize, line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept: Vec<&str> = Vec::new();
    while let Some(word) = words.next() {
        match word {
            // Numbers and states of time, and those of programs, which another start replaces.
            "valid_lft" | "preferred_lft" | "expires" | "prog_id" | "link_id" | "id" => drop(words.next()),
            "qlen" | "packets" | "bytes" => drop(words.next()),
            _ => kept.push(word),
        }
    }
    match kind {
        "rule of nftables" => format!("{at:03} {}", kept.join(" ")),
        _ => kept.join(" "),
    }
}

/// A pin's name without the number that is another after each start.
fn of_any_start(name: &str) -> String {
    const SHARED: &str = "cilium_calls_shared_";
    match name.find(SHARED) {
        Some(at) => format!("{}{SHARED}N", &name[..at]),
        None => name.to_owned(),
    }
}

/// Files and folders below a folder, by path.
fn names_below(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path: PathBuf = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path.clone());
            }
            names.insert(path.strip_prefix(folder).unwrap_or(&path).display().to_string());
        }
    }
    names
}

/// Processes in the node's network namespace other than the agent, by name: plugins that never ended.
fn processes(node: &Node) -> BTreeSet<String> {
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let agent = node.agent_pid().to_string();
    let (host, own) = (of(&agent), std::process::id().to_string());
    let others = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = others.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != agent && *pid != own)
        .filter(|pid| host.is_some() && of(pid) == host)
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} {pid}", name.trim())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_and_what_is_less_is_told() {
        let start = Inventory::default().with("link", "eth0").with("row of a", "00");
        assert!(start.beyond(&start).is_empty());
        let now = Inventory::default().with("link", "eth0").with("link", "lxc1");
        assert_eq!(now.beyond(&start), ["leaked link: lxc1", "lost row of a: 00"]);
        assert_eq!((now.len(), now.is_empty()), (2, false));
    }

    #[test]
    fn lines_are_compared_without_their_times_and_numbers() {
        let line = "2: eth0 inet 10.0.0.1/24 valid_lft 100sec preferred_lft 5sec";
        assert_eq!(settled("address", 0, line), "2: eth0 inet 10.0.0.1/24");
        assert_eq!(
            settled("program on a link", 1, "eth0(2) tcx/ingress x prog_id 7 link_id 8"),
            "eth0(2) tcx/ingress x"
        );
    }
}

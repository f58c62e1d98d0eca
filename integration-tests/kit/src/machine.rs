//! The state of the machine that tests must not touch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sysctls with values that change on their own.
const VOLATILE: &[&str] = &[
    "fs/binfmt_misc",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-nr",
    "fs/inode-state",
    "fs/aio-nr",
    "fs/epoll",
    // Counters, also of `sync`.
    "fs/quota",
    "kernel/keys",
    "kernel/ns_last_pid",
    "kernel/pty/nr",
    "kernel/random",
    "net/netfilter/nf_conntrack_count",
    "vm/stat_refresh",
];

/// Sysctls, links, addresses, routes, rules, queueing disciplines, cgroup root
/// and BPF file system of the namespaces that the calling thread is in; the
/// folders in the root of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    facts: BTreeMap<String, String>,
}

impl MachineState {
    /// Reads everything, about 50 ms.
    #[must_use]
    pub fn capture() -> Self {
        let mut facts = BTreeMap::new();
        for tree in ["fs", "kernel", "net", "vm"] {
            sysctls(Path::new("/proc/sys"), Path::new(tree), &mut facts);
        }
        for (name, line) in [
            ("links", "ip -o -d link show"),
            ("addresses", "ip -o addr show"),
            ("routes v4", "ip -o -4 route show table all"),
            ("routes v6", "ip -o -6 route show table all"),
            ("rules v4", "ip -4 rule show"),
            ("rules v6", "ip -6 rule show"),
            ("qdiscs", "tc qdisc show"),
            ("bpf on links", "bpftool net show"),
        ] {
            for (number, text) in output(line).into_iter().enumerate() {
                facts.insert(format!("{name} {number:04}"), text);
            }
        }
        if let Some(root) = cgroup_root() {
            let names: Vec<String> = folder(&root).into_iter().filter(|name| !is_in_use(name)).collect();
            facts.insert("cgroups".to_owned(), names.join(" "));
        }
        // The root is read because a program that is started without a home directory may create folders there.
        for path in ["/sys/fs/bpf", "/"] {
            facts.insert(path.to_owned(), folder(Path::new(path)).join(" "));
        }
        Self { facts }
    }

    /// Returns the differences between this state and `after`, one line each; empty if nothing was touched.
    #[must_use]
    pub fn changes(&self, after: &Self) -> Vec<String> {
        let keys = self.facts.keys().chain(after.facts.keys());
        let mut changed: Vec<String> = keys
            .filter(|key| self.facts.get(*key) != after.facts.get(*key))
            .map(|key| {
                let show = |state: &Self| match state.facts.get(key) {
                    Some(value) => format!("'{value}'"),
                    None => "nothing".to_owned(),
                };
                format!("{key}: {} -> {}", show(self), show(after))
            })
            .collect();
        changed.sort();
        changed.dedup();
        changed
    }

    /// Returns every fact as its subject and value.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.facts.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number of facts, to check that a capture is not empty.
    #[must_use]
    pub fn len(&self) -> usize {
        self.facts.len()
    }

    /// Whether nothing could be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }
}

/// Whether a cgroup belongs to a sandbox or playground of a process that runs: of a test beside this one.
fn is_in_use(cgroup: &str) -> bool {
    let owner = cgroup.strip_prefix("apiary-").map(|name| name.strip_prefix("playground-").unwrap_or(name));
    let process = owner.and_then(|owner| owner.split('-').next()).unwrap_or_default();
    !process.is_empty() && Path::new("/proc").join(process).is_dir()
}

/// Returns the mount point of the machine's cgroup v2 hierarchy.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, target, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target))
    })
}

fn sysctls(root: &Path, below: &Path, facts: &mut BTreeMap<String, String>) {
    if VOLATILE.iter().any(|prefix| below.starts_with(prefix)) {
        return;
    }
    let Ok(entries) = fs::read_dir(root.join(below)) else {
        return;
    };
    for entry in entries.flatten() {
        let key = below.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => sysctls(root, &key, facts),
            _ if VOLATILE.iter().any(|prefix| key.starts_with(prefix)) => {}
            _ => {
                // Write-only keys and keys of absent hardware read as errors.
                if let Ok(value) = fs::read_to_string(root.join(&key)) {
                    facts.insert(key.display().to_string(), value.trim_end().to_owned());
                }
            }
        }
    }
}

/// Returns the lines of a program's output, with the lifetimes that count down removed.
fn output(line: &str) -> Vec<String> {
    let mut words = line.split(' ');
    let Some(program) = words.next() else {
        return Vec::new();
    };
    let Ok(output) = Command::new(program).args(words).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout).lines().map(without_lifetimes).collect()
}

/// Drops `expires 1799sec`, `valid_lft 86000sec`, `preferred_lft 86000sec`.
fn without_lifetimes(line: &str) -> String {
    let mut kept = Vec::new();
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        if matches!(word, "expires" | "valid_lft" | "preferred_lft") {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

fn folder(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(facts: &[(&str, &str)]) -> MachineState {
        let facts = facts.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        MachineState { facts }
    }

    #[test]
    fn changes_name_what_changed() {
        let before = state(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let after = state(&[("a", "1"), ("b", "4"), ("d", "5")]);
        assert_eq!(before.changes(&after), ["b: '2' -> '4'", "c: '3' -> nothing", "d: nothing -> '5'"]);
        assert!(before.changes(&before).is_empty());
    }

    #[test]
    fn lifetimes_do_not_count() {
        assert_eq!(
            without_lifetimes("2: eth0 inet 10.0.0.1/24 valid_lft 100sec preferred_lft 50sec"),
            "2: eth0 inet 10.0.0.1/24"
        );
    }
}

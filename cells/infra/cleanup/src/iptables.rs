//! Cilium's chains in the tables of iptables. The system's own tools list and remove them, as they support both
//! backends: legacy and nftables.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Name prefixes of Cilium's chains: those in use, and those that it is replacing.
const PREFIXES: [&str; 2] = ["CILIUM_", "OLD_CILIUM_"];
/// The tools of a family, and the file in which the kernel lists legacy tables, which only the `-legacy` tools see.
const FAMILIES: [(&str, &str); 2] =
    [("iptables", "/proc/self/net/ip_tables_names"), ("ip6tables", "/proc/self/net/ip6_tables_names")];

/// Chains of Cilium in one table, with the rules of other chains that jump to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    tool: String,
    table: String,
    names: BTreeSet<String>,
    /// Rules in the form of `iptables-save`: `-A INPUT ... -j CILIUM_INPUT`.
    feeders: Vec<String>,
}

impl fmt::Display for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let (tool, table, feeders) = (&self.tool, &self.table, self.feeders.len());
        write!(f, "{tool} table {table}: chains {} and {feeders} rules that lead to them", names.join(" "))
    }
}

impl Chains {
    /// Removes the chains that exist now, in one transaction per table.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let found = saved(&self.tool)?.unwrap_or_default();
        match parse(&self.tool, &found).into_iter().find(|now| now.table == self.table) {
            Some(now) => restore(&self.tool, &now.script()),
            None => Ok(()),
        }
    }

    /// Returns the input of `iptables-restore`.
    fn script(&self) -> String {
        let feeders = self.feeders.iter().map(|rule| rule.replacen("-A", "-D", 1));
        // A chain can only be deleted once no rule refers to it, so flush all of them before deleting the first.
        let flushed = self.names.iter().map(|name| format!("-F {name}"));
        let removed = self.names.iter().map(|name| format!("-X {name}"));
        let lines: Vec<String> = feeders.chain(flushed).chain(removed).collect();
        format!("*{}\n{}\nCOMMIT\n", self.table, lines.join("\n"))
    }
}

/// Returns all chains of Cilium, by table. Tables that cannot be listed are logged and skipped.
pub(crate) fn find() -> Vec<Chains> {
    let mut found = Vec::new();
    for (family, legacy_tables) in FAMILIES {
        let mut tools = vec![format!("{family}-nft")];
        // Listing legacy tables loads their kernel modules, so skip that where none is in use.
        if fs::read_to_string(legacy_tables).is_ok_and(|tables| !tables.trim().is_empty()) {
            tools.push(format!("{family}-legacy"));
        }
        let mut is_installed = false;
        // A system with a single backend has only the plain name.
        for tool in tools.into_iter().chain([family.to_owned()]) {
            if tool == family && is_installed {
                break;
            }
            match saved(&tool) {
                Ok(None) => continue,
                Ok(Some(text)) => found.extend(parse(&tool, &text)),
                // Not fatal: the other leftovers can be removed without it, for instance on a kernel without these
                // tables.
                Err(error) => tracing::warn!(%error, "Unable to list chains of {tool}, skipping them"),
            }
            is_installed = true;
        }
        if !is_installed {
            tracing::warn!(
                "{family} is not installed: chains CILIUM_* that Cilium may have left are not removed"
            );
        }
    }
    found
}

/// Parses Cilium's chains from the output of `iptables-save`.
fn parse(tool: &str, text: &str) -> Vec<Chains> {
    let mut tables: Vec<Chains> = Vec::new();
    for line in text.lines() {
        if let Some(table) = line.strip_prefix('*') {
            let (tool, table) = (tool.to_owned(), table.to_owned());
            tables.push(Chains { tool, table, names: BTreeSet::new(), feeders: Vec::new() });
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if is_ours(chain) {
                table.names.insert(chain.to_owned());
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = rule.split(' ');
            let of_ours = words.next().is_some_and(is_ours);
            let leads = words.any(|word| matches!(word, "-j" | "-g")) && words.next().is_some_and(is_ours);
            if leads && !of_ours {
                table.feeders.push(line.to_owned());
            }
        }
    }
    tables.retain(|table| !table.names.is_empty());
    tables
}

fn is_ours(chain: &str) -> bool {
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// Returns all tables as text; `None` if the tool is not installed.
fn saved(tool: &str) -> Result<Option<String>, Error> {
    let output = match Command::new(format!("{tool}-save")).stdin(Stdio::null()).output() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        output => output.map_err(|e| failed(tool, &e))?,
    };
    match output.status.success() {
        true => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        false => Err(failed(tool, &String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn restore(tool: &str, script: &str) -> Result<(), Error> {
    let mut command = Command::new(format!("{tool}-restore"));
    // --noflush keeps the other chains. --wait: another process may hold the xtables lock.
    command
        .args(["--noflush", "--wait=5"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(tool, &e))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(|e| failed(tool, &e))?;
    }
    let output = child.wait_with_output().map_err(|e| failed(tool, &e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(tool, &String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn failed(tool: &str, said: &dyn fmt::Display) -> Error {
    Error::Iptables { tool: tool.to_owned(), said: said.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ciliums_chains_and_rules_that_jump_to_them_are_found() {
        let text = r#"# Generated by iptables-save
*nat
:PREROUTING ACCEPT [2:168]
-A PREROUTING -j DNAT --to-destination 10.0.0.1
COMMIT
*filter
:INPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:CILIUM_INPUT - [0:0]
:OLD_CILIUM_INPUT - [0:0]
-A INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
-A INPUT -m comment --comment "about CILIUM_INPUT" -j ACCEPT
-A KUBE-FORWARD -g OLD_CILIUM_INPUT
-A CILIUM_INPUT -j OLD_CILIUM_INPUT
COMMIT
"#;
        let found = parse("iptables", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].to_string(),
            "iptables table filter: chains CILIUM_INPUT OLD_CILIUM_INPUT and 2 rules that lead to them"
        );
        assert_eq!(
            found[0].script(),
            "*filter\n\
             -D INPUT -m comment --comment \"cilium-feeder: CILIUM_INPUT\" -j CILIUM_INPUT\n\
             -D KUBE-FORWARD -g OLD_CILIUM_INPUT\n\
             -F CILIUM_INPUT\n-F OLD_CILIUM_INPUT\n-X CILIUM_INPUT\n-X OLD_CILIUM_INPUT\nCOMMIT\n"
        );
    }
}

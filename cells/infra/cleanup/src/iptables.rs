//! Cilium's chains in the tables of iptables. The system's own tools list and remove them: they know both forms
//! that the kernel has of these tables.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::error::Error;

/// How Cilium's chains begin: those in use, and those that it is replacing.
const PREFIXES: [&str; 2] = ["CILIUM_", "OLD_CILIUM_"];
/// The tools of a family, and where the kernel lists tables of the older form, which only one of them sees.
const FAMILIES: [(&str, &str); 2] =
    [("iptables", "/proc/self/net/ip_tables_names"), ("ip6tables", "/proc/self/net/ip6_tables_names")];

/// Chains of Cilium in one table, with the rules of other chains that lead to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    tool: String,
    table: String,
    names: BTreeSet<String>,
    /// As the tool lists them: `-A INPUT ... -j CILIUM_INPUT`.
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
    /// Removes what is there now, of one table all or nothing.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let found = saved(&self.tool)?.unwrap_or_default();
        match parse(&self.tool, &found).into_iter().find(|now| now.table == self.table) {
            Some(now) => restore(&self.tool, &now.script()),
            None => Ok(()),
        }
    }

    /// The input of `iptables-restore`.
    fn script(&self) -> String {
        let feeders = self.feeders.iter().map(|rule| rule.replacen("-A", "-D", 1));
        // A chain can only go when no rule leads to it, also from another of them.
        let flushed = self.names.iter().map(|name| format!("-F {name}"));
        let removed = self.names.iter().map(|name| format!("-X {name}"));
        let lines: Vec<String> = feeders.chain(flushed).chain(removed).collect();
        format!("*{}\n{}\nCOMMIT\n", self.table, lines.join("\n"))
    }
}

/// All chains of Cilium, by table. What cannot be listed is reported and left.
pub(crate) fn find() -> Vec<Chains> {
    let mut found = Vec::new();
    for (family, legacy_tables) in FAMILIES {
        let mut tools = vec![format!("{family}-nft")];
        // Asking it loads modules of the kernel: not where they are not used.
        if fs::read_to_string(legacy_tables).is_ok_and(|tables| !tables.trim().is_empty()) {
            tools.push(format!("{family}-legacy"));
        }
        let mut is_installed = false;
        // Where there is but one kind, it has the plain name.
        for tool in tools.into_iter().chain([family.to_owned()]) {
            if tool == family && is_installed {
                break;
            }
            match saved(&tool) {
                Ok(None) => continue,
                Ok(Some(text)) => found.extend(parse(&tool, &text)),
                // All else can go without it, as on a kernel that has no such tables.
                Err(error) => tracing::warn!(%error, "Chains of {tool} are not looked for"),
            }
            is_installed = true;
        }
        if !is_installed {
            tracing::warn!(
                "{family} is not installed: chains CILIUM_* that the original may have left are not looked for"
            );
        }
    }
    found
}

/// Cilium's chains in what `iptables-save` prints.
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

/// All tables as text; `None` if the tool is not installed.
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
    // Another process may be changing the same tables.
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
    fn chains_and_what_leads_to_them_are_found_and_nothing_else() {
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

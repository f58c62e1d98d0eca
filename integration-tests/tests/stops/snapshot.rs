//! All state that a stop could leave, as lines that can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use integration_tests::Node;
use serde_json::Value;

use crate::kernel;
use crate::names::{Names, rows};

/// Lines by where they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<String, BTreeSet<String>>);

impl Snapshot {
    /// Tables, maps, programs, files, links and routes of a node with a running agent.
    pub(crate) fn take(node: &Node) -> Result<Snapshot, String> {
        Ok(Self::take_if(node, |_| true)?.unwrap_or_default())
    }

    /// The same if the tables equal those of another snapshot. They change last and are cheapest to read: poll them
    /// first.
    pub(crate) fn take_like(node: &Node, expected: &Snapshot) -> Result<Option<Snapshot>, String> {
        let of_tables = |snapshot: &Snapshot| {
            snapshot.0.clone().into_iter().filter(|(section, _)| section.starts_with("table ")).collect()
        };
        let tables: BTreeMap<_, _> = of_tables(expected);
        Self::take_if(node, |found| found.0 == tables)
    }

    /// The rest only if the tables are as wanted.
    fn take_if(node: &Node, wanted: impl Fn(&Snapshot) -> bool) -> Result<Option<Snapshot>, String> {
        let text = |e: std::io::Error| e.to_string();
        let answer = node.request("GET", "/statedb/dump", None).map_err(text)?;
        let tables: Value = serde_json::from_str(&answer.body).map_err(|e| e.to_string())?;
        let ip = |arguments: &str| -> Result<Value, String> {
            let json = node.host().ip(arguments).map_err(text)?;
            // No rows are no text for some versions.
            if json.trim().is_empty() {
                Ok(Value::Null)
            } else {
                serde_json::from_str(&json).map_err(|e| e.to_string())
            }
        };
        let links = ip("-j -d addr")?;
        let names = Names::new(&tables, &links);
        let mut snapshot = Snapshot::default();
        snapshot.tables(&tables, &names);
        if !wanted(&snapshot) {
            return Ok(None);
        }
        snapshot.links(&links, &names);
        for (family, arguments) in
            [("v4", "-4 -j route show table all"), ("v6", "-6 -j route show table all")]
        {
            snapshot.routes(family, &ip(arguments)?, &names);
        }
        if test_kit::has_command("nft") {
            let rules = node.host().exec("nft -s list ruleset").map_err(text)?;
            rules.lines().for_each(|line| snapshot.line("nftables", line));
        }
        kernel::take(node, &names, &mut snapshot).map_err(|e| e.to_string())?;
        let run = node.sandbox().run_dir();
        snapshot.files(&run, &run, &names).map_err(text)?;
        Ok(Some(snapshot))
    }

    pub(crate) fn line(&mut self, section: &str, line: impl Into<String>) {
        self.0.entry(section.to_owned()).or_default().insert(line.into());
    }

    fn tables(&mut self, tables: &Value, names: &Names) {
        for (table, all) in tables.as_object().into_iter().flatten() {
            for row in all.as_array().into_iter().flatten() {
                if let Some(line) = self::row(table, row, names) {
                    self.line(&format!("table {table}"), line);
                }
            }
        }
        if rows(tables, "endpoint-policies").iter().any(|row| row["Realized"] != row["Revision"]) {
            self.line("table endpoint-policies", "not all are realized");
        }
    }

    fn links(&mut self, links: &Value, names: &Names) {
        for link in links.as_array().into_iter().flatten() {
            let mut line = String::new();
            for field in ["ifname", "address", "mtu", "operstate", "txqlen", "altnames"] {
                let _ = write!(line, " {field}={}", names.of(&link[field].to_string()));
            }
            let _ = write!(line, " up={}", link["flags"].to_string().contains("\"UP\""));
            for address in link["addr_info"].as_array().into_iter().flatten() {
                // Made by the kernel from the link's MAC.
                if address["scope"] != "link" {
                    let _ =
                        write!(line, " {}/{}", names.of(&address["local"].to_string()), address["prefixlen"]);
                }
            }
            self.line("links", line);
        }
    }

    fn routes(&mut self, family: &str, routes: &Value, names: &Names) {
        for route in routes.as_array().into_iter().flatten() {
            let destination = route["dst"].as_str().unwrap_or_default();
            // The kernel makes these for each link that is up.
            if destination.starts_with("fe80:") || destination.starts_with("ff00:") {
                continue;
            }
            let fields = ["dst", "gateway", "dev", "table", "protocol", "scope", "prefsrc", "metric", "type"];
            let fields = fields.map(|field| format!("{field}={}", names.of(&route[field].to_string())));
            self.line(&format!("routes {family}"), fields.join(" "));
        }
    }

    /// Every file below a folder: its name, and its content where that is the agent's memory.
    fn files(&mut self, root: &Path, folder: &Path, names: &Names) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = names.of(path.strip_prefix(root).unwrap_or(&path).to_str().unwrap_or_default());
            if path.is_dir() {
                self.line("files", format!("{name}/"));
                self.files(root, &path, names)?;
                continue;
            }
            // Configurations and health history of earlier starts, of which some are kept.
            let old = ["agent-runtime-config-", "viper-agent-config-", "cilium-agent-health-history"]
                .map(|begin| format!("state/{begin}"));
            if old.iter().any(|begin| name.starts_with(begin)) {
                continue;
            }
            self.line("files", name.clone());
            let json = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
            match (json, name.rsplit('/').next()) {
                (Some(json), Some("ep_config.json")) => {
                    self.line(&format!("file {name}"), endpoint(&json, names));
                }
                (None, Some("ep_config.json" | "identities.json" | "local_allocator_state.json")) => {
                    self.line(&format!("file {name}"), "is no JSON");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the differences by section: missing and unexpected lines.
    pub(crate) fn diff(&self, found: &Snapshot) -> String {
        let mut text = String::new();
        let sections: BTreeSet<&String> = self.0.keys().chain(found.0.keys()).collect();
        let none = BTreeSet::new();
        for section in sections {
            let expected = self.0.get(section).unwrap_or(&none);
            let found = found.0.get(section).unwrap_or(&none);
            if expected != found {
                let _ = writeln!(text, "{section}:");
                expected.difference(found).for_each(|line| text.push_str(&format!("  - {line}\n")));
                found.difference(expected).for_each(|line| text.push_str(&format!("  + {line}\n")));
            }
        }
        text
    }
}

/// A row of a table as a line; `None` for what legitimately differs between runs.
fn row(table: &str, row: &Value, names: &Names) -> Option<String> {
    Some(match table {
        // The kernel's own, seen with `ip` as well; neighbours come and go with packets.
        "neighbors" | "routes" => return None,
        // Counts and times of reports; an unhealthy agent shows in its status.
        "health" => return None,
        // The contents of the configuration's files, with the folder of this node.
        "configuration" => return None,
        "devices" => {
            format!("{} {} {}", row["Name"], names.of(&row["HardwareAddr"].to_string()), row["Selected"])
        }
        // An unused identity is quarantined in memory only, for packets in flight.
        "identities" if row["Unused"] == true => return None,
        // Reserved identities are never allocated, so their users are not compared.
        "identities" if row["Id"].as_u64() < Some(256) => row["Labels"].to_string(),
        "identities" => format!("{} {}", row["Labels"], names.json("Users", &row["Users"])),
        // In memory only: a released address is quarantined, an unclaimed one expires.
        "ipam" if row["Lease"]["Resting"].is_object() || row["Lease"]["Expiring"].is_object() => return None,
        // The owner is only a text, by which a start marks a restored address.
        "ipam" => format!(
            "{} {} {}",
            names.of(&row["Address"].to_string()),
            row["Owner"].as_str().unwrap_or_default().trim_end_matches(" [restored]"),
            names.json("Lease", &row["Lease"])
        ),
        // The table is of what a start has found; maps of endpoints come and go behind it.
        "bpf-maps" if row["name"].as_str().is_some_and(|name| name.starts_with("cilium_policy_v2_")) => {
            return None;
        }
        // Numbers and places of maps differ, the kernel's side is compared by content.
        "bpf-maps" => {
            let fields =
                ["map_type", "key_size", "value_size", "max_entries", "flags"].map(|f| row[f].to_string());
            format!("{} {}", digits(&names.of(row["name"].as_str().unwrap_or_default())), fields.join(" "))
        }
        "endpoints" => {
            let record = endpoint(&row["Record"], names);
            let identity = names.identity(row["AppliedIdentity"].as_u64().unwrap_or(0));
            format!("{record} {} {identity} {} {}", row["NamedPorts"], row["State"], row["Status"]["kind"])
        }
        "endpoint-policies" => {
            let mut row = row.clone();
            row["Realized"].take();
            names.json("", &row).to_string()
        }
        // The policy before is that of this run only.
        "policy-computations" => {
            let mut row = row.clone();
            row["OldPolicy"].take();
            names.json("", &row).to_string()
        }
        _ => {
            let mut row = row.clone();
            // Which frontend has which number shows in the maps; a status has a number for its waiters.
            row.as_object_mut()?.remove("ID");
            if let Some(status) = row["Status"].as_object_mut() {
                status.remove("id");
            } else if row["Status"].is_null() {
                row.as_object_mut()?.remove("Status");
            }
            names.json("", &row).to_string()
        }
    })
}

/// An endpoint's record, in the table or in its file.
fn endpoint(record: &Value, names: &Names) -> String {
    let mut record = record.clone();
    if let Some(fields) = record.as_object_mut() {
        let id = fields.remove("ID").and_then(|id| id.as_u64());
        fields.insert("name".into(), names.endpoint(id.unwrap_or(0)).into());
    }
    names.json("", &record).to_string()
}

/// A name with a trailing number that differs each time.
pub(crate) fn digits(name: &str) -> String {
    match name.strip_prefix("cilium_calls_shared_") {
        Some(_) => "cilium_calls_shared_N".to_owned(),
        None => name.to_owned(),
    }
}

//! The commands `policy/mapstate/*` of scripts and of the shell: the rows of endpoints' policies with the rules that they
//! come from, and the rules with most rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hive::prelude::*;
use hive_command::{Call, Command, Flag, FlagKind, Output, render};
use ipcache::Entry;
use policy_engine::{Direction, Key, L4, Reason, Resolved, Row};
use serde::Serialize;
use statedb::Table;

use crate::api::rest::protocol_name;
use crate::api::why::endpoint_of;
use crate::model::logs::LogTexts;
use crate::rounds::state::Shared;

/// The inputs of the commands.
#[derive(Clone)]
pub(crate) struct MapState {
    pub(crate) shared: Shared,
    pub(crate) ipcache: Arc<Table<Entry>>,
}

/// An endpoint with the rows of its policy.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Endpoint<T> {
    #[serde(rename = "ID")]
    id: u16,
    namespace: String,
    name: String,
    #[serde(flatten)]
    rows: T,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entries {
    entries: Vec<EntryRow>,
}

/// A row, in Cilium's terms.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct EntryRow {
    direction: &'static str,
    identity: u32,
    proto_port: String,
    priority: u32,
    listener_priority: u32,
    verdict: &'static str,
    proxy_port: u16,
    cookie: u32,
    origins: Vec<Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Top {
    entries: usize,
    policies: usize,
    top: Vec<Count>,
}

/// The number of rows that the rules with these labels take part in.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Count {
    policy: Vec<String>,
    entries: usize,
}

impl MapState {
    pub(crate) fn commands(self) -> Members<Command> {
        let format = || Flag::new("format", FlagKind::Text, "table", "table or json").short('f');
        let of = self.clone();
        let entries =
            Command::new("policy/mapstate/entries", "list the policy of endpoints", move |call: Call| {
                let of = of.clone();
                async move {
                    let cookies = of.shared.lock().core.log_cookies().index();
                    let entries = |resolved: &Resolved| Entries { entries: rows(resolved, &cookies) };
                    let endpoints = of.endpoints(&call, entries)?;
                    print(&call, &endpoints, entries_table)
                }
            });
        let top = Command::new(
            "policy/mapstate/topk",
            "list the rules with most entries in the policy of endpoints",
            move |call: Call| {
                let of = self.clone();
                async move {
                    let least = usize::try_from(call.flags.int("count")).unwrap_or_default();
                    let most = usize::try_from(call.flags.int("num")).unwrap_or_default();
                    let endpoints = of.endpoints(&call, |resolved| top(resolved, least, most))?;
                    print(&call, &endpoints, top_table)
                }
            },
        );
        let number = |name, default: i64, help| Flag::new(name, FlagKind::Int, default, help);
        Members(vec![
            entries.takes("<pod-or-endpoint>+").flag(format()),
            top.takes("<pod-or-endpoint>")
                .flag(format())
                .flag(number("count", 0, "least number of entries of a rule").short('c'))
                .flag(number("num", 10, "greatest number of rules").short('n')),
        ])
    }

    /// Returns the endpoints that the arguments name, by id or by `namespace/name` of the pod.
    fn endpoints<T>(&self, call: &Call, rows: impl Fn(&Resolved) -> T) -> anyhow::Result<Vec<Endpoint<T>>> {
        let snapshot = self.ipcache.snapshot();
        let mut pods: BTreeMap<u16, (String, String)> = BTreeMap::new();
        for entry in self.ipcache.all(&snapshot) {
            let pod = entry.winner().mapping.pod();
            if let Some((endpoint, pod)) = endpoint_of(entry).zip(pod) {
                pods.insert(endpoint, (pod.namespace.to_string(), pod.name.to_string()));
            }
        }
        let computed: BTreeMap<u16, Arc<Resolved>> = self.shared.lock().core.resolved().into_iter().collect();
        let named = call.at_least(1)?.iter().map(|argument| {
            let id = match argument.split_once('/') {
                Some((namespace, name)) => {
                    let is = |(_, pod): &(&u16, &(String, String))| (&*pod.0, &*pod.1) == (namespace, name);
                    *pods.iter().find(is).with_context(|| format!("no endpoint is of pod {argument}"))?.0
                }
                None => {
                    argument.parse().with_context(|| format!("{argument:?} is neither an id nor a pod"))?
                }
            };
            let resolved = computed.get(&id).with_context(|| format!("endpoint {id} has no policy"))?;
            let (namespace, name) = pods.get(&id).cloned().unwrap_or_default();
            Ok(Endpoint { id, namespace, name, rows: rows(resolved) })
        });
        named.collect()
    }
}

/// Returns the output in the format of the call.
fn print<T: Serialize>(
    call: &Call,
    endpoints: &[Endpoint<T>],
    table: impl Fn(&Endpoint<T>) -> String,
) -> anyhow::Result<Output> {
    match call.flags.text("format") {
        "table" => Ok(Output::text(endpoints.iter().map(table).collect::<String>())),
        "json" => Ok(Output::text(render::json(&serde_json::to_string(endpoints)?))),
        other => bail!("unknown format {other:?}: table or json"),
    }
}

fn entries_table(endpoint: &Endpoint<Entries>) -> String {
    let entries = &endpoint.rows.entries;
    let mut text = heading(endpoint);
    let _ = writeln!(text, "\tEntries:{}", entries.len());
    let header = [
        "Direction",
        "Identity",
        "Proto+Port",
        "Priority",
        "ListenerPrio",
        "Verdict",
        "ProxyPort",
        "Cookie",
        "Origins",
    ];
    let row = |row: &EntryRow| {
        vec![
            row.direction.to_owned(),
            row.identity.to_string(),
            row.proto_port.clone(),
            row.priority.to_string(),
            row.listener_priority.to_string(),
            row.verdict.to_owned(),
            row.proxy_port.to_string(),
            row.cookie.to_string(),
            row.origins.iter().map(|labels| origin(labels)).collect::<Vec<_>>().join(", "),
        ]
    };
    let rows: Vec<_> =
        std::iter::once(header.map(str::to_owned).to_vec()).chain(entries.iter().map(row)).collect();
    text + &render::table(&rows) + "\n"
}

fn top_table(endpoint: &Endpoint<Top>) -> String {
    let Top { entries, policies, top } = &endpoint.rows;
    let mut text = heading(endpoint);
    let _ = writeln!(text, "\tEntries: {entries} (may not sum)\tPolicies: {policies}");
    let row = |count: &Count| vec![origin(&count.policy), count.entries.to_string()];
    let header = ["Policy", "Entries"].map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(header).chain(top.iter().map(row)).collect();
    text + &render::table(&rows) + "\n"
}

fn heading<T>(Endpoint { id, namespace, name, .. }: &Endpoint<T>) -> String {
    format!("ID: {id}\tNamespace: {namespace}\tName: {name}")
}

fn origin(labels: &[String]) -> String {
    format!("[{}]", labels.join(" "))
}

fn rows(resolved: &Resolved, cookies: &BTreeMap<LogTexts, u32>) -> Vec<EntryRow> {
    let row = |(key, row): (&Key, &Row)| EntryRow {
        direction: match key.direction {
            Direction::Ingress => "Ingress",
            Direction::Egress => "Egress",
        },
        identity: key.identity,
        proto_port: proto_port(key.l4),
        // The inverse of the row's precedence: 24 bits of priority, 8 of the redirect.
        priority: 0xff_ffff - (row.precedence >> 8),
        listener_priority: 0xff - (row.precedence & 0xff),
        verdict: if row.deny { "deny" } else { "allow" },
        proxy_port: row.proxy_port,
        cookie: cookies.get(&*resolved.logs(*row)).copied().unwrap_or_default(),
        origins: origins(resolved, key, row),
    };
    resolved.rows.iter().map(row).collect()
}

/// Returns the labels of the rules of a row, each list once.
fn origins(resolved: &Resolved, key: &Key, row: &Row) -> Vec<Vec<String>> {
    let added = |name: &str| vec![vec![format!("reserved:io.cilium.policy.derived-from={name}")]];
    let ingress = key.direction == Direction::Ingress;
    match resolved.reason(*row) {
        Reason::Rules(matches) => {
            let mut lists: Vec<Vec<String>> =
                matches.iter().map(|found| found.rule.labels.to_vec()).collect();
            lists.sort_unstable();
            lists.dedup();
            lists
        }
        Reason::Localhost => added("allow-localhost-ingress"),
        Reason::DefaultDeny => added(if ingress { "deny-any-ingress" } else { "deny-any-egress" }),
        Reason::NotEnforced | Reason::NoDefaultDeny => {
            added(if ingress { "allow-any-ingress" } else { "allow-any-egress" })
        }
    }
}

/// Returns the rules with most rows, at most `most` of them with at least `least` rows each.
fn top(resolved: &Resolved, least: usize, most: usize) -> Top {
    let mut counts: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for (key, row) in &resolved.rows {
        for labels in origins(resolved, key, row) {
            *counts.entry(labels).or_default() += 1;
        }
    }
    let policies = counts.len();
    let mut top: Vec<Count> = counts.into_iter().map(|(policy, entries)| Count { policy, entries }).collect();
    top.retain(|count| count.entries >= least);
    top.sort_by_key(|count| std::cmp::Reverse(count.entries));
    top.truncate(most);
    Top { entries: resolved.rows.len(), policies, top }
}

/// Returns protocol and ports: `*`, `TCP/*`, `TCP/80`, `TCP/8080-8095`.
fn proto_port(l4: L4) -> String {
    let protocol = protocol_name(l4.protocol);
    match l4.bits {
        0 => "*".to_owned(),
        8 => format!("{protocol}/*"),
        L4::EXACT => format!("{protocol}/{}", l4.port),
        bits => format!("{protocol}/{}-{}", l4.port, l4.port | u16::MAX >> (bits - 8)),
    }
}

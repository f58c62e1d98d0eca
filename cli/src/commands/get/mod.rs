//! `apiary get`: the agent's cluster objects from all sources, in the format of `kubectl get`.

mod age;
mod column;
mod columns;
mod core;
mod held;
mod print;
mod resources;
mod selector;

use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::bail;
use clap::Args;
use k8s_types::SmolStr;
use k8s_types::selector::LabelRequirements;
use serde_json::{Value, json};

use crate::client::Agent;
use crate::output::Format;
use held::{Held, Question};
use print::Table;
use resources::{Wanted, wanted};
use selector::MetadataSelector;

/// Options of `get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Pods and the node object are this node's alone, as the agent holds no others. Columns and objects have what the agent \
holds: of pods no READY and RESTARTS, nor what containers add to STATUS (CrashLoopBackOff, Completed); of nodes no \
VERSION and what is like it; of Cilium's policies no status, so no VALID; of services no external name. With -o json \
and yaml fields that the agent does not use are missing, those that it has are as the source has them. \
'apiary db watch TABLE' follows changes.")]
pub(crate) struct GetOptions {
    /// TYPE[,TYPE...] [NAME...], or TYPE/NAME...: types as kubectl names them, pods, po, svc, cnp, ciliumnodes
    #[arg(required = true, value_name = "TYPE [NAME]")]
    words: Vec<String>,
    /// The namespace
    #[arg(short, long, default_value = k8s_types::DEFAULT_NAMESPACE)]
    namespace: String,
    /// Objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Objects with these labels: KEY=VALUE, KEY!=VALUE, KEY, !KEY, 'KEY in (VALUE,...)', 'KEY notin (...)'
    #[arg(short = 'l', long)]
    selector: Option<LabelRequirements>,
    /// Objects by metadata.name and metadata.namespace
    #[arg(long)]
    field_selector: Option<MetadataSelector>,
    /// json | yaml | name | wide | jsonpath='{...}'
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Form>,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Labels as the last column
    #[arg(long)]
    show_labels: bool,
}

/// The form of `-o`.
#[derive(Clone, Debug)]
enum Form {
    Name,
    Wide,
    Data(Format),
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "name" => Ok(Self::Name),
            "wide" => Ok(Self::Wide),
            text => text.parse().map(Self::Data).map_err(|why| format!("{why}, name or wide")),
        }
    }
}

/// Prints objects. Returns exit code 1 if a named one does not exist.
pub(crate) fn run(agent: &mut Agent, options: &GetOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let wanted = wanted(&options.words)?;
    let by_name = wanted.iter().any(|wanted| !wanted.names.is_empty());
    if by_name && (options.selector.is_some() || options.field_selector.is_some()) {
        bail!("give names or a selector, not both");
    }
    let mut notes = io::stderr().lock();
    let mut found = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for wanted in &wanted {
        let (objects, missing) = ask(agent, options, wanted, &mut notes)?;
        for name in missing {
            let resource = resources::full_name(wanted.kind);
            writeln!(notes, "Error from server (NotFound): {resource} \"{name}\" not found")?;
            code = ExitCode::FAILURE;
        }
        found.push((wanted.kind, objects));
    }
    if let Some(Form::Data(format)) = &options.output {
        let one = wanted.iter().map(|wanted| wanted.names.len()).sum::<usize>() == 1;
        let mut objects: Vec<Value> =
            found.into_iter().flat_map(|(_, objects)| objects).map(|held| held.object).collect();
        match (one, objects.pop()) {
            (true, Some(object)) => print::data(&object, format, out)?,
            (true, None) => {}
            (false, last) => {
                objects.extend(last);
                let metadata = json!({"resourceVersion": ""});
                let list =
                    json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": objects});
                print::data(&list, format, out)?;
            }
        }
        return Ok(code);
    }
    if found.iter().all(|(_, objects)| objects.is_empty()) && code == ExitCode::SUCCESS {
        let namespaced = wanted.iter().all(|wanted| wanted.kind.namespaced()) && !options.all_namespaces;
        let place = if namespaced { format!(" in {} namespace.", options.namespace) } else { String::new() };
        writeln!(notes, "No resources found{place}")?;
    }
    found.retain(|(_, objects)| !objects.is_empty());
    if let Some(Form::Name) = options.output {
        let names =
            found.iter().flat_map(|(kind, objects)| objects.iter().map(|held| (*kind, &held.meta.name)));
        for (kind, name) in names {
            writeln!(out, "{}/{name}", resources::singular_name(kind))?;
        }
        return Ok(code);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let table = Table {
        wide: matches!(options.output, Some(Form::Wide)),
        namespaces: options.all_namespaces,
        headings: !options.no_headers,
        labels: options.show_labels,
        kinds: wanted.len() > 1,
        now: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
    };
    for (at, (kind, objects)) in found.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        table.print(*kind, objects, out)?;
    }
    Ok(code)
}

/// Requests the objects of a kind; returns them with the names that do not exist.
fn ask<'w>(
    agent: &mut Agent,
    options: &GetOptions,
    wanted: &'w Wanted,
    notes: &mut dyn Write,
) -> anyhow::Result<(Vec<Held>, Vec<&'w str>)> {
    let namespace =
        (wanted.kind.namespaced() && !options.all_namespaces).then_some(options.namespace.as_str());
    let ask = |name| Question { kind: wanted.kind, namespace, name };
    let mut lists = Vec::new();
    match wanted.names[..] {
        [] => lists.push((None, held::list(agent, &ask(None))?)),
        _ if options.all_namespaces && wanted.kind.namespaced() => {
            bail!("an object is named in one namespace: give -n instead of -A")
        }
        _ => {
            for name in &wanted.names {
                lists.push((Some(name.as_str()), held::list(agent, &ask(Some(name)))?));
            }
        }
    }
    let (mut objects, mut missing) = (Vec::new(), Vec::new());
    for (at, (name, list)) in lists.into_iter().enumerate() {
        if at == 0 && !list.pending.is_empty() {
            let sources = list.pending.join(", ");
            writeln!(
                notes,
                "Warning: the agent may not have all {} yet: it waits for {sources}",
                wanted.kind.plural()
            )?;
        }
        missing.extend(name.filter(|_| list.objects.is_empty()));
        objects.extend(list.objects);
    }
    objects.retain(|held: &Held| {
        let label = |key: &str| held.meta.labels.get(key).map(SmolStr::as_str);
        options.selector.as_ref().is_none_or(|selector| selector.matches(label))
            && options.field_selector.as_ref().is_none_or(|selector| selector.matches(&held.meta))
    });
    Ok((objects, missing))
}

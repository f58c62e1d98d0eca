//! Exporters of flows, fed by the script.

use std::sync::Arc;

use anyhow::{Context, ensure};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use hubble::Event;
use hubble_exporter::{Exporter, Exporters, Moment, flow_logs};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

pub(super) fn cells() -> Vec<Cell> {
    vec![module("exporter", "Exporters of flows", [provide(commands)])]
}

/// The spelling of keys in scripts, and that of the file of dynamic exporters.
const AGGREGATION: [(&str, &str); 2] =
    [("windowInterval", "aggregationInterval"), ("aggregationFields", "fieldAggregate")];

fn moment() -> Moment {
    Moment::now("")
}

/// Returns the entries of a file: one, or a list, with the keys of the file of dynamic exporters.
fn entries(call: &Call, file: &str) -> anyhow::Result<Vec<Map<String, Value>>> {
    let text = String::from_utf8(call.read(file)?)?;
    let mut documents = k8s_types::documents(&text);
    ensure!(documents.len() == 1, "{file} has {} documents", documents.len());
    let value = documents.remove(0)?.value;
    let entries = match value.get("exporters") {
        Some(Value::Array(entries)) => entries.clone(),
        _ => vec![value],
    };
    let entry = |entry: Value| {
        let Value::Object(mut entry) = entry else { anyhow::bail!("{file}: an exporter is no object") };
        if let Some(path) = entry.get_mut("filePath")
            && let Some(text) = path.as_str()
        {
            *path = call.expand(text).into();
        }
        if let Some(Value::Object(mut options)) = entry.remove("aggregationOptions") {
            for (theirs, ours) in AGGREGATION {
                entry.extend(options.remove(theirs).map(|value| (ours.to_owned(), value)));
            }
        }
        Ok(entry)
    };
    entries.into_iter().map(entry).collect()
}

fn commands() -> Members<Command> {
    let exporters: Arc<Mutex<Exporters>> = Arc::default();
    let command = |name: &str, takes: &'static str, summary: &'static str, run: Run| {
        let exporters = exporters.clone();
        let run = move |call: Call| {
            let result = run(&mut exporters.lock(), &call);
            async move { result }
        };
        Command::new(name, summary, run).takes(takes)
    };
    Members(vec![
        command("config/add", "file", "add exporters", |exporters, call| {
            let [file] = call.exactly()?;
            let file = json!({"flowLogs": entries(call, file)?});
            for spec in flow_logs(&file.to_string())? {
                exporters.insert(Exporter::new(spec)?, &moment());
            }
            Ok(Output::none())
        }),
        command("config/delete", "file", "remove exporters", |exporters, call| {
            let [file] = call.exactly()?;
            for entry in entries(call, file)? {
                let name = entry.get("name").and_then(Value::as_str).context("an exporter has no name")?;
                ensure!(exporters.remove(name, &moment()), "no exporter {name:?}");
            }
            Ok(Output::none())
        }),
        command("event/send", "file", "send a flow to all exporters", |exporters, call| {
            let [file] = call.exactly()?;
            let flow = serde_json::from_slice(&call.read(file)?)?;
            let event = Event::Flow(Arc::new(hubble_api::flow_from_json(&flow)?));
            match exporters.write(&[event], 0, &moment()).into_iter().next() {
                Some((_, error)) => Err(error.into()),
                None => Ok(Output::none()),
            }
        }),
        command("file/exists", "path", "fail if there is no file", |exporters, call| {
            flush(exporters)?;
            let [path] = call.exactly()?;
            ensure!(std::path::Path::new(path).exists(), "{path} does not exist");
            Ok(Output::none())
        }),
        command("file/read", "source destination", "copy a file to the work folder", |exporters, call| {
            flush(exporters)?;
            let [source, destination] = call.exactly()?;
            call.write(destination, &std::fs::read(source)?)?;
            Ok(Output::none())
        }),
        command("exporters/count", "number", "compare the number of exporters", |exporters, call| {
            let [number] = call.exactly()?;
            let count = exporters.iter().count();
            ensure!(number.parse() == Ok(count), "there are {count} exporters");
            Ok(Output::none())
        }),
    ])
}

/// Writes aggregated flows that are due.
fn flush(exporters: &mut Exporters) -> anyhow::Result<()> {
    match exporters.write(&[], 0, &moment()).into_iter().next() {
        Some((_, error)) => Err(error.into()),
        None => Ok(()),
    }
}

type Run = fn(&mut Exporters, &Call) -> anyhow::Result<Output>;

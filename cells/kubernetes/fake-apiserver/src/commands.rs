//! The commands `k8s/*` of scripts.

use anyhow::{Context, bail};
use hive_command::{Call, Command, Flag, FlagKind, Output};
use k8s_types::{Key, yaml};
use serde_json::{Value, json};

use crate::object::Object;
use crate::tracker::{Tracker, resolve, set_metadata};
use crate::types::{Domain, Gvr};

pub(crate) fn commands(tracker: &Tracker) -> Vec<Command> {
    let seen = tracker.clone();
    let command = |name, summary, run: fn(&Tracker, &Call) -> anyhow::Result<Output>| {
        let (own, known) = (tracker.clone(), seen.clone());
        Command::new(name, summary, move |call| {
            let tracker = own.clone();
            async move { run(&tracker, &call) }
        })
        .completes(move |typed| match (name, typed.before.len()) {
            ("k8s/get" | "k8s/list" | "k8s/resync", 0) => {
                known.resources().iter().map(|(gvr, _)| gvr.to_string()).collect()
            }
            _ => vec![],
        })
    };
    let shown = |command: Command| {
        command.flag(Flag::text("out", "file to write to instead of stdout").short('o')).flag(Flag::new(
            "show-redacted",
            FlagKind::Texts,
            "",
            "fields to show: resource-version, uid",
        ))
    };
    vec![
        command("k8s/add", "add objects, in place of those that are there", add)
            .takes("file...")
            .detail("Files hold YAML or JSON, as `kubectl get -o yaml` prints it."),
        command("k8s/update", "change objects that are there", update)
            .takes("file...")
            .flag(Flag::switch("strict", "only if the version is the stored one")),
        command("k8s/delete", "delete objects", delete).takes("file..."),
        shown(command("k8s/get", "show an object", get).takes("resource [namespace/]name")),
        shown(
            command("k8s/list", "show the objects of a namespace, '' for all", list)
                .takes("resource namespace"),
        ),
        command("k8s/resync", "replace all objects of a resource, and end its watches", resync)
            .takes("resource [file...]"),
        command("k8s/summary", "count the objects of each resource", summary).takes("[file]"),
        command("k8s/resources", "list the resources of which there were objects", resources),
    ]
}

fn add(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    each(call, |manifest| Ok(tracker.add(manifest)?))
}

fn update(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    each(call, |manifest| Ok(tracker.update(manifest, call.flags.is_on("strict"))?))
}

fn delete(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    each(call, |manifest| Ok(tracker.delete(manifest)?))
}

/// Applies the files in order; stops at the first error.
fn each(call: &Call, apply: impl Fn(&str) -> anyhow::Result<()>) -> anyhow::Result<Output> {
    for file in call.at_least(1)? {
        apply(&manifest(call, file)?).with_context(|| file.clone())?;
    }
    Ok(Output::none())
}

/// Reads a file of the script's folder, else of the process's working directory.
fn manifest(call: &Call, file: &str) -> anyhow::Result<String> {
    let read = match call.read(file) {
        Err(_) if !call.is_confined() => std::fs::read(file).map_err(anyhow::Error::from),
        read => read,
    };
    let read = read.and_then(|bytes| Ok(String::from_utf8(bytes)?));
    read.with_context(|| format!("failed to read {file}"))
}

/// Resolves an argument to one of the known resources.
fn resource(tracker: &Tracker, call: &Call, word: &str) -> anyhow::Result<Gvr> {
    match resolve(&tracker.resources(), word) {
        Some((gvr, name)) => {
            if name != word {
                call.log(format_args!("Using closest match \"{name}\""));
            }
            Ok(gvr)
        }
        None => bail!("\"{word}\" not a known resource, see 'k8s/resources' for full list"),
    }
}

fn get(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    let [word, name] = call.exactly()?;
    let gvr = resource(tracker, call, word)?;
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let name = Key::new(namespace, name);
    let found = tracker.get(Domain::Any, &gvr, &name).or_else(|_| tracker.get(Domain::Core, &gvr, &name))?;
    call.to_file_or_stdout("out", yaml::print(&show(call, &found)?))
}

fn list(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    let [word, namespace] = call.exactly()?;
    let gvr = resource(tracker, call, word)?;
    let snapshot = tracker.objects.snapshot();
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    let found = crate::tracker::list(&tracker.objects, &snapshot, Domain::Any, &gvr, namespace);
    let items: Vec<Value> = found.iter().map(|object| show(call, object)).collect::<anyhow::Result<_>>()?;
    let mut list = json!({"items": items, "metadata": {}});
    if is_shown(call, "resource-version") {
        set_metadata(&mut list, "resourceVersion", &tracker.objects.revision(&snapshot).to_string());
    }
    call.to_file_or_stdout("out", yaml::print(&list))
}

/// Returns an object with the fields of its type, without those that differ from run to run.
fn show(call: &Call, object: &Object) -> anyhow::Result<Value> {
    let mut shown = match object.kind() {
        Some(kind) => kind.normalize(object.value())?,
        None => object.value().clone(),
    };
    for (flag, field) in [("resource-version", "resourceVersion"), ("uid", "uid")] {
        if !is_shown(call, flag) {
            set_metadata(&mut shown, field, "");
        }
    }
    Ok(shown)
}

fn is_shown(call: &Call, field_name: &str) -> bool {
    call.flags.texts("show-redacted").iter().any(|shown| shown == field_name)
}

fn resync(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    let [word, files @ ..] = call.at_least(1)? else { bail!("expected resource and optional files") };
    let gvr = resource(tracker, call, word)?;
    let manifests: Vec<String> =
        files.iter().map(|file| manifest(call, file)).collect::<anyhow::Result<_>>()?;
    tracker.resync(&gvr, &manifests)?;
    Ok(Output::none())
}

fn summary(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    let mut text = String::new();
    for domain in Domain::ALL {
        text += &format!("{}:\n", domain.as_str());
        for (gvr, domains) in tracker.resources() {
            if domain == Domain::Any || domains.contains(&domain) {
                text += &format!("- {gvr}: {}\n", tracker.list(domain, &gvr, None).len());
            }
        }
    }
    match call.at_most_one()? {
        Some(file) => call.write(file, text)?,
        None => call.log_text(&text),
    }
    Ok(Output::none())
}

fn resources(tracker: &Tracker, call: &Call) -> anyhow::Result<Output> {
    let [] = call.exactly()?;
    Ok(Output::text(tracker.resources().iter().map(|(gvr, _)| format!("{gvr}\n")).collect::<String>()))
}

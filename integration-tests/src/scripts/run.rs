//! One script in a hive of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hive::prelude::*;
use hive_script::{Archive, Engine, State, default_commands, hive_commands, replaceable, stop_hive};
use test_kit::{NetNs, Sandbox};
use tokio::sync::Mutex;

use super::network::Network;
use super::{Family, Isolation, loadbalancer};

/// Variables that the cells of a family give to its scripts.
pub(super) struct Environment(pub(super) Vec<(&'static str, String)>);

/// Supplied by a family whose hive is started before its scripts.
pub(super) struct StartFirst;

/// How a script ended.
pub struct Ran {
    /// The error, if it failed.
    pub result: Result<(), String>,
    /// Its output.
    pub log: String,
    /// How long it ran.
    pub took: Duration,
}

/// Runs a script of a family: a hive, a work folder and a deadline of its own, and a network namespace if the family needs
/// one.
pub async fn run(family: &'static Family, script: &Path) -> Ran {
    let begin = Instant::now();
    let log = hive_script::Log::default();
    let result = match family.isolation {
        Isolation::None => in_folder(family, script, None, &log).await,
        Isolation::Network => in_namespace(family, script.to_owned(), log.clone()).await,
        Isolation::Sandbox => in_sandbox(family, script.to_owned(), log.clone()).await,
    };
    Ran { result: result.map_err(|error| format!("{error:#}")), log: log.text(), took: begin.elapsed() }
}

/// Runs a script on a thread of a new network namespace, with a runtime of its own: all of its threads are inside.
async fn in_namespace(family: &'static Family, script: PathBuf, log: hive_script::Log) -> anyhow::Result<()> {
    ensure!(test_kit::is_root(), "needs root");
    let run = move || {
        let root = NetNs::detached().context("network namespace")?;
        let network = Network::new(root.clone());
        root.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(in_folder(family, &script, Some(network), &log))
        })
    };
    hive::blocking(run).await
}

/// Runs a script on a thread with a BPF file system of its own.
async fn in_sandbox(family: &'static Family, script: PathBuf, log: hive_script::Log) -> anyhow::Result<()> {
    ensure!(test_kit::is_root(), "needs root");
    let run = move || {
        let _sandbox = Sandbox::new().context("sandbox")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(in_folder(family, &script, None, &log))
    };
    hive::blocking(run).await
}

async fn in_folder(
    family: &'static Family,
    script: &Path,
    network: Option<Network>,
    log: &hive_script::Log,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    run_in(family, script, folder.path(), network, log).await
}

async fn run_in(
    family: &'static Family,
    script: &Path,
    work: &Path,
    network: Option<Network>,
    log: &hive_script::Log,
) -> anyhow::Result<()> {
    // As the kernel knows it: scripts compare paths.
    let work = work.canonicalize()?;
    let archive = Archive::parse(&std::fs::read(script).with_context(|| script.display().to_string())?);
    let state = State::within(&work, family.deadline);
    let folder = script.canonicalize()?.parent().unwrap_or(Path::new("/")).to_owned();
    let temporary = work.join("tmp");
    std::fs::create_dir(&temporary)?;
    for (name, path) in [("WORK", &work), ("TMPDIR", &temporary), ("DATADIR", &folder)] {
        state.set(name, path.display().to_string());
    }
    archive.extract(&work, |name| state.expand(name))?;

    let arguments = archive.arguments().filter(|_| family.flags).unwrap_or_default();
    let work = work.display().to_string();
    let defaults = family.defaults.iter().copied().flatten().map(|word| (*word).to_owned());
    let words = defaults.chain(arguments).map(|word| word.replace("$WORK", &work));
    let words: Arc<[String]> = words.collect();
    let (hive, mut engine) = build(family, Arc::clone(&words)).await?;
    for (name, value) in hive.get::<Environment>().iter().flat_map(|environment| &environment.0) {
        state.set(name, value);
    }
    let is_started_first = hive.get::<StartFirst>().is_some();
    let hive = Arc::new(Mutex::new(hive));
    if is_started_first {
        hive.lock().await.start().await?;
    }
    if let Some(network) = network {
        // Programs of the machine configure its network.
        state.set("PATH", std::env::var("PATH").unwrap_or_default());
        engine = replaceable(&engine, &hive, move || build(family, Arc::clone(&words)))?;
        engine = engine.with(network.commands())?;
    }
    let engine = engine.with(default_commands())?.with(hive_commands(&hive))?;
    let engine = Arc::new(engine.retrying(family.retry));
    let name = script.file_name().unwrap_or_default().to_string_lossy();
    let text = archive.script_text();
    let ran = engine.run(state.clone(), &name, &text);
    let result = match family.clock {
        Some(clock) => statedb::age::fixed(clock, ran).await,
        None => ran.await,
    };
    log.write(&state.log().take());
    let stopped = stop_hive(&hive).await.context("stop of the hive");
    result?;
    stopped
}

/// Returns the hive of a family with these arguments, and the commands of its cells.
async fn build(family: &'static Family, words: Arc<[String]>) -> anyhow::Result<(Hive, Engine)> {
    let mut hive = Hive::builder([
        bundle((family.cells)()),
        statedb::cell(),
        statedb_script::cell(),
        hive_script::cell(),
        invoke(|_: Arc<Engine>| ()),
    ])
    .args(words.iter().cloned())
    .foreign(loadbalancer::foreign())
    .build()?;
    hive.populate().await?;
    let engine = hive.get::<Engine>().context("no engine")?;
    Ok((hive, Engine::clone(&engine)))
}

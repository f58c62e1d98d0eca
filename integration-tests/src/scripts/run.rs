//! One script in a hive of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hive::prelude::*;
use hive_script::{Archive, Engine, State, default_commands, hive_commands, stop_hive};
use tokio::sync::Mutex;

use super::{Family, loadbalancer};

/// Variables that the cells of a family give to its scripts.
pub(super) struct Environment(pub(super) Vec<(&'static str, String)>);

/// How a script ended.
pub struct Ran {
    /// The error, if it failed.
    pub result: Result<(), String>,
    /// Its output.
    pub log: String,
    /// How long it ran.
    pub took: Duration,
}

/// Runs a script of a family: a hive, a work folder and a deadline of its own.
pub async fn run(family: &Family, script: &Path) -> Ran {
    let begin = Instant::now();
    let log = hive_script::Log::default();
    let result = match tempfile::tempdir() {
        Ok(folder) => run_in(family, script, folder.path(), &log).await,
        Err(error) => Err(error.into()),
    };
    Ran { result: result.map_err(|error| format!("{error:#}")), log: log.text(), took: begin.elapsed() }
}

async fn run_in(family: &Family, script: &Path, work: &Path, log: &hive_script::Log) -> anyhow::Result<()> {
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

    let mut builder = Hive::builder([
        bundle((family.cells)()),
        statedb::cell(),
        statedb_script::cell(),
        hive_script::cell(),
        invoke(|_: Arc<Engine>| ()),
    ]);
    let arguments = archive.arguments().filter(|_| family.flags).unwrap_or_default();
    let work = work.display().to_string();
    let defaults = family.defaults.iter().copied().flatten().map(|word| (*word).to_owned());
    let words = defaults.chain(arguments.iter().map(|word| word.replace("$WORK", &work)));
    builder = builder.args(words).foreign(loadbalancer::foreign());
    let mut hive = builder.build()?;
    hive.populate().await?;
    for (name, value) in hive.get::<Environment>().iter().flat_map(|environment| &environment.0) {
        state.set(name, value);
    }
    let engine = hive.get::<Engine>().context("no engine")?;
    let hive = Arc::new(Mutex::new(hive));
    let engine = Engine::clone(&engine).with(default_commands())?.with(hive_commands(&hive))?;
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

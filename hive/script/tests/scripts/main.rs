//! Runs scripts with the default commands and a few that fail in unusual ways.

mod cells;
mod recorded;
mod run_loop;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hive_command::{Call, Command, Flag, Output};
use hive_script::{Archive, Condition, Engine, Retry, State, default_commands};

/// The result of a script, with its log.
pub(crate) struct Ran {
    pub(crate) result: Result<(), String>,
    pub(crate) log: String,
}

pub(crate) fn engine() -> Engine {
    let count = Arc::new(AtomicU32::new(0));
    let own = vec![
        Command::new("count", "counts its calls", move |_: Call| {
            let count = count.fetch_add(1, Ordering::Relaxed) + 1;
            async move { Ok(Output::text(format!("{count}\n"))) }
        }),
        Command::new("panics", "panics", |_: Call| async { panic!("on purpose") }),
        Command::new("hangs", "never ends", |_: Call| std::future::pending()),
        Command::new("writes", "writes and fails", |call: Call| async move {
            Ok(Output::streams("out\n", "err\n")
                .failed(anyhow::anyhow!("failed with {}", call.flags.text("with"))))
        })
        .flag(Flag::text("with", "what")),
    ];
    let conditions = [
        Condition::new("yes", "always", |_| Ok(true)),
        Condition::new("broken", "cannot be told", |_| anyhow::bail!("no idea")),
        Condition::with_suffix("is", "compares with the variable X", |state, suffix| {
            Ok(state.variable("X") == suffix)
        }),
    ];
    let engine = Engine::new(own, conditions).unwrap().with(default_commands()).unwrap();
    engine.retrying(Retry { first: Duration::from_millis(5), most: Duration::from_millis(10) })
}

/// Runs a script with its files and a limit of two seconds.
pub(crate) async fn run(text: &str) -> Ran {
    run_with(engine(), "t.txtar", text).await
}

pub(crate) async fn run_with(engine: Engine, name: &str, text: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::parse(text.as_bytes());
    let state = State::within(folder.path(), Duration::from_secs(2));
    state.set("WORK", folder.path().display().to_string());
    archive.extract(folder.path(), |name| state.expand(name)).unwrap();
    let result = Arc::new(engine).run(state.clone(), name, &archive.script_text()).await;
    Ran { result: result.map_err(|error| error.to_string()), log: state.log().text() }
}

//! Commands that cells contribute.

use std::sync::Arc;

use crate::run_with;
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use hive_script::{Condition, Engine, default_commands, hive_commands, stop_hive};
use tokio::sync::Mutex;

async fn hello(call: Call) -> anyhow::Result<Output> {
    Ok(Output::text(format!("hello {}\n", call.exactly::<1>()?[0])))
}

fn greeter() -> Cell {
    module(
        "greeter",
        "Greets",
        [
            provide(|| Member(Command::new("hello", "greets", hello))),
            provide(|| Member(Condition::new("polite", "always", |_| Ok(true)))),
        ],
    )
}

fn other() -> Cell {
    module("other", "Greets, too", [provide(|| Member(Command::new("hello", "greets", hello)))])
}

async fn built(cells: impl hive::IntoCells) -> Result<Hive, hive::HiveError> {
    let mut hive =
        Hive::builder([bundle(cells), hive_script::cell(), invoke(|_: Arc<Engine>| ())]).build()?;
    hive.populate().await?;
    Ok(hive)
}

#[tokio::test]
async fn cells_contribute_and_the_script_starts_the_hive() {
    let started = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sees = started.clone();
    let hook = invoke(move |lifecycle: Lifecycle| {
        let sees = sees.clone();
        lifecycle
            .hook("see")
            .on_start(move |_| async move {
                sees.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            })
            .add();
    });
    let hive = built([greeter(), bundle([hook])]).await.unwrap();
    let engine = Engine::clone(&hive.get::<Engine>().unwrap());
    let hive = Arc::new(Mutex::new(hive));
    let engine = engine.with(default_commands()).unwrap().with(hive_commands(&hive)).unwrap();
    let script = "hive\nhive stop\n[polite] hello Ada\nstdout 'hello Ada'\nhive start\nhive/start\nhive/stop\nhive/stop\n! hive dance\n! hive start";
    let ran = run_with(engine, "t.txtar", script).await;
    assert_eq!(ran.result, Ok(()), "{}", ran.log);
    assert!(ran.log.contains("greeter"), "the hive was not printed: {}", ran.log);
    assert!(started.load(std::sync::atomic::Ordering::Relaxed));
    stop_hive(&hive).await.unwrap();
}

#[tokio::test]
async fn two_commands_of_one_name_are_refused_with_both_places() {
    let error = built([greeter(), other()]).await.err().unwrap().to_string();
    assert!(error.contains("script command `hello` is there twice"), "{error}");
    assert_eq!(error.matches("cells.rs:").count(), 2, "{error}");
    assert!(Engine::new(default_commands(), []).unwrap().with(default_commands()).is_err());
}

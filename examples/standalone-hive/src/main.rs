//! A program of a third party: an option, an object with a start hook, derived parameters, a start and a stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hive::Service;
use hive::prelude::*;

#[derive(hive::Config)]
struct GreeterConfig {
    /// Whom to greet
    #[flag(default = "world")]
    name: String,
}

#[derive(Params)]
struct GreeterParams {
    config: Config<GreeterConfig>,
    lifecycle: Lifecycle,
}

struct Greeter {
    name: String,
    is_open: AtomicBool,
}

impl Service for Greeter {
    async fn start(&self, _cx: HookCx) -> anyhow::Result<()> {
        self.is_open.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn new_greeter(p: GreeterParams) -> Arc<Greeter> {
    let greeter = Arc::new(Greeter { name: p.config.name.clone(), is_open: AtomicBool::new(false) });
    p.lifecycle.service("greeter", &greeter).add();
    greeter
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cells = [config::<GreeterConfig>(), provide(new_greeter), invoke(|_: Arc<Greeter>| ())];
    let mut hive = Hive::builder(module("greeter", "Says hello", cells)).args(["--name=bees"]).build()?;
    hive.start().await?;
    let greeter = hive.get::<Greeter>().expect("an invocation needs it");
    anyhow::ensure!(greeter.name == "bees" && greeter.is_open.load(Ordering::Relaxed), "not started");
    println!("hello, {}", greeter.name);
    hive.stop().await?;
    Ok(())
}

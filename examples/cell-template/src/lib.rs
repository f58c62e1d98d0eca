//! A cell as a template: copy it, rename it, replace its behaviour.
//!
//! **Owns** nothing yet. **Needs** nothing. **Provides** [`Greeter`].
//!
//! **Lifecycle.** The constructor wires, the start hook does I/O, the job does ongoing work; it ends with the cell.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;

/// The options; doc comments are their help texts.
#[derive(hive::Config)]
pub struct GreeterConfig {
    /// Whom to greet
    #[flag(default = "world")]
    pub greeter_name: String,
    /// How often
    #[flag(default = "30s")]
    pub greeter_interval: Duration,
}

/// An object that other cells take as `Arc<Greeter>`.
#[derive(Object, Debug)]
pub struct Greeter {
    name: String,
}

impl Greeter {
    /// Returns a greeting.
    pub fn greeting(&self) -> String {
        format!("hello, {}", self.name)
    }
}

/// The wiring: name, objects and jobs of the cell.
pub fn cell() -> Cell {
    let cells = [config::<GreeterConfig>(), provide(new_greeter), invoke(greet)];
    module("greeter", "Greets now and then", cells)
}

fn new_greeter(config: Config<GreeterConfig>) -> Greeter {
    Greeter { name: config.greeter_name.clone() }
}

#[derive(Params)]
struct GreetParams {
    greeter: Arc<Greeter>,
    config: Config<GreeterConfig>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn greet(p: GreetParams) {
    let (greeter, health) = (p.greeter.clone(), p.health.clone());
    p.lifecycle
        .hook("greet")
        .on_start(move |_cx| async move {
            health.ok(greeter.greeting());
            Ok(())
        })
        .on_stop(|_cx| async { Ok(()) })
        .add();
    p.jobs
        .timer("again", p.config.greeter_interval, move |_cx: JobCx| {
            p.health.ok(format!("{} again", p.greeter.greeting()));
            async { Ok(()) }
        })
        .add();
}

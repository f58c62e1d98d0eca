//! A cell with two commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hive::prelude::*;
use hive_command::{Call, Command, Flag, FlagKind, Output};

pub(super) fn cells() -> Vec<Cell> {
    vec![module("example", "Says hello and counts how often", [provide(commands)])]
}

fn commands() -> Members<Command> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let hello = move |call: Call| {
        let count = count.clone();
        async move {
            let [name] = call.exactly()?;
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Output::text(format!("{} {name}\n", call.flags.text("greeting"))))
        }
    };
    let counts = move |_: Call| {
        let count = counted.load(Ordering::Relaxed);
        async move { Ok(Output::text(format!("{count} SayHello()\n"))) }
    };
    Members(vec![
        Command::new("example/hello", "says hello", hello).takes("name").flag(Flag::new(
            "greeting",
            FlagKind::Text,
            "Hello,",
            "how to begin",
        )),
        Command::new("example/counts", "how often hello was said", counts),
    ])
}

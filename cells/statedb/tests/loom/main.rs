//! Models of the protocols between threads: every order in which two or three threads can run with up to three preemptions,
//! with the memory model's liberties. The product's own code is compiled with loom's atomics, locks and cells.

use loom::model::Builder;
use loom::thread;

mod changes;
mod engine;
#[path = "../../src/panics.rs"]
mod panics;
mod published;
mod tracked;
mod watch;
mod watched;

fn model(f: impl Fn() + Send + Sync + 'static) {
    bounded_model(3, f);
}

fn bounded_model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

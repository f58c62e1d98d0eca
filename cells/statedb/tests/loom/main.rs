//! Loom models of the protocols between threads: all interleavings of two or three threads with up to three
//! preemptions, under the C11 memory model. The crate's own code is compiled with loom's atomics, locks and cells.

use loom::model::Builder;
use loom::thread;

mod changes;
mod counted;
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

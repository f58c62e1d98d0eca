//! Reconcilers in virtual time against a target that fails, panics or is slow on demand.

mod progress;
mod pruning;
mod rounds;
mod several;
mod wiring;
mod world;

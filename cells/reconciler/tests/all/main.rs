//! Reconcilers in virtual time, with a target that fails, panics or is slow on demand.

mod closures;
mod conflicts;
mod faults;
mod model;
mod progress;
mod pruning;
mod races;
mod rounds;
mod several;
mod waiting;
mod wiring;
mod world;

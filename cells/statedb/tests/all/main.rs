//! The tests of the public API.

mod blobs;
mod changes;
mod derive;
mod derived;
mod differential;
mod lpm;
mod model;
mod observe;
mod promises;
mod ranges;
mod reference;
mod reflect;
mod rows;
mod watch_set;
mod wiring;

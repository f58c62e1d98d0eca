//! The tests of the public API.

mod changes;
mod model;
mod promises;
mod rows;
mod wiring;

//! The tests of the public API.

mod changes;
mod model;
mod observe;
mod promises;
mod rows;
mod wiring;

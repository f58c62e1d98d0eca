//! The tests of the public API.

mod blobs;
mod changes;
mod derive;
mod derived;
mod differential;
mod lpm;
mod model;
mod observe;
mod panics;
mod promises;
mod ranges;
mod reference;
mod reflect;
mod rows;
mod threads;
mod watch_set;
mod wiring;

/// Returns the number of cases of a property test; fewer under a sanitizer, where each takes longer.
fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(usual)
}

//! The tests of the example in statedb's README.

#[path = "../examples/files.rs"]
#[expect(dead_code, reason = "its program")]
mod files;

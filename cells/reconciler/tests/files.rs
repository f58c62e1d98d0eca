//! The tests of the example of statedb's first page.

#[path = "../examples/files.rs"]
#[expect(dead_code, reason = "its program")]
mod files;

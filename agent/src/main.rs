//! The agent: a list of cells in a hive.
fn main() {}

//! The operator's command line for the agent.
fn main() {}

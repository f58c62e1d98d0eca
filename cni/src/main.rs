//! The CNI plugin: small, static, talks to the agent's socket only.
fn main() {}

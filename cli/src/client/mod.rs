//! Clients of the agent: its REST API, and the protocol of its shell.
//!
//! Sibling folders that it uses: none.

mod agent;
pub(crate) mod shell;

pub(crate) use agent::Agent;

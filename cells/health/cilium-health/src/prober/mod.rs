//! The prober: when which address is probed, how, and what the answers mean.
//!
//! [`schedule`] and [`core`] are pure: they get events with a time and return requests. [`echo`] encodes and decodes
//! pings. [`run`] is the job around them, with [`ping`] (raw sockets), [`hello`] (HTTP) and [`results`] (the table).
//!
//! Sibling folders that it uses: none.

pub(crate) mod core;
pub(crate) mod echo;
pub(crate) mod hello;
pub(crate) mod ping;
pub(crate) mod results;
pub(crate) mod run;
mod schedule;
pub(crate) mod target;
#[cfg(test)]
mod tests;

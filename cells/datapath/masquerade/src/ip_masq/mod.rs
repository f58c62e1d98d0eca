//! Ranges of which addresses are not masqueraded, by a file of ip-masq-agent.
//!
//! `file` reads and parses the file, `rows` makes the maps equal to its ranges, `job` follows it.

mod file;
mod job;
mod rows;

pub(crate) use job::RangesFile;
pub(crate) use rows::Families;

//! The job that reconciles programs, links and settings of the host with options and tables: a state machine without
//! I/O (`machine`) and the loop that executes its actions (`run`).
//!
//! Sibling folders that it uses: `endpoints`, `guard`, `interfaces`, `programs`, `watchdog`.

pub(crate) mod machine;
pub(crate) mod run;

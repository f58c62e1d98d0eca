//! The job that keeps the host's side as options and tables demand: a pure state machine and the shell around it.
//!
//! Sibling folders that it uses: `endpoints`, `guard`, `interfaces`, `programs`, `watchdog`.

pub(crate) mod machine;
pub(crate) mod run;

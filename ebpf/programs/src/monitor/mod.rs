//! Reports about packets: events for monitors and counters.
//!
//! Owns: drops ([`drop`]), trace points ([`trace`]) and the metrics map ([`metrics`]). Events of policy verdicts are written by
//! `policy`. Uses `maps` and the context of `packet`.

#[macro_use]
pub(crate) mod drop;
#[cfg(not(feature = "xdp"))]
#[macro_use]
pub(crate) mod trace;
pub(crate) mod metrics;

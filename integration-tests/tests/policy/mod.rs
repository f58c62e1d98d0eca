//! Policies tried with packets, held against a model of their own.

pub(crate) mod generate;
pub(crate) mod model;
pub(crate) mod probe;

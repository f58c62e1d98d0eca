//! Services, frontends and backends as rows of tables: values, their text forms and their errors.
//!
//! Sibling folders that it uses: none.

pub(crate) mod address;
pub(crate) mod annotations;
pub(crate) mod backend;
pub(crate) mod error;
pub(crate) mod families;
pub(crate) mod fast_map;
pub(crate) mod frontend;
pub(crate) mod go_serialize;
pub(crate) mod name;
pub(crate) mod numbers;
pub(crate) mod service;
pub(crate) mod shared;
pub(crate) mod source;

//! `Default` of configuration structs.

use std::any::type_name;
use std::panic::Location;
use std::sync::Arc;

use super::ConfigSpec;
use super::error::ConfigError;
use super::flag::Schema;
use super::layers::Sources;
use super::value::Values;
use crate::error::{Place, Site};

/// Returns the struct with each option at its default. Defaults are parsed as in a hive without any source, so that a
/// default has one notation and one meaning.
///
/// # Panics
///
/// If a default is not of its option's type: a fault of the program, which [`validate`](crate::validate) returns as an
/// error.
#[track_caller]
pub fn __defaults<T: ConfigSpec>(read: fn(&Values<'_>) -> Result<T, ConfigError>) -> T {
    let place = Place { function: type_name::<T>(), at: Location::caller() };
    let site = Site { place, module: Arc::from("") };
    let mut schema = Schema::default();
    for flag in T::flags() {
        if let Err(fault) = schema.declare(flag, &site) {
            panic!("{fault}");
        }
    }
    let settings = Sources::default().load(&schema, &[]).settings;
    read(&Values { settings: &settings }).unwrap_or_else(|error| panic!("{error}"))
}

//! Options of cells: declared by `#[derive(hive::Config)]` structs, read from flags, environment, a file or a folder.
//!
//! Precedence, highest first: values set by the program, command-line flag, environment `PREFIX_NAME`, values that the
//! program [supplies](LiveConfig::supply) at run time, `--config FILE`, `--config-dir DIR` (one file a key; ignored if
//! there is a config file), default. All sources are read as strings and parsed by the declared type; then they are
//! layered by figment, which remembers the origin of each value. All errors are reported at once, each with the place,
//! the key, the value and a description of valid values.
//!
//! Options that are marked `live` may change at run time: [`LiveConfig`] reads the sources again, and cells that take a
//! [`ConfigWatch`] are notified.

mod args;
mod defaults;
#[cfg(feature = "files")]
mod dir;
mod error;
#[cfg(feature = "files")]
mod file;
mod flag;
mod kind;
mod layers;
mod live;
mod observed;
mod option_error;
mod settings;
mod supplied;
mod value;

use std::any::type_name;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

pub use args::Arguments;
pub(crate) use args::parse as parse_args;
#[doc(hidden)]
pub use defaults::__defaults;
pub use error::{BadValue, ConfigError};
pub(crate) use flag::{CONFIG_DIR, CONFIG_FILE, Schema};
pub use flag::{Flag, Foreign};
pub use go_duration::{ParseError as DurationError, format as format_duration, parse as parse_duration};
pub use hive_derive::FlagValue;
pub(crate) use kind::Form;
pub use kind::Kind;
pub use layers::Origin;
pub(crate) use layers::Sources;
pub use live::{Change, ConfigWatch, LiveConfig, Reloaded};
pub use observed::{Observed, Standing};
pub use option_error::OptionError;
pub use settings::{Renamed, Setting, Settings, Source, Unknown};
pub use supplied::{Drift, Supplied};
pub use value::{FlagValue, Parsed, Values};

use crate::error::Place;
use crate::key::Key;
use crate::outputs::Value;
use crate::param::{Absent, Cx, Deps, Param};

/// The configuration struct of a cell; it reads as a `T`. Declare it to the hive with [`config::<T>()`](crate::config()).
pub struct Config<T>(pub Arc<T>);

impl<T> Clone for Config<T> {
    fn clone(&self) -> Self {
        Config(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for Config<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Config<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ConfigSpec> Param for Config<T> {
    fn deps(deps: &mut Deps) {
        deps.need(Key::config::<T>());
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        cx.one::<Arc<T>>().cloned().map(Config)
    }
}

/// A struct whose fields are options; implemented by `#[derive(hive::Config)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a configuration struct",
    note = "add `#[derive(hive::Config)]` and give each field a `#[flag(default = ..)]`"
)]
pub trait ConfigSpec: Send + Sync + Sized + 'static {
    /// Returns the options, in the order of the fields.
    fn flags() -> Vec<Flag>;
    /// Builds the struct from the values in force.
    fn from_values(values: &Values<'_>) -> Result<Self, ConfigError>;
}

/// A configuration struct in a cell, with its type erased.
#[derive(Clone)]
pub(crate) struct ConfigCell {
    pub(crate) key: Key,
    pub(crate) place: Place,
    pub(crate) flags: fn() -> Vec<Flag>,
    pub(crate) make: fn(&Values<'_>) -> Result<Value, ConfigError>,
}

impl ConfigCell {
    pub(crate) fn of<T: ConfigSpec>(at: &'static Location<'static>) -> Self {
        ConfigCell {
            key: Key::config::<T>(),
            place: Place { function: type_name::<T>(), at },
            flags: T::flags,
            make: |values| Ok(Arc::new(Arc::new(T::from_values(values)?))),
        }
    }
}

//! Conditional cells: a predicate over a configuration struct, and the options that make it false.

use std::any::{Any, type_name};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use crate::config::{ConfigError, ConfigSpec, Flag, Form, Kind, Settings, Values};
use crate::error::Place;
use crate::key::Key;
use crate::lifecycle::panic_text;
use crate::outputs::Value;

/// `None` for a struct of another type.
type Predicate = dyn Fn(&Value) -> Option<bool> + Send + Sync;

/// A predicate over a configuration struct, with its types erased.
#[derive(Clone)]
pub(crate) struct Condition {
    pub(crate) key: Key,
    pub(crate) place: Place,
    is_met: Arc<Predicate>,
    flags: fn() -> Vec<Flag>,
    make: fn(&Values<'_>) -> Result<Value, ConfigError>,
}

impl Condition {
    pub(crate) fn new<C: ConfigSpec, F: Fn(&C) -> bool + Send + Sync + 'static>(
        is_on: F,
        at: &'static Location<'static>,
    ) -> Self {
        Condition {
            key: Key::config::<C>(),
            place: Place { function: type_name::<F>(), at },
            is_met: Arc::new(move |value| {
                let value: &dyn Any = &**value;
                value.downcast_ref::<Arc<C>>().map(|config| is_on(config))
            }),
            flags: C::flags,
            make: |values| Ok(Arc::new(Arc::new(C::from_values(values)?))),
        }
    }

    /// Evaluates the predicate; the error is the text of its panic.
    pub(crate) fn is_met(&self, config: &Value) -> Result<bool, String> {
        let answer = catch_unwind(AssertUnwindSafe(|| (self.is_met)(config)));
        answer.map(|met| met.unwrap_or(false)).map_err(|panic| panic_text(&*panic))
    }

    /// Returns the options that make the predicate false, as `name=value`: each option of which another value alone
    /// would make it true (a switch inverted, any other option at its default), or all options of the struct if there
    /// is none.
    pub(crate) fn culprits(&self, settings: &Settings) -> Vec<String> {
        let (mut all, mut decisive) = (vec![], vec![]);
        for flag in (self.flags)() {
            let Some(setting) = settings.declared.get(flag.name) else { continue };
            let text = format!("{}={}", setting.key, setting.value);
            let other = match (flag.kind, setting.parsed.to_bool()) {
                (Kind::Bool, Some(on)) => Some((!on).into()),
                _ => flag.kind.parse(&flag.default, Form::Other).ok(),
            };
            if other.is_some_and(|other| self.would_be_met(settings, flag.name, other)) {
                decisive.push(text.clone());
            }
            all.push(text);
        }
        if decisive.is_empty() { all } else { decisive }
    }

    fn would_be_met(&self, settings: &Settings, option: &str, other: figment::value::Value) -> bool {
        let mut settings = settings.clone();
        if let Some(setting) = settings.declared.get_mut(option) {
            setting.parsed = other;
        }
        (self.make)(&Values { settings: &settings }).is_ok_and(|config| self.is_met(&config) == Ok(true))
    }
}

//! `Debug` of handles and of machinery: what identifies them, not what is behind their locks. Values of options are left
//! out, because they may be secrets.

use std::fmt::{Debug, Formatter, Result};

use crate::cell::{Cell, Repr};
use crate::config::{Flag, LiveConfig, Parsed, Values};
use crate::event::Events;
use crate::health::{Health, HealthTree};
use crate::job::{JobCx, Jobs, ObserverJob, OneShotJob, TimerJob, Trigger, Watchdog, Working};
use crate::lifecycle::HookBuilder;
use crate::outputs::{Call, Outs, Sink};
use crate::param::{Cx, Deps};
use crate::{Hive, HiveBuilder, Scope, Shutdowner};

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {$(
        impl Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque!(Call, Deps, Events, HealthTree, HiveBuilder, HookBuilder, Jobs, LiveConfig);
opaque!(ObserverJob, OneShotJob, Outs, Sink, TimerJob, Trigger, Watchdog, Working);

macro_rules! opaque_with_lifetime {
    ($($name:ident),*) => {$(
        impl Debug for $name<'_> {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque_with_lifetime!(Cx, Parsed, Values);

#[cfg(feature = "pictures")]
impl Debug for crate::Timeline {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Timeline").finish_non_exhaustive()
    }
}

impl Debug for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut cell = f.debug_struct("Cell");
        if let Repr::Module { id, .. } = &*self.0 {
            cell.field("module", id);
        }
        cell.finish_non_exhaustive()
    }
}

impl Debug for Flag {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Flag").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Debug for Health {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Health").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Debug for JobCx {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let path = self.health.path();
        f.debug_struct("JobCx")
            .field("path", &path)
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl Debug for Hive {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Hive").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl<T: ?Sized> Debug for Scope<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Scope").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Debug for Shutdowner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let is_shutting_down = self.is_shutting_down();
        f.debug_struct("Shutdowner").field("is_shutting_down", &is_shutting_down).finish_non_exhaustive()
    }
}

//! The handles that every constructor may take: lifecycle, jobs, health, shutdown, the name of the module.

use std::fmt;
use std::sync::Arc;

use crate::event::Events;
use crate::health::{Health, HealthTree};
use crate::job::{JobGroup, Jobs};
use crate::lifecycle::{Hooks, Lifecycle, State};
use crate::param::{Absent, Cx, Deps, Param};
use crate::shutdown::Shutdowner;
use crate::tally::Tally;

/// The parts of one constructor's handles.
pub(crate) struct Handles<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) module: &'a Arc<str>,
    pub(crate) function: &'static str,
    /// The constructor's position in the graph.
    pub(crate) node: usize,
}

/// Handles that all constructors of a hive share.
pub(crate) struct Shared {
    pub(crate) events: Arc<Events>,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) health: Arc<HealthTree>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) shutdown: Shutdowner,
    /// The record of objects that a test keeps; `None` outside of tests.
    pub(crate) tally: Option<Arc<Tally>>,
}

impl Shared {
    /// Whether the hive is stopping or has stopped.
    pub(crate) fn stops(&self) -> bool {
        let state = self.hooks.state();
        self.shutdown.is_shutting_down() || matches!(state, State::Stopping | State::Stopped | State::Failed)
    }

    /// Returns the same handles for a part with hooks of its own.
    pub(crate) fn with_hooks(&self, hooks: Arc<Hooks>) -> Self {
        let Shared { events, hooks: _, health, jobs, shutdown, tally } = self;
        let (events, health, jobs) = (events.clone(), health.clone(), jobs.clone());
        Shared { events, hooks, health, jobs, shutdown: shutdown.clone(), tally: tally.clone() }
    }
}

/// The path of the module that a constructor belongs to, such as `agent.controlplane.ipam`; empty at the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModuleId(Arc<str>);

impl ModuleId {
    /// Returns the whole path.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Returns the last segment of the path.
    pub fn name(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or("")
    }
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! handle {
    ($t:ty, |$handles:ident| $make:expr) => {
        impl Param for $t {
            fn deps(_: &mut Deps) {}

            fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
                let $handles = cx.handles;
                Ok($make)
            }
        }
    };
}

handle!(ModuleId, |h| ModuleId(h.module.clone()));
handle!(Shutdowner, |h| h.shared.shutdown.clone());
handle!(Lifecycle, |h| Lifecycle::new(h.shared.hooks.clone(), h.module.clone(), h.function, h.node));
handle!(Health, |h| Health::of_module(h.shared.health.clone(), h.module));
handle!(JobGroup, |h| JobGroup::new(h));

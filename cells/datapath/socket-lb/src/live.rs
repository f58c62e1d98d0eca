//! Options of other cells that are constants of the programs and may change while they run.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use runtime_options::{MONITOR_AGGREGATION_LEVEL, RuntimeOption};
use statedb::{Table, Watch};

/// The watches of these options.
pub(crate) struct Live {
    pub(crate) empty_services: ConfigWatch<loader::ServicesConfig>,
    pub(crate) monitor: ConfigWatch<loader::LoaderConfig>,
    pub(crate) conntrack: ConfigWatch<loader::ConntrackConfig>,
    /// The options of `PATCH /config`, which override those of the agent.
    pub(crate) options: Option<Arc<Table<RuntimeOption>>>,
    /// Whether translations are reported to monitors.
    pub(crate) trace_sock: bool,
}

/// Their values in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveValues {
    /// Whether services without backends refuse connections.
    pub(crate) refuses_empty: bool,
    /// The events for monitors; none if they are off.
    pub(crate) trace: Option<Trace>,
}

/// How events are thinned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The [aggregation level](datapath_abi::trace::aggregation).
    pub(crate) aggregation: u32,
    /// The interval of events with aggregation.
    pub(crate) interval: Duration,
}

impl Live {
    /// Returns the values in force, and the revision of the runtime options that they come from.
    pub(crate) fn values(&self) -> (LiveValues, u64) {
        let (values, revision, _) = self.read();
        (values, revision)
    }

    fn read(&self) -> (LiveValues, u64, Option<Watch>) {
        // The loader refuses an unknown level.
        let mut aggregation = self.monitor.get().aggregation().unwrap_or_default();
        let (mut revision, mut watch) = (0, None);
        if let Some(options) = &self.options {
            let snapshot = options.snapshot();
            let (rows, closed) = options.all_watch(&snapshot);
            let level = rows.into_iter().find(|option| option.name == MONITOR_AGGREGATION_LEVEL);
            aggregation = level.map_or(aggregation, |option| option.level());
            (revision, watch) = (options.revision(&snapshot), Some(closed));
        }
        let interval = self.conntrack.get().monitor_aggregation_interval;
        let values = LiveValues {
            refuses_empty: self.empty_services.get().enable_no_service_endpoints_routable,
            trace: self.trace_sock.then_some(Trace { aggregation, interval }),
        };
        (values, revision, watch)
    }

    /// Waits until values differ from these. `same` gets each revision of the runtime options that does not change them.
    pub(crate) async fn changed(&mut self, from: &LiveValues, same: impl Fn(u64)) {
        loop {
            let (values, revision, watch) = self.read();
            if values != *from {
                return;
            }
            same(revision);
            let runtime_options = async {
                match watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.empty_services.changed() => {}
                () = self.monitor.changed() => {}
                () = self.conntrack.changed() => {}
                () = runtime_options => {}
            }
        }
    }
}

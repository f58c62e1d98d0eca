//! Options of other cells that are constants of the programs and may change while they run.

use std::time::Duration;

use hive::prelude::*;

/// The watches of these options.
pub(crate) struct Live {
    pub(crate) empty_services: ConfigWatch<loader::ServicesConfig>,
    pub(crate) monitor: ConfigWatch<loader::LoaderConfig>,
    pub(crate) conntrack: ConfigWatch<loader::ConntrackConfig>,
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
    /// Returns the values in force.
    pub(crate) fn values(&self) -> LiveValues {
        // The loader refuses an unknown level.
        let aggregation = self.monitor.get().aggregation().unwrap_or_default();
        let interval = self.conntrack.get().monitor_aggregation_interval;
        LiveValues {
            refuses_empty: self.empty_services.get().enable_no_service_endpoints_routable,
            trace: self.trace_sock.then_some(Trace { aggregation, interval }),
        }
    }

    /// Waits until values differ from these.
    pub(crate) async fn changed(&mut self, from: &LiveValues) {
        while self.values() == *from {
            tokio::select! {
                () = self.empty_services.changed() => {}
                () = self.monitor.changed() => {}
                () = self.conntrack.changed() => {}
            }
        }
    }
}

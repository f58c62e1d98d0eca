//! The directory of a standalone proxy: the last snapshot, and reports to the agent.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dns_proxy::{Client, Directory, Observation, Question, Transport};
use fqdn::Lookup;
use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::reports::Reports;
use crate::view::View;

/// The maximum number of events that wait for the agent; further ones are lost.
const MAX_OBSERVATIONS: usize = 1024;

/// The last snapshot and the reports, shared by queries and the connection.
pub(crate) struct Remote {
    view: RwLock<Arc<View>>,
    pub(crate) reports: Mutex<Reports>,
    /// Wakes the connection after a new report.
    pub(crate) wake: Notify,
    /// Events of queries that wait for the agent, oldest first.
    pub(crate) observations: Mutex<VecDeque<Observation>>,
    /// Wakes the connection after a new event.
    pub(crate) observed: Notify,
    /// Notified with the first snapshot.
    pub(crate) ready: Notify,
    /// How long an answer waits for the agent.
    max_delay: Duration,
}

impl Remote {
    pub(crate) fn new(max_delay: Duration) -> Remote {
        Remote {
            view: RwLock::default(),
            reports: Mutex::default(),
            wake: Notify::new(),
            observations: Mutex::default(),
            observed: Notify::new(),
            ready: Notify::new(),
            max_delay,
        }
    }

    /// Replaces the snapshot. Reports of endpoints that are gone are dropped.
    pub(crate) fn update(&self, view: View) {
        self.reports.lock().retain(&view.endpoints());
        *self.view.write() = Arc::new(view);
        self.ready.notify_one();
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }
}

impl Directory for Remote {
    fn client(&self, source: IpAddr) -> Option<Client> {
        self.view().client(source)
    }

    fn allows(&self, question: Question<'_>) -> bool {
        self.view().allows(question)
    }

    fn is_behind(&self, source: IpAddr, transport: Transport, server: SocketAddr) -> bool {
        // Only what leads to this proxy by a rule gets here: without one, the snapshot is older than the policy map.
        !self.view().has_rules(source, transport.number(), server.port())
            && self.reports.lock().is_connected()
    }

    fn may_see_client(&self, server: IpAddr) -> bool {
        self.view().may_see_client(server)
    }

    fn observe(&self, make: &dyn Fn() -> Observation) {
        if !self.reports.lock().is_connected() {
            return;
        }
        let mut observations = self.observations.lock();
        // Answers must not wait for records of them.
        if observations.len() < MAX_OBSERVATIONS {
            observations.push_back(make());
            self.observed.notify_one();
        }
    }

    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()> {
        let name = lookup.name.clone();
        let waiting = self.reports.lock().add(endpoint, lookup, Timestamp::now());
        self.wake.notify_one();
        let Some(waiting) = waiting else { return std::future::ready(()).boxed() };
        let max_delay = self.max_delay;
        async move {
            if tokio::time::timeout(max_delay, waiting).await.is_err() {
                tracing::warn!(
                    endpointID = endpoint, %name,
                    "Releasing a DNS answer before the agent knows its addresses"
                );
            }
        }
        .boxed()
    }
}

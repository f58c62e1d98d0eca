//! The jobs: from the table of endpoints to desired routes, or to the report of those that are not served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use endpoints::Endpoint;
use hive::JobCx;
use routes::{DesiredRoute, Routes};
use statedb::{Initializer, Table};

use crate::desired::{is_restoring, owner, routes};

/// Endpoints that a health report names at most.
const MAX_REPORTED: usize = 5;

/// The inputs of the job.
pub(crate) struct Follower {
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) routes: Arc<Routes>,
}

impl Follower {
    /// Follows the table as long as the hive runs.
    pub(crate) async fn run(self, cx: &JobCx, initializer: Initializer<DesiredRoute>) {
        let mut initializer = Some(initializer);
        let mut changes = self.endpoints.changes();
        let mut routed: BTreeSet<String> = BTreeSet::new();
        loop {
            let snapshot = self.endpoints.snapshot();
            let (batch, changed) = changes.read(&snapshot, usize::MAX);
            let (is_complete, completed) = self.endpoints.initialized_watch(&snapshot);
            // By owner: an endpoint that was deleted and created again with its id is two changes. One transaction, so that
            // an address that goes from an endpoint to another one keeps its route.
            let desired: BTreeMap<String, Vec<DesiredRoute>> = batch
                .iter()
                .map(|change| {
                    let gone = change.deleted;
                    (owner(&change.object), if gone { Vec::new() } else { routes(&change.object) })
                })
                .collect();
            if !desired.is_empty() {
                self.routes.replace(desired.iter().map(|(owner, routes)| (owner.as_str(), routes.clone())));
            }
            for (owner, routes) in desired {
                if routes.is_empty() {
                    routed.remove(&owner)
                } else {
                    routed.insert(owner)
                };
            }
            if initializer.is_some()
                && is_complete
                && !self.endpoints.all(&snapshot).any(|endpoint| is_restoring(endpoint))
                && let Some(initializer) = initializer.take()
            {
                self.routes.finish(initializer);
            }
            cx.health.ok(format!("routes to {} endpoints", routed.len()));
            drop(snapshot);
            tokio::select! {
                () = cx.cancelled() => return,
                () = changed.changed() => {}
                () = completed.changed(), if !is_complete => {}
            }
        }
    }
}

/// Reports endpoints that ask for routes of their own while the option is off.
pub(crate) async fn report_unserved(endpoints: &Table<Endpoint>, cx: &JobCx) {
    loop {
        let snapshot = endpoints.snapshot();
        let (all, changed) = endpoints.all_watch(&snapshot);
        let unserved = all.filter(|endpoint| endpoint.record.datapath_configuration.install_endpoint_route);
        let ids: Vec<String> = unserved.map(|endpoint| endpoint.record.id.to_string()).collect();
        match ids.len() {
            0 => cx.health.ok("no endpoint asks for routes"),
            count => {
                let named = ids[..count.min(MAX_REPORTED)].join(", ");
                let reason = format!("{count} endpoints, such as {named}, ask for install-endpoint-route");
                if cx.health.degraded_anew("Endpoint routes need enable-endpoint-routes", &reason) {
                    tracing::warn!(%reason, "Endpoint routes need enable-endpoint-routes");
                }
            }
        }
        drop(snapshot);
        tokio::select! {
            () = cx.cancelled() => return,
            () = changed.changed() => {}
        }
    }
}

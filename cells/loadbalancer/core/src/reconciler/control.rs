//! Access of commands to the running reconciler.

use std::sync::Arc;
use std::time::Duration;

use reconciler::{Handle, SharedOps};
use tokio::sync::watch;

use crate::lbmap::rows::LbMaps;
#[cfg(any(test, feature = "test-util"))]
use crate::lbmap::rows::MapError;
#[cfg(any(test, feature = "test-util"))]
use crate::reconciler::balancer::Balancer;
use crate::reconciler::operations::LbOps;

/// The time that commands wait for the maps: a start opens them within milliseconds.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The running reconciler, `None` before the maps are open.
#[derive(Default)]
pub(crate) struct Control(watch::Sender<Option<Running>>);

/// A running reconciler.
#[derive(Clone)]
pub(crate) struct Running {
    maps: Arc<dyn LbMaps>,
    #[cfg_attr(not(any(test, feature = "test-util")), expect(dead_code, reason = "for commands of tests"))]
    ops: SharedOps<LbOps>,
    pub(crate) handle: Handle,
}

#[derive(Debug, thiserror::Error)]
#[error("the load balancer maps are not open yet")]
pub(crate) struct NotYet;

impl Control {
    pub(crate) fn set_running(&self, maps: Arc<dyn LbMaps>, ops: SharedOps<LbOps>, handle: Handle) {
        self.0.send_replace(Some(Running { maps, ops, handle }));
    }

    /// Returns the reconciler, once it runs.
    pub(crate) async fn running(&self) -> Result<Running, NotYet> {
        let mut running = self.0.subscribe();
        let runs = tokio::time::timeout(OPEN_TIMEOUT, running.wait_for(Option::is_some)).await;
        let running = runs.map_err(|_| NotYet)?.map_err(|_| NotYet)?;
        running.clone().ok_or(NotYet)
    }

    /// Returns the maps.
    pub(crate) async fn maps(&self) -> Result<Arc<dyn LbMaps>, NotYet> {
        Ok(self.running().await?.maps)
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Control {
    /// Reads the state of the reconciler.
    pub(crate) async fn inspect<T>(&self, read: impl FnOnce(&Balancer) -> T) -> Result<T, NotYet> {
        Ok(read(&self.running().await?.ops.lock().balancer))
    }

    /// Replaces the state by one restored from the maps, as after a restart. Frontends do not become pending.
    pub(crate) async fn restart(&self) -> Result<(), MapError> {
        let Running { maps, ops, .. } =
            self.running().await.map_err(|error| MapError::from(error.to_string()))?;
        ops.lock().balancer = Balancer::restore(maps)?;
        Ok(())
    }
}

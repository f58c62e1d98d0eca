//! The running reconciler, for those who look at it or ask it for something: commands of scripts and of the shell.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reconciler::{BatchEntry, BatchOps, Handle, OpCx, OpResult, Ops};
use statedb::{Obj, Rows};
use tokio::sync::watch;

use crate::lbmap::rows::LbMaps;
#[cfg(any(test, feature = "test-util"))]
use crate::lbmap::rows::MapError;
use crate::model::frontend::Frontend;
#[cfg(any(test, feature = "test-util"))]
use crate::reconciler::balancer::Balancer;
use crate::reconciler::operations::LbOps;

/// How long to wait for the maps: a start has them after milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether and how the reconciler runs: nothing before the maps are open.
#[derive(Default)]
pub(crate) struct Control(watch::Sender<Option<Running>>);

/// A running reconciler.
#[derive(Clone)]
pub(crate) struct Running {
    maps: Arc<dyn LbMaps>,
    #[cfg_attr(not(any(test, feature = "test-util")), expect(dead_code, reason = "for commands of tests"))]
    ops: Shared,
    pub(crate) handle: Handle,
}

#[derive(Debug, thiserror::Error)]
#[error("the load balancer maps are not open yet")]
pub(crate) struct NotYet;

/// Operations that others may look at between two rounds.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<LbOps>>);

impl Shared {
    pub(crate) fn new(ops: LbOps) -> Shared {
        Shared(Arc::new(Mutex::new(ops)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LbOps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    pub(crate) fn runs(&self, maps: Arc<dyn LbMaps>, ops: Shared, handle: Handle) {
        self.0.send_replace(Some(Running { maps, ops, handle }));
    }

    /// The reconciler, once it runs.
    pub(crate) async fn running(&self) -> Result<Running, NotYet> {
        let mut running = self.0.subscribe();
        let runs = tokio::time::timeout(PATIENCE, running.wait_for(Option::is_some)).await;
        let running = runs.map_err(|_| NotYet)?.map_err(|_| NotYet)?;
        running.clone().ok_or(NotYet)
    }

    /// The maps themselves.
    pub(crate) async fn maps(&self) -> Result<Arc<dyn LbMaps>, NotYet> {
        Ok(self.running().await?.maps)
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Control {
    /// Looks at what the reconciler remembers.
    pub(crate) async fn inspect<T>(&self, look: impl FnOnce(&Balancer) -> T) -> Result<T, NotYet> {
        Ok(look(&self.running().await?.ops.lock().balancer))
    }

    /// Forgets all of it and takes the maps over anew, as after a restart. Frontends are not made pending.
    pub(crate) async fn restart(&self) -> Result<(), MapError> {
        let Running { maps, ops, .. } =
            self.running().await.map_err(|error| MapError::from(error.to_string()))?;
        ops.lock().balancer = Balancer::restore(maps)?;
        Ok(())
    }
}

impl Ops<Frontend> for Shared {
    fn update(&mut self, cx: &OpCx<'_>, frontend: &mut Frontend) -> OpResult {
        self.lock().update(cx, frontend)
    }

    fn delete(&mut self, cx: &OpCx<'_>, frontend: &Frontend) -> OpResult {
        self.lock().delete(cx, frontend)
    }

    fn prune(&mut self, cx: &OpCx<'_>, frontends: Rows<'_, Frontend>) -> OpResult {
        self.lock().prune(cx, frontends)
    }
}

impl BatchOps<Frontend> for Shared {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Frontend>]) {
        self.lock().update_batch(cx, batch);
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Frontend>>]) {
        self.lock().delete_batch(cx, batch);
    }

    fn announce_updates(&mut self, cx: &OpCx<'_>, updates: &[BatchEntry<Frontend>]) {
        self.lock().announce_updates(cx, updates);
    }
}

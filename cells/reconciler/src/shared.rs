//! Operations that are shared with their owner, which uses them between rounds.

use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;

use parking_lot::Mutex;
use statedb::{Obj, Rows, TableSpec};

use crate::ops::{BatchEntry, BatchOps, OpCx, OpResult, Ops};

/// Operations that their owner inspects while the reconciler runs or uses after it has stopped: a handle for
/// [`ops`](crate::Builder::ops) or [`batch_ops`](crate::Builder::batch_ops), and a clone for the owner. Each call locks
/// them. A round makes its calls one after the other, so they never contend with each other.
pub struct SharedOps<O>(Arc<Mutex<O>>);

impl<O> SharedOps<O> {
    /// Returns the first handle of these operations.
    pub fn new(ops: O) -> Self {
        SharedOps(Arc::new(Mutex::new(ops)))
    }

    /// Locks the operations, which waits for a call of the reconciler to end.
    pub fn lock(&self) -> impl DerefMut<Target = O> + '_ {
        self.0.lock()
    }
}

impl<O> Clone for SharedOps<O> {
    fn clone(&self) -> Self {
        SharedOps(self.0.clone())
    }
}

impl<O> fmt::Debug for SharedOps<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedOps").finish_non_exhaustive()
    }
}

impl<T: TableSpec, O: Ops<T>> Ops<T> for SharedOps<O> {
    fn update(&mut self, cx: &OpCx<'_>, object: &mut T) -> OpResult {
        self.lock().update(cx, object)
    }

    fn delete(&mut self, cx: &OpCx<'_>, object: &T) -> OpResult {
        self.lock().delete(cx, object)
    }

    fn prune(&mut self, cx: &OpCx<'_>, objects: Rows<'_, T>) -> OpResult {
        self.lock().prune(cx, objects)
    }
}

impl<T: TableSpec, O: BatchOps<T>> BatchOps<T> for SharedOps<O> {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<T>]) {
        self.lock().update_batch(cx, batch);
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<T>>]) {
        self.lock().delete_batch(cx, batch);
    }

    fn announce_updates(&mut self, cx: &OpCx<'_>, updates: &[BatchEntry<T>]) {
        self.lock().announce_updates(cx, updates);
    }
}

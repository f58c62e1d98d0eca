//! Operations that are shared with their owner, which uses them between rounds.

use std::sync::Arc;

use parking_lot::Mutex;
use statedb::{Obj, Rows, TableSpec};

use crate::ops::{BatchEntry, BatchOps, OpCx, OpResult, Ops};

/// Locks the operations for each call, for owners that inspect the operations while the reconciler runs or use them
/// after it has stopped. A round makes its calls one after the other, so they never contend with each other.
impl<T: TableSpec, O: BatchOps<T>> Ops<T> for Arc<Mutex<O>> {
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

impl<T: TableSpec, O: BatchOps<T>> BatchOps<T> for Arc<Mutex<O>> {
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

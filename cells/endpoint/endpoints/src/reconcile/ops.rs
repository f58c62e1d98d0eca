//! The operations of the reconciler of endpoints: each row is regenerated or removed by its state.

use std::collections::BTreeSet;
use std::time::SystemTime;

use reconciler::{BatchEntry, BatchOps, Builder, OpCx, OpResult, Operations, Ops, Reconciler, StatusField};
use statedb::{Obj, Rows, RwTable};

use crate::model::endpoint::Endpoint;
use crate::model::state::State;
use crate::reconcile::regeneration::Regenerator;

/// Maximum number of changes in a round.
const ROUND_SIZE: usize = 1000;
/// Rounds per second, and the burst. An endpoint takes a round for each cell that it waits for, so a low limit would
/// delay the creation of a single endpoint.
const ROUNDS_PER_SECOND: u32 = 10_000;
const ROUNDS_BURST: u32 = 1000;

/// The reconciler's operations.
pub(crate) struct EndpointOps(pub(crate) Regenerator);

/// Returns the reconciler, with nothing running yet.
pub(crate) fn builder(
    table: RwTable<Endpoint>,
    ops: EndpointOps,
) -> Builder<Endpoint, StatusField<Endpoint>, Operations<Endpoint>> {
    Reconciler::builder(table)
        .name("endpoints")
        .status(|endpoint| &endpoint.status, |endpoint, status| endpoint.status = status)
        .batch_ops(ops)
        .round(ROUND_SIZE, ROUNDS_PER_SECOND, ROUNDS_BURST)
        .blocking()
}

impl Ops<Endpoint> for EndpointOps {
    fn update(&mut self, _: &OpCx<'_>, endpoint: &mut Endpoint) -> OpResult {
        let mut one = [BatchEntry::new(endpoint.clone(), 0)];
        self.reconcile(&mut one);
        let [BatchEntry { object, result, .. }] = one;
        *endpoint = object;
        result
    }

    fn delete(&mut self, _: &OpCx<'_>, endpoint: &Endpoint) -> OpResult {
        match endpoint.state {
            State::Disconnected => Ok(()),
            _ => self.0.targets.remove(&endpoint.record),
        }
    }

    fn prune(&mut self, _: &OpCx<'_>, endpoints: Rows<'_, Endpoint>) -> OpResult {
        let known: BTreeSet<u16> =
            endpoints.filter(|e| e.state != State::Disconnected).map(|e| e.record.id).collect();
        let pruned = self.0.targets.datapath.prune(&known)?;
        if !pruned.endpoints.is_empty() || pruned.leftovers > 0 {
            let (endpoints, leftovers) = (&pruned.endpoints, pruned.leftovers);
            tracing::info!(?endpoints, leftovers, "Removed datapath state that belongs to no endpoint");
        }
        Ok(())
    }
}

impl BatchOps<Endpoint> for EndpointOps {
    fn update_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<Endpoint>]) {
        self.reconcile(batch);
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Endpoint>>]) {
        for entry in batch {
            entry.result = self.delete(cx, &entry.object);
        }
    }
}

impl EndpointOps {
    /// Reconciles the endpoint of each row as far as possible without waiting.
    fn reconcile(&self, batch: &mut [BatchEntry<Endpoint>]) {
        let mut regenerating = Vec::new();
        for entry in batch {
            match entry.object.state {
                State::Disconnecting => {
                    entry.result = self.0.targets.remove(&entry.object.record);
                    if entry.result.is_ok() {
                        let now = SystemTime::now();
                        entry.object = entry.object.enter(State::Disconnected, "Endpoint removed", now);
                    }
                }
                // Nothing to do before there is an identity, or before the datapath is known to be ready.
                State::WaitingForIdentity | State::Restoring | State::Disconnected | State::Invalid => {}
                State::WaitingToRegenerate | State::Regenerating | State::Ready => regenerating.push(entry),
            }
        }
        self.0.advance(&mut regenerating);
    }
}

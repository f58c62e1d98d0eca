//! Frontends into the maps: the operations of the reconciler.

use std::sync::Arc;

use devices::NodeAddress;
use reconciler::{BatchEntry, BatchOps, OpCx, OpResult, Ops};
use statedb::{Obj, Rows, Snapshot, Table};

use crate::balancer::Balancer;
use crate::desired::{Desired, Settings};
use crate::frontend::Frontend;

/// What decides about rows besides the frontends themselves.
pub(crate) struct Surroundings {
    /// Whether addresses of services without a class are the agent's to announce (`default-lb-service-ipam`).
    pub(crate) owns_classless: bool,
    /// The node's addresses.
    pub(crate) addresses: Option<Arc<Table<NodeAddress>>>,
}

impl Surroundings {
    fn settings(&self, snapshot: &Snapshot) -> Settings {
        let addresses = self.addresses.as_ref();
        let node_addresses = addresses.map(|table| table.all(snapshot).map(|row| row.addr).collect());
        Settings { owns_classless: self.owns_classless, node_addresses: node_addresses.unwrap_or_default() }
    }
}

/// The reconciler's operations.
pub(crate) struct LbOps {
    pub(crate) balancer: Balancer,
    pub(crate) surroundings: Surroundings,
}

impl LbOps {
    fn bring<'f>(
        &mut self,
        snapshot: &Snapshot,
        frontends: impl Iterator<Item = &'f Frontend>,
    ) -> Vec<Result<u16, reconciler::OpError>> {
        let settings = self.surroundings.settings(snapshot);
        let desired: Vec<_> = frontends.map(|frontend| Desired::of(frontend, &settings)).collect();
        let good: Vec<Desired> =
            desired.iter().filter_map(|desired| desired.as_ref().ok().cloned()).collect();
        let mut results = self.balancer.update(&good).into_iter();
        let mut next = || match results.next() {
            Some(Ok(id)) => Ok(id),
            Some(Err(error)) => Err(error.into()),
            None => Err("no result".into()),
        };
        desired.into_iter().map(|desired| desired.map_err(Into::into).and_then(|_| next())).collect()
    }
}

impl Ops<Frontend> for LbOps {
    fn update(&mut self, cx: &OpCx<'_>, frontend: &mut Frontend) -> OpResult {
        let results = self.bring(cx.snapshot, std::iter::once(&*frontend));
        for result in results {
            frontend.id = result?;
        }
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, frontend: &Frontend) -> OpResult {
        self.balancer.remove(&[frontend.address()]).into_iter().collect()
    }

    fn prune(&mut self, cx: &OpCx<'_>, frontends: Rows<'_, Frontend>) -> OpResult {
        let hurt = self.balancer.prune()?;
        let hurt: Vec<_> = frontends.filter(|frontend| hurt.contains(&frontend.address())).collect();
        let results = self.bring(cx.snapshot, hurt.iter().map(|frontend| &***frontend));
        results.into_iter().try_for_each(|result| result.map(drop))
    }
}

impl BatchOps<Frontend> for LbOps {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Frontend>]) {
        let results = self.bring(cx.snapshot, batch.iter().map(|entry| &entry.object));
        for (entry, result) in batch.iter_mut().zip(results) {
            match result {
                Ok(id) => entry.object.id = id,
                Err(error) => entry.result = Err(error),
            }
        }
    }

    fn delete_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Frontend>>]) {
        let addresses: Vec<_> = batch.iter().map(|entry| entry.object.address()).collect();
        for (entry, result) in batch.iter_mut().zip(self.balancer.remove(&addresses)) {
            entry.result = result;
        }
    }
}

//! Frontends into the maps: the operations of the reconciler.

use std::collections::HashMap;
use std::sync::Arc;

use devices::NodeAddress;
use maps::Comparisons;
use reconciler::{BatchEntry, BatchOps, OpCx, OpError, OpResult, Ops};
use statedb::{Obj, Rows, Snapshot, Table};

use crate::address::{LbAddress, Scope};
use crate::balancer::{Balancer, Failed};
use crate::desired::{Desired, Settings, TooMany};
use crate::frontend::Frontend;
use crate::restore::Pruned;

/// What decides about rows besides the frontends themselves.
pub(crate) struct Surroundings {
    /// What the options say.
    pub(crate) settings: Settings,
    /// The node's addresses.
    pub(crate) addresses: Option<Arc<Table<NodeAddress>>>,
    /// All frontends.
    pub(crate) frontends: Table<Frontend>,
}

impl Surroundings {
    fn settings(&self, snapshot: &Snapshot) -> Settings {
        let addresses = self.addresses.as_ref();
        let node_addresses = addresses.map(|table| table.all(snapshot).map(|row| row.addr).collect());
        Settings { node_addresses: node_addresses.unwrap_or_default(), ..self.settings.clone() }
    }

    fn other_scope(&self, snapshot: &Snapshot, address: LbAddress) -> Option<Obj<Frontend>> {
        let scope = match address.scope {
            Scope::External => Scope::Internal,
            Scope::Internal => Scope::External,
        };
        let other = self.frontends.get(snapshot, Frontend::by_address(&LbAddress { scope, ..address }));
        other.filter(|frontend| frontend.is_served()).cloned()
    }
}

/// Who compares the load balancer maps.
pub(crate) const KEEPER: &str = "loadbalancer";

/// The reconciler's operations.
pub(crate) struct LbOps {
    pub(crate) balancer: Balancer,
    pub(crate) comparisons: Arc<Comparisons>,
    pub(crate) surroundings: Surroundings,
}

impl LbOps {
    /// Brings frontends into the maps; gives the number of each. The row of an external scope sends clients inside the
    /// cluster on to the row of the internal one, which therefore comes first.
    pub(crate) fn bring<'f>(
        &mut self,
        snapshot: &Snapshot,
        frontends: impl Iterator<Item = &'f Frontend>,
    ) -> Vec<Result<u16, OpError>> {
        let settings = self.surroundings.settings(snapshot);
        let wanted: Vec<_> =
            frontends.map(|frontend| (frontend.address(), Desired::of(frontend, &settings))).collect();
        let internal: Vec<Desired> = wanted
            .iter()
            .filter(|(address, _)| address.scope == Scope::External)
            .filter_map(|(address, _)| self.surroundings.other_scope(snapshot, *address))
            .filter_map(|frontend| Desired::of(&frontend, &settings).ok())
            .collect();
        let results = self.balancer.update(&internal);
        let failed: HashMap<LbAddress, String> = internal
            .iter()
            .zip(results)
            .filter_map(|(desired, result)| Some((external(desired.address), result.err()?.to_string())))
            .collect();
        let ready = |(address, desired): (LbAddress, Result<Desired, TooMany>)| match failed.get(&address) {
            Some(error) if address.scope == Scope::External => Err(error.clone().into()),
            _ => desired.map_err(OpError::from),
        };
        let wanted: Vec<Result<Desired, OpError>> = wanted.into_iter().map(ready).collect();
        let good: Vec<Desired> = wanted.iter().flatten().cloned().collect();
        let mut results = self.balancer.update(&good).into_iter();
        let mut next =
            || results.next().unwrap_or(Err(Failed::Map("no result".into()))).map_err(OpError::from);
        wanted.into_iter().map(|desired| desired.and_then(|_| next())).collect()
    }

    /// Takes frontends out of the maps. The row of an external scope must not send clients on to the internal one any
    /// more when that goes.
    pub(crate) fn take_away(&mut self, snapshot: &Snapshot, addresses: &[LbAddress]) -> Vec<OpResult> {
        let internal = addresses.iter().filter(|address| address.scope == Scope::Internal);
        let external: Vec<Obj<Frontend>> =
            internal.filter_map(|address| self.surroundings.other_scope(snapshot, *address)).collect();
        let brought = self.bring(snapshot, external.iter().map(|frontend| &**frontend));
        let waits: HashMap<LbAddress, String> = external
            .iter()
            .zip(brought)
            .filter_map(|(frontend, result)| Some((frontend.address(), result.err()?.to_string())))
            .collect();
        let reason = |address: &LbAddress| match address.scope {
            Scope::Internal => waits.get(&self::external(*address)),
            Scope::External => None,
        };
        let free: Vec<LbAddress> =
            addresses.iter().filter(|address| reason(address).is_none()).copied().collect();
        let mut removed = self.balancer.remove(&free).into_iter();
        let mut next = || removed.next().unwrap_or(Err("no result".into()));
        let result = |address: &LbAddress| match reason(address) {
            Some(error) => Err(error.clone().into()),
            None => next(),
        };
        addresses.iter().map(result).collect()
    }
}

fn external(address: LbAddress) -> LbAddress {
    LbAddress { scope: Scope::External, ..address }
}

impl Ops<Frontend> for LbOps {
    fn update(&mut self, cx: &OpCx<'_>, frontend: &mut Frontend) -> OpResult {
        let results = self.bring(cx.snapshot, std::iter::once(&*frontend));
        for result in results {
            frontend.id = result?;
        }
        Ok(())
    }

    fn delete(&mut self, cx: &OpCx<'_>, frontend: &Frontend) -> OpResult {
        self.take_away(cx.snapshot, &[frontend.address()]).into_iter().collect()
    }

    fn prune(&mut self, cx: &OpCx<'_>, frontends: Rows<'_, Frontend>) -> OpResult {
        let Pruned { hurt, changed } = self.balancer.prune()?;
        let hurt: Vec<_> = frontends.filter(|frontend| hurt.contains(&frontend.address())).collect();
        let results = self.bring(cx.snapshot, hurt.iter().map(|frontend| &***frontend));
        results.into_iter().try_for_each(|result| result.map(drop))?;
        let repaired = changed.iter().map(|key| format!("{}: {key}", key.map().name())).collect();
        self.comparisons.compared(KEEPER, self.balancer.mirror.rows().count(), repaired);
        Ok(())
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

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Frontend>>]) {
        let addresses: Vec<_> = batch.iter().map(|entry| entry.object.address()).collect();
        for (entry, result) in batch.iter_mut().zip(self.take_away(cx.snapshot, &addresses)) {
            entry.result = result;
        }
    }
}

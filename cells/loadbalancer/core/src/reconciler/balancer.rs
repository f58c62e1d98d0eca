//! Writes frontends into the maps, in an order that is safe for packets at every step, and records the entries that the
//! maps may have.
//!
//! Every packet finds a live backend, or the one that it would have found before: entries of backends are written
//! before the slots that refer to them, slots before the count that covers them, and unused entries are deleted last. A
//! failure at any point keeps this invariant; entries that may have been written are recorded until they are known to
//! be deleted.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::{LbService, lb_flag2};

use crate::lbmap::maglev::{LastTable, Share, digest};
use crate::lbmap::rows::{Family, Key, LbMap, MapError, Value};
use crate::model::address::{LbAddress, Protocol, Scope};
use crate::model::backend::BackendState;
use crate::model::numbers::{Numbers, difference};
use crate::reconciler::backends::IdsExhausted;
use crate::reconciler::desired::Desired;
use crate::reconciler::id_file::{BACKENDS_AHEAD, FRONTENDS_AHEAD, IdFile, Positions};
use crate::reconciler::ids::Ids;
use crate::reconciler::mirror::Mirror;
use crate::reconciler::record::{Need, Plan, Removal, Slot, Upsert};

/// The reason why a frontend is not in the maps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpsertError {
    #[error("map {} is full: it holds at most {capacity} entries, this frontend needs {missing} more; \
             delete services or set a larger {}", .map.name(), .map.option())]
    Full { map: LbMap, capacity: usize, missing: usize },
    #[error(transparent)]
    IdsExhausted(#[from] IdsExhausted),
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The load balancer maps, as seen by their only writer.
pub(crate) struct Balancer {
    /// The known entries, with the records of frontends and backends.
    pub(crate) mirror: Mirror,
    pub(crate) ids: Ids,
    /// The highest slot of frontends of the previous run that have slots but no entry of their own.
    pub(crate) stray_slots: HashMap<LbAddress, u16>,
    pub(crate) last_table: LastTable,
    /// Addresses of the node that node ports expand to, by the frontend, with its scope.
    pub(crate) expansions: HashMap<LbAddress, BTreeSet<IpAddr>>,
    /// Backends that the previous run had found unhealthy, by frontend.
    pub(crate) quarantined: HashMap<LbAddress, BTreeSet<LbAddress>>,
    /// Ids of frontends of versions that did not distinguish protocols.
    pub(crate) of_any_protocol: HashMap<LbAddress, u16>,
    /// The number of entries for all ports of an address at the start, until the first comparison.
    pub(crate) restored_wildcards: usize,
    /// The file in which ids are reserved before they are used.
    pub(crate) id_file: Option<Arc<IdFile>>,
}

impl Balancer {
    /// Upserts the entries of many frontends at once. Each gets its own result.
    pub(crate) fn upsert<'d>(&mut self, batch: impl Iterator<Item = &'d mut Upsert>) {
        let mut chunk = Vec::with_capacity(batch.size_hint().0);
        let (mut need, mut free) = (Need::default(), Need::free(&self.mirror));
        for Upsert { desired, result } in batch {
            need.add(desired);
            if !need.fits(&free) {
                // Capacity is scarce: write the planned entries first, then count entries one by one.
                self.flush(&mut chunk);
                let fits = self.ensure_capacity(desired);
                (need, free) = (Need::default(), Need::free(&self.mirror));
                need.add(desired);
                if let Err(error) = fits {
                    need = Need::default();
                    *result = Err(error);
                    continue;
                }
            }
            chunk.extend(self.plan(desired, result));
        }
        self.flush(&mut chunk);
    }

    /// Writes planned entries in one batch; if the maps refuse one, frontend by frontend.
    fn flush(&mut self, chunk: &mut Vec<Plan<'_>>) {
        self.reserve_ids();
        let mut plans = std::mem::take(chunk);
        let written = self.write(&plans);
        plans.iter_mut().for_each(|plan| *plan.result = Ok(plan.id));
        match (written, &mut plans[..]) {
            (Ok(()), _) => {}
            (Err(error), [only]) => *only.result = Err(UpsertError::Map(error)),
            (Err(_), plans) => {
                // Entries of external scopes refer to internal ones, so internal ones are written first.
                plans.sort_by_key(|plan| Reverse(plan.desired.address.scope));
                for plan in plans {
                    if let Err(error) = self.write(std::slice::from_ref(plan)) {
                        *plan.result = Err(UpsertError::Map(error));
                    }
                }
            }
        }
    }

    /// Reserves ids ahead in the file, so that a restart after a crash does not assign them again. Rarely writes.
    fn reserve_ids(&mut self) {
        let Some(file) = &self.id_file else { return };
        let backends = self.mirror.store.backends.ids();
        if self.ids.is_reservation_due(FRONTENDS_AHEAD) || backends.is_reservation_due(BACKENDS_AHEAD) {
            file.store(Positions {
                frontends: self.ids.reserve_ahead(FRONTENDS_AHEAD),
                backends: backends.reserve_ahead(BACKENDS_AHEAD),
            });
        }
    }

    /// Continues with the ids after those of the previous run, according to the file.
    pub(crate) fn resume_ids(&mut self, file: Arc<IdFile>) {
        let positions = file.positions();
        self.ids.resume(positions.map(|positions| positions.frontends));
        self.mirror.store.backends.ids().resume(positions.map(|positions| positions.backends));
        self.id_file = Some(file);
    }

    /// Stores the exact next ids, called when no more are assigned. Creates no file if none were assigned.
    pub(crate) fn release_reserved_ids(&mut self) {
        let (frontends, backends) =
            (self.ids.position_after(0), self.mirror.store.backends.ids().position_after(0));
        if let Some(file) = self.id_file.as_ref().filter(|file| file.positions().is_some()) {
            file.store(Positions { frontends, backends });
        }
    }

    /// Assigns ids to the frontend and its backends; `None` if they are exhausted, which `result` then reports. From
    /// here on the maps may contain its entries.
    fn plan<'d>(
        &mut self,
        desired: &'d Desired,
        result: &'d mut Result<u16, UpsertError>,
    ) -> Option<Plan<'d>> {
        let address = desired.address;
        let begin = || {
            let id = id_of_any_protocol(&mut self.of_any_protocol, address);
            let id = id.or_else(|| self.ids.take().map(|id| id as u16))?;
            let slots = if self.stray_slots.is_empty() { None } else { self.stray_slots.remove(&address) };
            Some((id, slots.unwrap_or(0)))
        };
        let Some((record, backends)) = self.mirror.store.frontend_or_begin(address, begin) else {
            *result = Err(IdsExhausted("frontend").into());
            return None;
        };
        // Restored slots may refer to one backend twice: the first one counts.
        let known = if record.restored { &[][..] } else { record.backends() };
        let id = record.id;
        let mut plan =
            Plan { desired, result, id, backends: Numbers::new(), stale: Numbers::new(), cleans: false };
        let mut hold = || {
            let wanted = desired.slots.iter().chain(&desired.without_slot);
            let mut next = 0;
            for (backend, state) in wanted {
                // Most backends keep their position or move by one.
                let found = known.iter().enumerate().skip(next).take(2).find_map(|(place, number)| {
                    let held = backends.hold_known(*number, backend, id, *state)?;
                    next = place + 1;
                    Some(held)
                });
                let held = match found {
                    Some(held) => held,
                    None => backends.hold(*backend, id, *state)?,
                };
                plan.backends.push(held.id);
                if held.stale {
                    plan.stale.push(held.id);
                }
            }
            Ok(())
        };
        let held: Result<(), IdsExhausted> = hold();
        record.restored = false;
        if let Err(error) = held {
            record.add_backends(&plan.backends);
            *plan.result = Err(error.into());
            return None;
        }
        plan.cleans = record.expect(&plan);
        Some(plan)
    }

    /// Writes the entries of frontends in the order that keeps packets on live backends (see the module), then deletes
    /// those that are not desired any more.
    fn write(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        self.forget_unhealthy(plans)?;
        let mut rows = Vec::with_capacity(2 * plans.len());
        for Plan { desired, id, stale, .. } in plans {
            let LbAddress { ip, port, .. } = desired.address;
            rows.extend(stale.iter().filter_map(|backend| self.mirror.store.backends.row(*backend)));
            rows.push((Key::ReverseNat(Family::of(ip), *id), Value::ReverseNat(ip, port)));
            rows.extend(desired.ranges.iter().map(|range| (Key::SourceRange(*id, *range), Value::Present)));
        }
        for plan in plans {
            let matches = plan.matches().iter();
            rows.extend(matches.map(|backend| (Key::AffinityMatch(plan.id, *backend), Value::Present)));
        }
        self.mirror.write(rows)?;
        plans.iter().for_each(|plan| self.mirror.store.backends.written(&plan.stale));

        // Slots that will take no more connections leave the count before they get other backends.
        let (mut counts, mut unsure) = (Vec::new(), Vec::new());
        for Plan { desired, .. } in plans {
            let record = self.mirror.store.record(&desired.address);
            match record.map_or(Slot::Missing, |record| record.slot(0)) {
                Slot::Row(old) if old.count > desired.active => counts.push((*desired, old)),
                Slot::Unsure => unsure.push(*desired),
                _ => {}
            }
        }
        for desired in unsure {
            if let Some(Value::Service(old)) = self.mirror.get(&Key::master(desired.address))?
                && old.count > desired.active
            {
                counts.push((desired, old));
            }
        }
        let counts = counts.into_iter().map(|(desired, old)| {
            (Key::master(desired.address), Value::Service(LbService { count: desired.active, ..old }))
        });
        // In this order: a slot must not change its backend while the count still covers it for new connections.
        self.mirror.write(counts.collect())?;
        let slots = plans.iter().map(|plan| (plan.desired.address, plan.slots()));
        self.mirror.write_slots(slots)?;
        // In small chunks, because tables are large.
        plans.chunks(64).try_for_each(|plans| self.write_tables(plans))?;

        let mut rows = Vec::with_capacity(2 * plans.len());
        // The entry of an external scope refers to the internal one, so the internal one is written first.
        let (internal, external): (Vec<&Plan<'_>>, Vec<&Plan<'_>>) =
            plans.iter().partition(|plan| plan.desired.address.scope == Scope::Internal);
        for plan in internal.iter().chain(&external) {
            if let Some(needed) = plan.desired.needs
                && !internal.iter().any(|plan| plan.desired.address == needed)
                && self.mirror.get(&Key::master(needed))?.is_none()
            {
                return Err(format!("{needed} is not written yet").into());
            }
            rows.push(plan.desired.master(plan.id));
            rows.extend(self.mirror.store.desire_wildcard(&plan.desired.address, plan.desired.wildcard));
        }
        self.mirror.write(rows)?;
        self.clean(plans)
    }

    /// Sets `qcount` to zero where slots beyond the count get other backends, until all is written: a start takes active
    /// backends in these slots for unhealthy ones, and a crash in between must not mark the others unhealthy.
    fn forget_unhealthy(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut rows = Vec::new();
        for plan in plans {
            let key = Key::master(plan.desired.address);
            if let Some(Value::Service(old)) = self.mirror.get(&key)?
                && old.qcount > 0
                && !self.stay_behind(plan, &old)?
            {
                rows.push((key, Value::Service(LbService { qcount: 0, ..old })));
            }
        }
        self.mirror.write(rows)
    }

    /// Whether slots beyond the count, and the states of their backends, are unchanged.
    fn stay_behind(&mut self, plan: &Plan<'_>, old: &LbService) -> Result<bool, MapError> {
        let Plan { desired, backends, .. } = plan;
        let slots = desired.slots.len();
        let mut same =
            old.count == desired.active && usize::from(old.qcount) == slots - usize::from(old.count);
        for (slot, id) in (1..).zip(&backends[..slots]).skip(desired.active.into()) {
            let held = self.mirror.get(&Key::Service(desired.address, slot))?;
            same &= matches!(held, Some(Value::Service(row)) if row.backend_id == *id);
            if let Some((key, row)) = self.mirror.store.backends.row(*id) {
                same &= self.mirror.get(&key)? == Some(row);
            }
        }
        Ok(same)
    }

    fn write_tables(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut tables = Vec::new();
        for Plan { desired, id, backends, .. } in plans {
            let Some((maglev, weights)) = &desired.table else { continue };
            let share = |((id, weight), (address, _)): ((&u32, &u16), &(LbAddress, BackendState))| Share {
                address: *address,
                weight: *weight,
                id: *id,
            };
            let shares: Vec<Share> = backends.iter().zip(weights).zip(&desired.slots).map(share).collect();
            let source = hash(&(maglev.size(), &shares));
            let key = Key::Maglev(Family::of(desired.address.ip), *id);
            let known = self.mirror.store.frontend(&desired.address).and_then(|record| record.table());
            if let Some((before, digest)) = known
                && before == source
                && self.mirror.get(&key)? == Some(Value::Maglev(digest))
            {
                continue;
            }
            let table = self.last_table.of(*maglev, &shares);
            if let Some(record) = self.mirror.store.frontend_mut(&desired.address) {
                record.set_table(Some((source, digest(&table))));
            }
            tables.push((key, table));
        }
        self.mirror.write_tables(tables)
    }

    /// Deletes entries that the frontends do not desire any more.
    fn clean(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut keys = Vec::new();
        for plan in plans {
            let address = plan.desired.address;
            if plan.desired.table.is_none() {
                keys.push(Key::Maglev(Family::of(address.ip), plan.id));
            }
            if plan.desired.wildcard.is_none() && self.mirror.store.wildcards().row(address.ip).is_none() {
                keys.push(Key::wildcard(address.ip));
            }
            if !plan.cleans {
                continue;
            }
            let Some(record) = self.mirror.store.frontend(&address) else { continue };
            let count = plan.desired.slots.len() as u16;
            keys.extend((count..record.slots).map(|slot| Key::Service(address, slot + 1)));
            let matches = difference(record.matches(), plan.matches());
            keys.extend(matches.into_iter().map(|id| Key::AffinityMatch(plan.id, id)));
            let gone = record.ranges().iter().filter(|range| !plan.desired.ranges.contains(range));
            keys.extend(gone.map(|range| Key::SourceRange(plan.id, *range)));
        }
        self.mirror.delete(keys)?;
        for plan in plans.iter().filter(|plan| plan.cleans) {
            let Some(record) = self.mirror.store.frontend_mut(&plan.desired.address) else { continue };
            let gone = difference(record.backends(), &plan.backends);
            record.done(plan);
            gone.into_iter().for_each(|gone| self.mirror.store.backends.release(gone, plan.id));
        }
        self.flush_backends()
    }

    /// Deletes the entries of removals without an earlier failure, in one batch; if the maps refuse something, one by
    /// one.
    pub(crate) fn remove(&mut self, batch: &mut [Removal]) {
        let mut pending: Vec<&mut Removal> = batch.iter_mut().filter(|one| one.result.is_ok()).collect();
        let addresses: Vec<LbAddress> = pending.iter().map(|removal| removal.address).collect();
        match (self.delete_entries(&addresses), &mut pending[..]) {
            (Ok(()), _) => {}
            (Err(error), [only]) => only.result = Err(error),
            (Err(_), pending) => {
                for removal in pending {
                    removal.result = self.delete_entries(&[removal.address]);
                }
            }
        }
    }

    fn delete_entries(&mut self, batch: &[LbAddress]) -> Result<(), MapError> {
        self.part_scopes(batch)?;
        let known = || batch.iter().filter(|address| self.mirror.store.frontend(address).is_some());
        let mut masters: Vec<LbAddress> = known().copied().collect();
        // The entry of an external scope refers to the internal one, so the external one is deleted first.
        masters.sort_by_key(|address| address.scope);
        let masters = masters.into_iter().map(Key::master).collect();
        self.mirror.delete(masters)?;
        let mut keys = Vec::new();
        for address in batch {
            let Some(record) = self.mirror.store.frontend(address) else { continue };
            let id = record.id;
            keys.extend((1..=record.slots).map(|slot| Key::Service(*address, slot)));
            keys.extend(record.matches().iter().map(|backend| Key::AffinityMatch(id, *backend)));
            keys.extend(record.ranges().iter().map(|range| Key::SourceRange(id, *range)));
            keys.push(Key::ReverseNat(Family::of(address.ip), id));
            keys.push(Key::Maglev(Family::of(address.ip), id));
            self.mirror.store.desire_wildcard(address, None);
            if self.mirror.store.wildcards().row(address.ip).is_none() {
                keys.push(Key::wildcard(address.ip));
            }
        }
        self.mirror.delete(keys)?;
        let shared =
            batch.iter().filter_map(|address| self.mirror.store.wildcards().row(address.ip)).collect();
        self.mirror.write(shared)?;
        for address in batch {
            self.expansions.remove(address);
            self.quarantined.remove(address);
            let Some((id, backends)) = self.mirror.store.remove_frontend(address) else { continue };
            self.ids.release(id.into());
            for backend in backends {
                self.mirror.store.backends.release(backend, id);
            }
        }
        self.flush_backends()
    }

    /// Rewrites entries of external scopes so that they do not refer to internal ones that are about to be deleted;
    /// this holds even if a later step fails.
    fn part_scopes(&mut self, batch: &[LbAddress]) -> Result<(), MapError> {
        let mut rows = Vec::new();
        for internal in batch.iter().filter(|address| address.scope == Scope::Internal) {
            let external = LbAddress { scope: Scope::External, ..*internal };
            if !batch.contains(&external)
                && let Some(Value::Service(row)) = self.mirror.get(&Key::master(external))?
                && row.flags2 & lb_flag2::TWO_SCOPES != 0
            {
                let flags2 = row.flags2 & !lb_flag2::TWO_SCOPES;
                rows.push((Key::master(external), Value::Service(LbService { flags2, ..row })));
            }
        }
        self.mirror.write(rows)
    }

    /// Ends the wait for announced updates: deletes backends that none of them uses.
    pub(crate) fn drop_awaited(&mut self) -> Result<(), MapError> {
        match self.mirror.store.backends.drop_awaited() {
            true => self.flush_backends(),
            false => Ok(()),
        }
    }

    /// Updates the entries of released backends, and deletes those without users. Also retries earlier failures.
    pub(crate) fn flush_backends(&mut self) -> Result<(), MapError> {
        let (changed, orphans) = self.mirror.store.backends.left_over();
        self.mirror.write(changed)?;
        self.mirror.delete(orphans)?;
        self.mirror.store.backends.flushed();
        Ok(())
    }
}

/// Returns the id that versions without protocols have assigned to an address.
fn id_of_any_protocol(ids: &mut HashMap<LbAddress, u16>, address: LbAddress) -> Option<u16> {
    if ids.is_empty() {
        return None;
    }
    ids.remove(&LbAddress { protocol: Protocol::Any, ..address })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

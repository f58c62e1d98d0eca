//! Frontends into the maps: what is written in which order, and what is remembered of it.
//!
//! Every packet finds a living backend, or the one it would have found before: rows of backends come before the slots
//! that name them, slots before the count that covers them, and all that is not named any more goes last. A failure at
//! any point leaves that true; what may have been written is remembered until it is known to be gone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use datapath_abi::{LbService, lb_flag2};
use ipnetwork::IpNetwork;

use crate::address::{LbAddress, Protocol, Scope};
use crate::backend::BackendState;
use crate::backends::{Backends, NoNumber};
use crate::desired::{Desired, Flags, wildcard_row};
use crate::ids::Ids;
use crate::maglev::{LastTable, Share, digest};
use crate::mirror::Mirror;
use crate::rows::{Family, Key, LbMap, MapError, Value};

/// Why a frontend is not in the maps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("map {} is full: it has room for {capacity} rows, this frontend needs {missing} more; \
             delete services or set a larger {}", .map.name(), .map.option())]
    Full { map: LbMap, capacity: usize, missing: usize },
    #[error(transparent)]
    NoNumber(#[from] NoNumber),
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The load balancer maps as their only writer sees them.
pub(crate) struct Balancer {
    pub(crate) mirror: Mirror,
    pub(crate) ids: Ids,
    pub(crate) frontends: HashMap<LbAddress, Record>,
    pub(crate) backends: Backends,
    /// Which frontends want the row for all ports of an address.
    pub(crate) wildcards: HashMap<IpAddr, BTreeMap<LbAddress, Flags>>,
    /// Highest slot of frontends of an earlier run that have no row of their own.
    pub(crate) stray_slots: HashMap<LbAddress, u16>,
    pub(crate) last_table: LastTable,
    /// Addresses of the node that ports of the node have rows at, by the frontend that says so, scope and all.
    pub(crate) expansions: HashMap<LbAddress, BTreeSet<IpAddr>>,
    /// Backends that an earlier run had found unhealthy, by frontend.
    pub(crate) quarantined: HashMap<LbAddress, BTreeSet<LbAddress>>,
    /// Numbers of frontends of versions that did not tell protocols apart.
    pub(crate) of_any_protocol: HashMap<LbAddress, u16>,
}

/// What may be in the maps of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: u16,
    /// Left by an earlier run, and nobody has asked for it yet.
    pub(crate) restored: bool,
    /// Slots 1 to this one.
    pub(crate) slots: u16,
    /// Backends that slots may name.
    pub(crate) backends: BTreeSet<u32>,
    pub(crate) matches: BTreeSet<u32>,
    pub(crate) ranges: BTreeSet<IpNetwork>,
    /// What its table was made of, and the table's digest.
    pub(crate) table: Option<(u64, u64)>,
}

impl Record {
    /// Its own rows in the maps, without those it shares.
    pub(crate) fn rows(&self, address: LbAddress) -> impl Iterator<Item = Key> + '_ {
        let id = self.id;
        let slots = (0..=self.slots).map(move |slot| Key::Service(address, slot));
        let matches = self.matches.iter().map(move |backend| Key::AffinityMatch(id, *backend));
        let ranges = self.ranges.iter().map(move |range| Key::SourceRange(id, *range));
        let reverse = std::iter::once(Key::ReverseNat(Family::of(address.ip), id));
        let table = std::iter::once(Key::Maglev(Family::of(address.ip), id));
        slots.chain(matches).chain(ranges).chain(reverse).chain(table)
    }
}

/// A frontend on its way into the maps.
struct Plan<'d> {
    desired: &'d Desired,
    id: u16,
    /// Numbers of the backends of the slots, then of those without.
    backends: Vec<u32>,
}

impl Plan<'_> {
    fn matches(&self) -> BTreeSet<u32> {
        self.backends[..usize::from(self.desired.matches)].iter().copied().collect()
    }
}

/// How many rows at most a frontend needs in each map.
#[derive(Debug, Clone, Default)]
struct Need(BTreeMap<LbMap, usize>);

impl Need {
    /// As if the maps had nothing of it.
    fn all_of(desired: &Desired) -> Need {
        let family = Family::of(desired.address.ip);
        Need(BTreeMap::from([
            (LbMap::Services(family), desired.slots.len() + 1 + usize::from(desired.wildcard.is_some())),
            (LbMap::Backends(family), desired.slots.len() + desired.without_slot.len()),
            (LbMap::ReverseNat(family), 1),
            (LbMap::AffinityMatch, usize::from(desired.matches)),
            (LbMap::SourceRanges(family), desired.ranges.len()),
            (LbMap::Maglev(family), usize::from(desired.table.is_some())),
        ]))
    }

    fn and(mut self, other: &Need) -> Need {
        other.0.iter().for_each(|(map, count)| *self.0.entry(*map).or_default() += count);
        self
    }

    /// The map that has no room for it.
    fn check(&self, mirror: &Mirror) -> Result<(), Failed> {
        for (map, count) in &self.0 {
            let missing = count.saturating_sub(mirror.room(*map));
            if missing > 0 {
                return Err(Failed::Full { map: *map, capacity: mirror.capacity(*map), missing });
            }
        }
        Ok(())
    }
}

impl Balancer {
    /// Brings frontends into the maps, many at once; gives the number of each.
    pub(crate) fn update(&mut self, batch: &[Desired]) -> Vec<Result<u16, Failed>> {
        let mut results = Vec::with_capacity(batch.len());
        let (mut chunk, mut need) = (Vec::new(), Need::default());
        for desired in batch {
            let with = Need::all_of(desired).and(&need);
            if with.check(&self.mirror).is_ok() {
                need = with;
            } else {
                // Space is scarce: what is planned is written first, then rows are counted one by one.
                self.flush(&mut chunk, &mut results);
                need = Need::default();
                if let Err(error) = self.make_room(desired) {
                    results.push(Err(error));
                    continue;
                }
            }
            match self.plan(desired) {
                Ok(plan) => chunk.push(plan),
                Err(error) => {
                    self.flush(&mut chunk, &mut results);
                    results.push(Err(error));
                }
            }
        }
        self.flush(&mut chunk, &mut results);
        results
    }

    /// Writes what is planned; when the maps refuse something, one by one.
    fn flush(&mut self, chunk: &mut Vec<Plan<'_>>, results: &mut Vec<Result<u16, Failed>>) {
        let plans = std::mem::take(chunk);
        let first = results.len();
        match self.write(&plans) {
            Err(error) if plans.len() == 1 => results.push(Err(Failed::Map(error))),
            Err(_) => {
                results.extend(plans.iter().map(|plan| Ok(plan.id)));
                let mut order: Vec<usize> = (0..plans.len()).collect();
                order.sort_by_key(|index| Reverse(plans[*index].desired.address.scope));
                for index in order {
                    if let Err(error) = self.write(&plans[index..=index]) {
                        results[first + index] = Err(Failed::Map(error));
                    }
                }
            }
            Ok(()) => results.extend(plans.iter().map(|plan| Ok(plan.id))),
        }
    }

    /// Numbers for the frontend and its backends. From here on the maps may have its rows.
    fn plan<'d>(&mut self, desired: &'d Desired) -> Result<Plan<'d>, Failed> {
        let address = desired.address;
        let record = match self.frontends.get_mut(&address) {
            Some(record) => record,
            None => {
                let any = LbAddress { protocol: Protocol::Any, ..address };
                let id = match self.of_any_protocol.remove(&any) {
                    Some(id) => id,
                    None => self.ids.take().ok_or(NoNumber("frontend"))? as u16,
                };
                let slots = self.stray_slots.remove(&address).unwrap_or(0);
                self.frontends.entry(address).or_insert(Record { id, slots, ..Record::default() })
            }
        };
        record.restored = false;
        let mut backends = Vec::with_capacity(desired.slots.len() + desired.without_slot.len());
        for (backend, state) in desired.slots.iter().chain(&desired.without_slot) {
            let id = self.backends.hold(*backend, record.id, *state)?;
            record.backends.insert(id);
            backends.push(id);
        }
        let plan = Plan { desired, id: record.id, backends };
        record.slots = record.slots.max(desired.slots.len() as u16);
        record.matches.extend(plan.matches());
        record.ranges.extend(&desired.ranges);
        Ok(plan)
    }

    fn write(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut rows = Vec::new();
        for Plan { desired, id, backends } in plans {
            let LbAddress { ip, port, .. } = desired.address;
            rows.extend(backends.iter().filter_map(|backend| self.backends.row(*backend)));
            rows.push((Key::ReverseNat(Family::of(ip), *id), Value::ReverseNat(ip, port)));
            rows.extend(desired.ranges.iter().map(|range| (Key::SourceRange(*id, *range), Value::Present)));
            let matches = &backends[..usize::from(desired.matches)];
            rows.extend(matches.iter().map(|backend| (Key::AffinityMatch(*id, *backend), Value::Present)));
        }
        self.mirror.put(rows)?;

        // Slots that are about to take no more connections leave the count before they get other backends.
        let mut rows = Vec::new();
        for Plan { desired, .. } in plans {
            let key = Key::master(desired.address);
            if let Some(Value::Service(old)) = self.mirror.get(&key)?
                && old.count > desired.active
            {
                rows.push((key, Value::Service(LbService { count: desired.active, ..old })));
            }
        }
        self.mirror.put(rows)?;

        let slots = plans.iter().flat_map(|Plan { desired, id, backends }| {
            let slots = (1..=desired.slots.len() as u16).zip(backends);
            slots.map(|(slot, backend)| desired.slot(*id, slot, *backend))
        });
        self.mirror.put(slots.collect())?;
        // A few at a time, for they are large.
        plans.chunks(64).try_for_each(|plans| self.write_tables(plans))?;

        let mut rows = Vec::new();
        // The row of an external scope leads to the internal one, which therefore comes first.
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
            self.want_wildcard(plan.desired);
            rows.extend(self.wildcard(plan.desired.address.ip));
        }
        self.mirror.put(rows)?;
        self.clean(plans)
    }

    fn write_tables(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut tables = Vec::new();
        for Plan { desired, id, backends } in plans {
            let Some((maglev, weights)) = &desired.table else { continue };
            let share = |((id, weight), (address, _)): ((&u32, &u16), &(LbAddress, BackendState))| Share {
                address: *address,
                weight: *weight,
                id: *id,
            };
            let shares: Vec<Share> = backends.iter().zip(weights).zip(&desired.slots).map(share).collect();
            let source = hash(&(maglev.size(), &shares));
            let key = Key::Maglev(Family::of(desired.address.ip), *id);
            let Some(record) = self.frontends.get_mut(&desired.address) else { continue };
            if let Some((before, digest)) = record.table
                && before == source
                && self.mirror.get(&key)? == Some(Value::Maglev(digest))
            {
                continue;
            }
            let table = self.last_table.of(*maglev, &shares);
            record.table = Some((source, digest(&table)));
            tables.push((key, table));
        }
        self.mirror.put_tables(tables)
    }

    /// Deletes what the frontends had before and do not have any more.
    fn clean(&mut self, plans: &[Plan<'_>]) -> Result<(), MapError> {
        let mut keys = Vec::new();
        for plan in plans {
            let address = plan.desired.address;
            let Some(record) = self.frontends.get(&address) else { continue };
            let matches = plan.matches();
            let count = plan.desired.slots.len() as u16;
            if plan.desired.table.is_none() {
                keys.push(Key::Maglev(Family::of(address.ip), plan.id));
            }
            keys.extend((count..record.slots).map(|slot| Key::Service(address, slot + 1)));
            keys.extend(record.matches.difference(&matches).map(|id| Key::AffinityMatch(plan.id, *id)));
            let gone = record.ranges.iter().filter(|range| !plan.desired.ranges.contains(range));
            keys.extend(gone.map(|range| Key::SourceRange(plan.id, *range)));
            if self.wildcard(address.ip).is_none() {
                keys.push(Key::wildcard(address.ip));
            }
        }
        self.mirror.delete(keys)?;
        for plan in plans {
            let Some(record) = self.frontends.get_mut(&plan.desired.address) else { continue };
            record.slots = plan.desired.slots.len() as u16;
            record.matches = plan.matches();
            record.ranges = plan.desired.ranges.iter().copied().collect();
            let backends = plan.backends.iter().copied().collect();
            let before = std::mem::replace(&mut record.backends, backends);
            for gone in before.difference(&record.backends) {
                self.backends.release(*gone, plan.id);
            }
        }
        self.settle()
    }

    /// Removes frontends from the maps, all at once; when the maps refuse something, one by one.
    pub(crate) fn remove(&mut self, batch: &[LbAddress]) -> Vec<Result<(), MapError>> {
        match self.remove_all(batch) {
            Err(error) if batch.len() == 1 => vec![Err(error)],
            Err(_) => batch.iter().map(|address| self.remove_all(&[*address])).collect(),
            Ok(()) => batch.iter().map(|_| Ok(())).collect(),
        }
    }

    fn remove_all(&mut self, batch: &[LbAddress]) -> Result<(), MapError> {
        self.part_scopes(batch)?;
        let known = || batch.iter().filter(|address| self.frontends.contains_key(address));
        let mut masters: Vec<LbAddress> = known().copied().collect();
        // The row of an external scope leads to the internal one.
        masters.sort_by_key(|address| address.scope);
        let masters = masters.into_iter().map(Key::master).collect();
        self.mirror.delete(masters)?;
        let mut keys = Vec::new();
        for address in batch {
            let Some(record) = self.frontends.get(address) else { continue };
            let id = record.id;
            keys.extend((1..=record.slots).map(|slot| Key::Service(*address, slot)));
            keys.extend(record.matches.iter().map(|backend| Key::AffinityMatch(id, *backend)));
            keys.extend(record.ranges.iter().map(|range| Key::SourceRange(id, *range)));
            keys.push(Key::ReverseNat(Family::of(address.ip), id));
            keys.push(Key::Maglev(Family::of(address.ip), id));
            if let Some(wanted) = self.wildcards.get_mut(&address.ip) {
                wanted.remove(address);
            }
            if self.wildcard(address.ip).is_none() {
                keys.push(Key::wildcard(address.ip));
            }
        }
        self.mirror.delete(keys)?;
        let shared = batch.iter().filter_map(|address| self.wildcard(address.ip)).collect();
        self.mirror.put(shared)?;
        for address in batch {
            self.expansions.remove(address);
            self.quarantined.remove(address);
            let Some(record) = self.frontends.remove(address) else { continue };
            self.ids.give_back(record.id.into());
            for backend in record.backends {
                self.backends.release(backend, record.id);
            }
        }
        self.settle()
    }

    /// Rows of external scopes that stay do not lead to internal ones any more that go, whatever comes of them later.
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
        self.mirror.put(rows)
    }

    /// Brings rows of backends up to date that frontends have let go of. Also what an earlier failure has left.
    pub(crate) fn settle(&mut self) -> Result<(), MapError> {
        let (changed, orphans) = self.backends.left_over();
        self.mirror.put(changed)?;
        self.mirror.delete(orphans)?;
        self.backends.settled();
        self.wildcards.retain(|_, wanted| !wanted.is_empty());
        Ok(())
    }

    fn want_wildcard(&mut self, desired: &Desired) {
        let wanted = self.wildcards.entry(desired.address.ip).or_default();
        match desired.wildcard {
            Some(flags) => _ = wanted.insert(desired.address, flags),
            None => _ = wanted.remove(&desired.address),
        }
    }

    /// The row for all ports of an address, if a frontend wants it: of all types that do.
    pub(crate) fn wildcard(&self, ip: IpAddr) -> Option<(Key, Value)> {
        let wanted = self.wildcards.get(&ip).filter(|wanted| !wanted.is_empty())?;
        let flags = wanted.values().fold(Flags::default(), |all, one| Flags(all.0 | one.0, all.1 | one.1));
        Some(wildcard_row(ip, flags))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

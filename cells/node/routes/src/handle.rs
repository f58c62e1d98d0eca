//! The handle by which cells desire routes, and the selection among owners.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reconciler::{Handle, Status, StatusKind};
use statedb::{Initializer, RwTable, Table, Writer};

use crate::fib;
use crate::{DesiredRoute, Error, FibKey};

/// The time that [`Routes::upsert_wait`] waits for the kernel's result.
pub const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Desires routes on behalf of owners; they are kept in the kernel until their owner deletes them.
#[derive(Clone, Debug)]
pub struct Routes {
    table: Arc<RwTable<DesiredRoute>>,
    reconciler: Handle,
    own_device: Arc<OnceLock<Box<str>>>,
}

impl Routes {
    pub(crate) fn new(
        table: Arc<RwTable<DesiredRoute>>,
        reconciler: Handle,
        own_device: Arc<OnceLock<Box<str>>>,
    ) -> Self {
        Self { table, reconciler, own_device }
    }

    /// Declares that all routes of protocol `kernel` in the main table by this device are in the table, so that prunes
    /// delete those of Cilium and of earlier versions, which are in no log. There is one such device; a second
    /// declaration has no effect.
    pub fn claim_device(&self, name: &str) {
        let _ = self.own_device.set(name.into());
    }

    /// Returns the table of all desired routes.
    #[must_use]
    pub fn table(&self) -> Table<DesiredRoute> {
        self.table.reader()
    }

    /// Registers a source of routes. Until it [has finished](Self::finish) no route of the previous run is deleted.
    pub fn register_initializer(&self, name: &str) -> Initializer<DesiredRoute> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Declares that a source has named all of its routes.
    pub fn finish(&self, initializer: Initializer<DesiredRoute>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Upserts routes of an owner; its other routes stay. Returns the table's revision.
    pub fn upsert(&self, owner: &str, routes: impl IntoIterator<Item = DesiredRoute>) -> u64 {
        self.change(|txn| {
            let owner = Arc::from(owner);
            routes.into_iter().for_each(|route| upsert(txn, &owner, route));
        })
    }

    /// Upserts routes of an owner, and waits at most [`WAIT_LIMIT`] until the kernel has those that are selected.
    pub async fn upsert_wait(&self, owner: &str, routes: Vec<DesiredRoute>) -> Result<(), Error> {
        let keys: Vec<FibKey> = routes.iter().map(|route| route.key).collect();
        let revision = self.upsert(owner, routes);
        let tried = tokio::time::timeout(WAIT_LIMIT, self.reconciler.wait_until(revision)).await;
        tried.map_err(|_| Error::Timeout { limit: WAIT_LIMIT })?.map_err(|_| Error::Stopped)?;
        let snapshot = self.table.snapshot();
        for key in keys {
            let row = self.table.get(&snapshot, DesiredRoute::by_id(owner, key));
            if let Some(row) = row.filter(|row| row.status.kind() == StatusKind::Error) {
                let reason = row.status.error().unwrap_or_default().to_owned();
                return Err(Error::NotInstalled { key, reason });
            }
        }
        Ok(())
    }

    /// Deletes routes of an owner. Returns the table's revision.
    pub fn delete(&self, owner: &str, keys: impl IntoIterator<Item = FibKey>) -> u64 {
        self.change(|txn| keys.into_iter().for_each(|key| delete(txn, owner, key)))
    }

    /// Sets all routes of owners: those that are not named are deleted, equal ones are not touched. Returns the table's
    /// revision.
    pub fn replace<'o>(&self, owners: impl IntoIterator<Item = (&'o str, Vec<DesiredRoute>)>) -> u64 {
        self.change(|txn| {
            for (owner, routes) in owners {
                let stale = txn.prefix(DesiredRoute::by_owner(owner)).map(|row| row.key);
                let stale = stale.filter(|key| !routes.iter().any(|route| route.key == *key));
                let stale: Vec<FibKey> = stale.collect();
                stale.into_iter().for_each(|key| delete(txn, owner, key));
                let owner = Arc::from(owner);
                routes.into_iter().for_each(|route| upsert(txn, &owner, route));
            }
        })
    }

    /// Deletes all routes of an owner. Returns the table's revision.
    pub fn remove_owner(&self, owner: &str) -> u64 {
        self.replace([(owner, Vec::new())])
    }

    fn change(&self, work: impl FnOnce(&mut Writer<'_, DesiredRoute>)) -> u64 {
        let mut txn = self.table.write();
        work(&mut txn);
        let snapshot = txn.commit();
        self.table.revision(&snapshot)
    }
}

pub(crate) fn upsert(txn: &mut Writer<'_, DesiredRoute>, owner: &Arc<str>, mut route: DesiredRoute) {
    route.owner = Arc::clone(owner);
    route.key.prefix = fib::network(route.key.prefix);
    let key = route.key;
    match txn.get(DesiredRoute::by_id(owner, key)) {
        Some(current) if current.is_equal(&route) => return,
        // The selection below changes only rows of which the flag differs.
        Some(current) => route.selected = current.selected,
        None => route.selected = false,
    }
    route.status = Status::pending();
    txn.insert(route);
    select(txn, key);
}

pub(crate) fn delete(txn: &mut Writer<'_, DesiredRoute>, owner: &str, key: FibKey) {
    if txn.delete(DesiredRoute::by_id(owner, key)).is_some() {
        select(txn, key);
    }
}

/// Selects the preferred one among the routes of a key.
fn select(txn: &mut Writer<'_, DesiredRoute>, key: FibKey) {
    let preferred = txn.list(DesiredRoute::by_key(key)).min_by_key(|row| row.preference());
    let Some(preferred) = preferred.map(|row| Arc::clone(&row.owner)) else { return };
    let changed = txn.list(DesiredRoute::by_key(key)).filter(|row| row.selected != (row.owner == preferred));
    let changed: Vec<DesiredRoute> = changed.map(|row| DesiredRoute::clone(row)).collect();
    for mut row in changed {
        row.selected = row.owner == preferred;
        row.status = Status::pending();
        txn.insert(row);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use statedb::Db;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Upsert { owner: u8, prefix: u8, distance: u8, mtu: u32 },
        Delete { owner: u8, prefix: u8 },
        Replace { owner: u8, prefixes: Vec<u8> },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..4u8, 0..3u8, 1..4u8, 0..2u32).prop_map(|(owner, prefix, distance, mtu)| Event::Upsert {
                owner,
                prefix,
                distance,
                mtu
            }),
            (0..4u8, 0..3u8).prop_map(|(owner, prefix)| Event::Delete { owner, prefix }),
            (0..4u8, proptest::collection::vec(0..3u8, 0..3))
                .prop_map(|(owner, prefixes)| Event::Replace { owner, prefixes }),
        ]
    }

    fn route(prefix: u8, distance: u8, mtu: u32) -> DesiredRoute {
        let prefix = ipnetwork::IpNetwork::new([10, 0, prefix, 0].into(), 24).unwrap();
        DesiredRoute::new(prefix).admin_distance(distance).mtu(mtu)
    }

    proptest! {
        #[test]
        fn any_order_of_events_selects_as_a_naive_model(events in proptest::collection::vec(event(), 0..40)) {
            let table = Arc::new(Db::new().table_with_display::<DesiredRoute>().unwrap());
            let (handle, _reconciler) = reconciler::Reconciler::builder(RwTable::clone(&table))
                .status(|row: &DesiredRoute| &row.status, |row, status| row.status = status)
                .ops(Idle)
                .build();
            let routes = Routes::new(Arc::clone(&table), handle, Arc::default());
            // (prefix, owner) -> (distance, mtu)
            let mut model: BTreeMap<(u8, u8), (u8, u32)> = BTreeMap::new();
            for event in events {
                match event {
                    Event::Upsert { owner, prefix, distance, mtu } => {
                        let before = table.revision(&table.snapshot());
                        let after = routes.upsert(&owner.to_string(), [route(prefix, distance, mtu)]);
                        let old = model.insert((prefix, owner), (distance, mtu));
                        prop_assert_eq!(old == Some((distance, mtu)), before == after, "an equal one is not touched");
                    }
                    Event::Delete { owner, prefix } => {
                        routes.delete(&owner.to_string(), [route(prefix, 1, 0).key]);
                        model.remove(&(prefix, owner));
                    }
                    Event::Replace { owner, prefixes } => {
                        let all = prefixes.iter().map(|prefix| route(*prefix, 2, 9)).collect();
                        routes.replace([(&*owner.to_string(), all)]);
                        model.retain(|(_, other), _| *other != owner);
                        model.extend(prefixes.iter().map(|prefix| ((*prefix, owner), (2, 9))));
                    }
                }
                let best = |prefix: u8| {
                    let of_prefix = model.iter().filter(|((p, _), _)| *p == prefix);
                    of_prefix.map(|((_, owner), (distance, _))| (*distance, *owner)).min()
                };
                let expected: BTreeSet<(u8, u8, u8, u32, bool)> = model
                    .iter()
                    .map(|((p, o), (d, m))| (*p, *o, *d, *m, best(*p) == Some((*d, *o))))
                    .collect();
                let snapshot = table.snapshot();
                let found: BTreeSet<(u8, u8, u8, u32, bool)> = table
                    .all(&snapshot)
                    .map(|row| {
                        let std::net::IpAddr::V4(ip) = row.key.prefix.ip() else { unreachable!() };
                        (ip.octets()[2], row.owner.parse().unwrap(), row.admin_distance, row.mtu, row.selected)
                    })
                    .collect();
                prop_assert_eq!(found, expected);
            }
        }
    }

    struct Idle;

    impl reconciler::Ops<DesiredRoute> for Idle {
        fn update(&mut self, _: &reconciler::OpCx<'_>, _: &mut DesiredRoute) -> reconciler::OpResult {
            Ok(())
        }

        fn delete(&mut self, _: &reconciler::OpCx<'_>, _: &DesiredRoute) -> reconciler::OpResult {
            Ok(())
        }

        fn prune(
            &mut self,
            _: &reconciler::OpCx<'_>,
            _: statedb::Rows<'_, DesiredRoute>,
        ) -> reconciler::OpResult {
            Ok(())
        }
    }
}

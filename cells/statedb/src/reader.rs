//! A cached snapshot for repeated reads.

use crate::db::{Db, Snapshot};

/// A cached snapshot, renewed only if something was published since.
///
/// For hot loops: without a change, [`latest`](Self::latest) is one load and a comparison, and threads do not contend
/// for the counter that snapshots increment. It is `Send`; each thread uses its own. The cached snapshot keeps its rows
/// allocated until the next call: drop the reader before long waits.
///
/// ```
/// # use statedb::*;
/// # #[derive(Clone)] struct Route { id: u32, gateway: u32 }
/// # impl TableSpec for Route {
/// #   const NAME: &'static str = "routes";
/// #   type Key<'a> = u32;
/// #   fn key(&self) -> u32 { self.id }
/// # }
/// let db = Db::new();
/// let routes = db.table::<Route>().unwrap();
/// routes.transact(|w| w.insert(Route { id: 1, gateway: 7 }));
/// let mut reader = db.reader();
/// for _packet in 0..3 {
///     let route = routes.get(reader.latest(), Query::primary(1)).unwrap();
///     assert_eq!(route.gateway, 7);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    db: Db,
    snapshot: Snapshot,
}

impl Reader {
    pub(crate) fn new(db: Db) -> Self {
        Reader { snapshot: db.snapshot(), db }
    }

    /// Returns a snapshot of all tables as they are now.
    #[inline]
    pub fn latest(&mut self) -> &Snapshot {
        if !self.snapshot.is_current() {
            self.renew();
        }
        &self.snapshot
    }

    #[cold]
    fn renew(&mut self) {
        self.snapshot = self.db.snapshot();
    }
}

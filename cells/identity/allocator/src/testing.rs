//! Identities without files and without a hive, for tests of cells that use them.

use std::time::Instant;

use identity_core::{ClusterIdentity, ClusterObject, Range};
use labels::{LabelArray, Labels};
use statedb::{Db, Table};

use crate::allocator::{Identities, QUARANTINE};
use crate::cluster::Change;
use crate::error::Error;
use crate::identity::Identity;
use crate::prefixes::Prefixes;
use crate::request::Requests;
use crate::reserved::reserved;

/// Returns both handles on a new table, initialised, with the fixed identities; IPv4 and IPv6 are enabled.
pub fn identities() -> (Identities, Prefixes, Table<Identity>) {
    of(&Db::new(), None)
}

/// As [`identities`], in a database; with files in a folder, if there is one.
///
/// # Panics
/// If the database has the table already or the files cannot be read.
pub fn of(db: &Db, folder: Option<&std::path::Path>) -> (Identities, Prefixes, Table<Identity>) {
    try_of(db, folder).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`of`], with errors for unreadable files.
///
/// # Errors
/// The errors with which a start with such files fails.
///
/// # Panics
/// If the database has the table already.
pub fn try_of(
    db: &Db,
    folder: Option<&std::path::Path>,
) -> Result<(Identities, Prefixes, Table<Identity>), Error> {
    let table = match db.table::<Identity>() {
        Ok(table) => table,
        Err(error) => panic!("{error}"),
    };
    table.transact(|w| reserved().for_each(|row| drop(w.insert(row))));
    let path = |name| folder.map(|folder| folder.join(name));
    let identities = Identities::new(table.clone(), Range::of_cluster(0, 255), path(crate::cell::FILE));
    let prefixes = Prefixes::new(table.clone(), [true, true], path(crate::cell::CHECKPOINT));
    identities.restore().and_then(|_| prefixes.restore())?;
    Ok((identities, prefixes, table.reader()))
}

/// Removes the identities that are in quarantine, as after its time. Returns their number.
pub fn end_quarantine(identities: &Identities) -> usize {
    identities.sweep(Instant::now() + QUARANTINE)
}

/// The cluster of [`of_cluster`].
#[derive(Debug, Clone)]
pub struct FakeCluster(Identities, Requests);

impl FakeCluster {
    /// Makes the object of an identity, which may have been another label set's.
    pub fn create(&self, id: u32, labels: &Labels) {
        let (labels, object) = (LabelArray::from(labels), ClusterObject { created: None, heartbeat: false });
        self.0.apply([Change::Upsert(ClusterIdentity { id, labels: labels.clone(), object })]);
        self.1.finish(&labels);
    }
}

/// Identities of a cluster in which nothing creates an object but the test.
///
/// # Panics
/// If the database has the tables already.
pub fn of_cluster(db: &Db) -> (Identities, FakeCluster, Table<Identity>) {
    let (table, requests) = match (db.table::<Identity>(), db.table()) {
        (Ok(table), Ok(requests)) => (table, Requests::new(requests)),
        (Err(error), _) | (_, Err(error)) => panic!("{error}"),
    };
    table.transact(|w| reserved().for_each(|row| drop(w.insert(row))));
    let identities = Identities::of_cluster(table.clone(), Range::of_cluster(0, 255), requests.clone());
    (identities.clone(), FakeCluster(identities, requests), table.reader())
}

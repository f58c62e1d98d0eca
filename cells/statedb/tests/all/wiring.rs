//! Tables in a hive.

use std::sync::Arc;

use hive::prelude::*;
use statedb::{Db, RwTable, Table};

use crate::rows::*;

#[tokio::test]
async fn the_owner_writes_and_other_modules_read() {
    let owner = module(
        "pods",
        "Pods",
        [
            statedb::table::<Pod>(),
            invoke(|pods: Arc<RwTable<Pod>>| drop(pods.transact(|w| w.insert(pod(1, "a", &[]))))),
        ],
    );
    let reader = module(
        "reader",
        "Reads pods",
        [invoke(|pods: Arc<Table<Pod>>, db: Arc<Db>| {
            assert_eq!(pods.len(&db.snapshot()), 1);
        })],
    );
    let mut hive = TestHive::new([owner.clone(), reader, statedb::cell()]);
    hive.start().await;
    assert_eq!(hive.get::<Db>().tables().iter().map(|table| table.name()).collect::<Vec<_>>(), ["pods"]);
    hive.stop().await;

    let thief = module("thief", "Writes pods", [invoke(|_: Arc<RwTable<Pod>>| ())]);
    let error = hive::validate([owner, thief, statedb::cell()]).unwrap_err().to_string();
    assert!(error.contains("private to") && error.contains("in module `pods`"), "{error}");
}

//! For tests of cells that write objects.

use std::time::Duration;

use hive::TestHive;
use statedb::Table;
use tokio::time::sleep;

use crate::Write;

/// Waits in virtual time until a hive with the table of writes, which have to be among its objects, has nothing left to
/// write: twice, since an answer may lead to the next write. What the cells collect before they write fits into the five
/// seconds that each wait begins with.
pub async fn idle(hive: &TestHive) {
    let writes = hive.get::<Table<Write>>();
    for _ in 0..2 {
        sleep(Duration::from_secs(5)).await;
        hive.until("all is written", || writes.is_empty(&writes.snapshot())).await;
    }
}

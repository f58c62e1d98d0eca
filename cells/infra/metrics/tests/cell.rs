//! The cell in a hive of its own.

use std::sync::Arc;

use hive::prelude::*;
use metrics::{Metrics, Selection};
use prometheus_client::metrics::gauge::Gauge;
use statedb::{RwTable, TableDisplay, TableSpec};

#[tokio::test]
async fn a_selection_from_the_options_is_applied() {
    let cells = [metrics::cell(), module("m", "Reports", invoke(|health: Health| health.ok("up")))];
    let mut hive = TestHive::needing::<Metrics>(cells).set("metrics", "-cilium_version,+cilium_extra");
    hive.start().await;
    let metrics: Arc<Metrics> = hive.get();
    metrics.register_off("extra", "Extra", Gauge::<i64>::default());
    metrics.register_off("other", "Other", Gauge::<i64>::default());
    let text = metrics.text();
    assert!(text.contains("cilium_extra 0"), "{text}");
    assert!(text.contains("cilium_process_open_fds"), "{text}");
    assert!(text.contains("cilium_hive_status{status=\"ok\"}"), "{text}");
    assert!(!text.contains("start_duration 0.0\n"), "{text}");
    assert!(!text.contains("cilium_other") && !text.contains("cilium_version"), "{text}");
    hive.stop().await;
}

#[tokio::test]
async fn an_address_in_use_fails_the_start_and_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut hive = TestHive::new(metrics::cell()).set("prometheus-serve-addr", &address);
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(error.contains(&format!("prometheus-serve-addr: cannot listen on {address:?}")), "{error}");
}

#[derive(serde::Serialize)]
struct Row(u32);

impl TableSpec for Row {
    const NAME: &'static str = "rows";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.0
    }
}

impl TableDisplay for Row {
    fn columns() -> &'static [&'static str] {
        &["Key"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

#[tokio::test]
async fn tables_and_transactions_are_measured_when_exported() {
    let rows = module("keeper", "Rows", [statedb::table::<Row>(), invoke(|_: Arc<RwTable<Row>>| ())]);
    let mut hive = TestHive::needing::<Metrics>([statedb::cell(), metrics::cell(), rows]);
    hive.start().await;
    let (metrics, rows) = (hive.get::<Metrics>(), RwTable::clone(&hive.get::<RwTable<Row>>()));
    rows.transact(|w| (0..5).for_each(|key| drop(w.insert(Row(key)))));
    assert!(!metrics.text().contains("statedb"), "off by default: {}", metrics.text());

    let names = [
        "write_txn_duration_seconds",
        "write_txn_acquisition_seconds",
        "table_contention_seconds",
        "table_objects",
        "table_revision",
        "table_delete_trackers",
        "table_graveyard_objects",
        "table_graveyard_low_watermark",
        "table_graveyard_cleaning_duration_seconds",
        "table_reader_graveyard_objects",
        "table_long_write_txns",
    ];
    let words: Vec<String> = names.iter().map(|name| format!("+cilium_statedb_{name}")).collect();
    metrics.select(Selection::parse(words.iter().map(String::as_str)).0);
    let mut changes = rows.changes().named("follower");
    changes.try_next();
    rows.transact(|w| w.retain(|row| row.0 < 3));
    let text = metrics.text();
    for line in [
        "write_txn_duration_seconds_count{handle=\"keeper\",tables=\"rows\"} 1",
        "write_txn_acquisition_seconds_count{handle=\"keeper\",tables=\"rows\"} 1",
        "table_contention_seconds{table=\"rows\"} ",
        "table_objects{table=\"rows\"} 3",
        "table_revision{table=\"rows\"} 7",
        "table_delete_trackers{table=\"rows\"} 1",
        "table_graveyard_objects{table=\"rows\"} 2",
        "table_graveyard_low_watermark{table=\"rows\"} 5",
        "table_reader_graveyard_objects{table=\"rows\",reader=\"follower\"} 2",
    ] {
        assert!(text.contains(&format!("\ncilium_statedb_{line}")), "{line}: {text}");
    }
    assert_eq!(changes.try_next().len(), 2);
    let db = hive.get::<statedb::Db>().handle("visitor");
    let mut w = db.write((&rows,));
    w.insert(Row(9));
    std::thread::sleep(std::time::Duration::from_millis(1));
    w.commit();
    let text = metrics.text();
    for line in [
        "write_txn_duration_seconds_count{handle=\"visitor\",tables=\"rows\"} 1",
        "table_graveyard_objects{table=\"rows\"} 0",
        "table_graveyard_cleaning_duration_seconds_count{table=\"rows\"} 1",
        "table_long_write_txns{table=\"rows\",place=\"cells/infra/metrics/tests/cell.rs:",
    ] {
        assert!(text.contains(&format!("\ncilium_statedb_{line}")), "{line}: {text}");
    }
    metrics.select(Selection::default());
    rows.transact(|w| drop(w.insert(Row(10))));
    metrics.select(Selection::parse(words.iter().map(String::as_str)).0);
    let counted = "\ncilium_statedb_write_txn_duration_seconds_count{handle=\"keeper\",tables=\"rows\"} 1\n";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    drop(db);
    hive.stop().await;
}

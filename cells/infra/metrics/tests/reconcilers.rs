//! Metrics of the reconcilers of a hive.

use std::sync::Arc;

use hive::prelude::*;
use metrics::Metrics;
use reconciler::{Handle, OpCx, OpResult, Ops, Reconciler, Status};
use statedb::{Rows, RwTable, TableDisplay, TableSpec};

#[derive(Clone, serde::Serialize)]
struct Row {
    id: u32,
    status: Status,
}

impl TableSpec for Row {
    const NAME: &'static str = "rows";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.id
    }
}

impl TableDisplay for Row {
    fn columns() -> &'static [&'static str] {
        &["ID", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.status.to_string()]
    }
}

/// A target that refuses odd ids.
struct Even;

impl Ops<Row> for Even {
    fn update(&mut self, _: &OpCx<'_>, row: &mut Row) -> OpResult {
        if row.id.is_multiple_of(2) { Ok(()) } else { Err("odd".into()) }
    }

    fn delete(&mut self, _: &OpCx<'_>, _: &Row) -> OpResult {
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, _: Rows<'_, Row>) -> OpResult {
        Ok(())
    }
}

fn start(table: Arc<RwTable<Row>>, jobs: JobGroup) -> Arc<Handle> {
    let builder = Reconciler::builder((*table).clone())
        .status(|row: &Row| &row.status, |row, status| row.status = status)
        .ops(Even);
    Arc::new(builder.name("left").spawn(&jobs))
}

async fn text(selection: &str) -> String {
    let rows = module("rows", "Rows", [statedb::table::<Row>(), provide(start)]);
    let cells = [statedb::cell(), module("agent", "All", [rows]), metrics::cell()];
    let user = invoke(|_: Arc<Handle>, _: Arc<Metrics>| ());
    let mut hive = TestHive::new([bundle(cells), user]).set("metrics", selection);
    hive.start().await;
    let (table, handle) = (hive.get::<RwTable<Row>>(), hive.get::<Handle>());
    let (_, snapshot) = table.transact(|w| {
        for id in 1..=4 {
            w.insert(Row { id, status: Status::pending() });
        }
    });
    let revision = table.revision(&snapshot);
    handle.wait_until(revision).await.unwrap();
    handle.prune();
    hive.until("it is pruned again", || handle.metrics().prunes.count() >= 2).await;
    let text = hive.get::<Metrics>().text();
    hive.stop().await;
    text
}

#[tokio::test]
async fn they_are_exported_by_module_and_name_when_switched_on() {
    let all = "count duration_seconds errors_total errors_current prune_count prune_errors_total \
               prune_duration_seconds";
    let selection: Vec<_> = all.split(' ').map(|name| format!("+cilium_reconciler_{name}")).collect();
    let text = text(&selection.join(",")).await;
    let labels = r#"module_id="agent.rows",name="left""#;
    for line in [
        format!("cilium_reconciler_count{{{labels}}} 4\n"),
        format!("cilium_reconciler_errors_total{{{labels}}} 2\n"),
        format!("cilium_reconciler_errors_current{{{labels}}} 2\n"),
        format!("cilium_reconciler_duration_seconds_count{{{labels},op=\"update\"}} 4\n"),
        format!("cilium_reconciler_duration_seconds_bucket{{le=\"0.0005\",{labels},op=\"update\"}} 4\n"),
        format!("cilium_reconciler_duration_seconds_bucket{{le=\"+Inf\",{labels},op=\"update\"}} 4\n"),
        format!("cilium_reconciler_prune_errors_total{{{labels}}} 0\n"),
    ] {
        assert!(text.contains(&line), "{line} in\n{text}");
    }
    for name in ["prune_count", "prune_duration_seconds_count"] {
        let line = text.lines().find(|line| line.starts_with(&format!("cilium_reconciler_{name}{{")));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count >= 2), "{name} in\n{text}");
    }
}

#[tokio::test]
async fn they_are_off_by_default_and_rounds_are_runs_of_controllers() {
    let text = text("").await;
    assert!(!text.contains("cilium_reconciler"), "{text}");
    let value = |series: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u32>().ok()).unwrap_or_default()
    };
    // The round with the odd ids, of which the reconciler's job is degraded.
    assert!(value("cilium_controllers_runs_total{status=\"failure\"}") >= 1, "{text}");
    assert_eq!(value("cilium_controllers_failing"), 1, "{text}");
    assert!(value("cilium_controllers_runs_duration_seconds_count{status=\"failure\"}") >= 1, "{text}");
}

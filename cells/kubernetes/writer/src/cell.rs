//! Wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_types::Api;
use statedb::RwTable;

use crate::metrics::Numbers;
use crate::run::Runner;
use crate::write::Write;
use crate::writer::Writer;

/// Provides `Arc<`[`Writer`]`>` and the table `k8s-writes`; executes mutations by the `Arc<dyn Api>`, if there is one.
pub fn cell() -> Cell {
    module(
        "k8s-writer",
        "Writes objects of the cluster",
        [
            statedb::table::<Write>(),
            provide(new_writer),
            // Builds the writer, so that the table also exists if only its readers are used.
            invoke(|_: Arc<Writer>| ()),
        ],
    )
}

fn new_writer(
    api: Option<Arc<dyn Api>>,
    table: Arc<RwTable<Write>>,
    metrics: Option<Arc<metrics::Metrics>>,
    jobs: JobGroup,
    health: Health,
) -> Arc<Writer> {
    let Some(api) = api else { return Arc::new(Writer::new(None)) };
    let numbers = Numbers::default();
    if let Some(metrics) = metrics {
        numbers.register(&metrics, table.reader());
    }
    let writer = Arc::new(Writer::new(Some((*table).clone())));
    let runner = Runner::new(api, (*table).clone(), writer.clone(), numbers, health);
    jobs.one_shot("write", move |cx: JobCx| async move {
        runner.run(cx).await;
        Ok(())
    })
    .add();
    writer
}

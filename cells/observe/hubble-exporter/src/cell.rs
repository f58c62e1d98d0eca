//! The wiring: options, the exporter of options, the job.

use std::sync::Arc;

use hive::prelude::*;
use hubble::{Feed, HubbleRegistry};
use local_node::LocalNode;
use statedb::{Db, Table};

use crate::config::ExporterConfig;
use crate::exporter::Exporter;
use crate::job::Job;
use crate::metrics::DynamicMetrics;
use crate::spec::BadSpec;

/// Returns the cell of exporters.
pub fn cell() -> Cell {
    let cells = [config::<ExporterConfig>(), invoke(start)];
    module("hubble-exporter", "Flows of the node's packets, in files", cells)
}

#[derive(Params)]
struct Needs {
    config: Config<ExporterConfig>,
    feed: Arc<Feed>,
    registry: Arc<HubbleRegistry>,
    db: Arc<Db>,
    node: Arc<Table<LocalNode>>,
    jobs: JobGroup,
}

fn start(p: Needs) -> Result<(), BadSpec> {
    let Some(follower) = p.feed.follow() else { return Ok(()) };
    let exporter = match p.config.spec()?.map(Exporter::new) {
        // As in Cilium, a filter with an invalid value leaves the rest of the agent running.
        Some(Err(BadSpec::Filter(error))) => {
            tracing::error!(%error, "Flows are not exported");
            None
        }
        exporter => exporter.transpose()?,
    };
    let path = &p.config.hubble_flowlogs_config_path;
    let file = (!path.is_empty()).then(|| (path.into(), DynamicMetrics::registered(&p.registry)));
    if exporter.is_some() || file.is_some() {
        let job = Job { follower, exporter, file, db: p.db, node: (*p.node).clone() };
        p.jobs.one_shot("exporters", move |cx: JobCx| job.run(cx)).add();
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! The wiring.

use std::sync::Arc;

use ::metrics::Metrics;
use hive::prelude::*;
use identity_core::Range;
use k8s_tables::Row;
use k8s_types::cilium::CiliumIdentity;
use k8s_types::core::Namespace;
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use operator_objects::PodRow;
use statedb::{RwTable, Table};

use crate::controller::{Controller, Tables};
use crate::label_sets::LabelSets;
use crate::metrics::Numbers;
use crate::objects::Objects;
use crate::row::PodIdentity;
use crate::{Error, IdentitiesConfig};

/// Creates CiliumIdentities of the label sets that pods have. A cell of the leader.
pub fn cell() -> Cell {
    let cells = [
        config::<IdentitiesConfig>(),
        statedb::table::<PodIdentity>(),
        k8s_tables::table::<CiliumIdentity>(),
        invoke(start),
    ];
    module("identities", "CiliumIdentities of the labels of pods", cells)
}

#[derive(Params)]
pub(crate) struct IdentitiesParams {
    config: Config<IdentitiesConfig>,
    rows: Arc<RwTable<PodIdentity>>,
    pods: Arc<Table<PodRow>>,
    namespaces: Arc<Table<Row<Namespace>>>,
    identities: Arc<Table<Row<CiliumIdentity>>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    metrics: Option<Arc<Metrics>>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: IdentitiesParams) -> Result<(), Error> {
    let range = Range::of_cluster(p.config.cluster_id, p.config.max_connected_clusters);
    start_with(p, range)
}

/// Starts the job with the ids of a range.
pub(crate) fn start_with(p: IdentitiesParams, range: Range) -> Result<(), Error> {
    let config = &p.config;
    if !config.is_enabled() {
        p.health.ok("Off (identity-management-mode=agent)");
        return Ok(());
    }
    let numbers = Numbers::default();
    if let Some(metrics) = &p.metrics {
        numbers.register(metrics);
    }
    let filter = identity_core::filter_of_options(&config.labels, &config.label_prefix_file)?;
    let (initializer, _) = p.rows.transact(|w| w.register_initializer("pods"));
    let controller = Controller {
        tables: Tables { pods: p.pods, namespaces: p.namespaces, identities: p.identities },
        sets: LabelSets::new(filter, config.cluster_name.clone()),
        objects: Objects::new(range),
        rows: (*p.rows).clone(),
        writer: p.writer,
        leadership: Leadership::clone(&p.leadership),
        numbers,
    };
    p.jobs.one_shot("sync", move |cx: JobCx| controller.run(initializer, cx)).add();
    Ok(())
}

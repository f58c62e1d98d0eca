//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::cilium::{CiliumEndpointSlice, CiliumNode};
use k8s_types::core::Namespace;
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use operator_objects::EndpointRow;
use statedb::Table;

use crate::slicer::{Slicer, Tables};
use crate::{EndpointSlicesConfig, Error};

/// Writes CiliumEndpointSlices. A cell of the leader.
pub fn cell() -> Cell {
    let cells = [config::<EndpointSlicesConfig>(), invoke(start)];
    module("endpoint-slices", "CiliumEndpoints in batches for agents", cells)
}

#[derive(Params)]
struct SlicesParams {
    config: Config<EndpointSlicesConfig>,
    endpoints: Arc<Table<EndpointRow>>,
    slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    namespaces: Arc<Table<Row<Namespace>>>,
    nodes: Arc<Table<Row<CiliumNode>>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: SlicesParams) -> Result<(), Error> {
    if !p.config.enable_cilium_endpoint_slice {
        p.health.ok("Off (enable-cilium-endpoint-slice=false)");
        return Ok(());
    }
    let tables =
        Tables { endpoints: p.endpoints, slices: p.slices, namespaces: p.namespaces, nodes: p.nodes };
    let slicer = Slicer {
        tables,
        writer: p.writer,
        leadership: Leadership::clone(&p.leadership),
        max: p.config.ces_max_ciliumendpoints_per_ces,
        limits: p.config.rate_limits()?,
    };
    p.jobs.one_shot("slicer", move |cx: JobCx| slicer.run(cx)).add();
    Ok(())
}

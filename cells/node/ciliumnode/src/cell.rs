//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_writer::Writer;
use local_node::{LocalNode, LocalNodeConfig};
use maps::FamilyConfig;
use statedb::Table;

use crate::config::CiliumNodeConfig;
use crate::desired::{Demand, Settings};
use crate::error::Error;
use crate::publish::Publisher;

/// Writes the CiliumNode of this node, if there is an API server.
pub fn cell() -> Cell {
    module("ciliumnode", "The CiliumNode of this node", [config::<CiliumNodeConfig>(), invoke(start)])
}

#[derive(Params)]
struct PublishParams {
    config: Config<CiliumNodeConfig>,
    node_config: Config<LocalNodeConfig>,
    families: Config<FamilyConfig>,
    nodes: Arc<Table<LocalNode>>,
    objects: Arc<Table<Row<CiliumNode>>>,
    writer: Arc<Writer>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: PublishParams) -> Result<(), Error> {
    let excluded_labels = p.config.excluded_labels()?;
    if !p.config.auto_create_cilium_node_resource {
        p.health.ok("Off by auto-create-cilium-node-resource=false");
        return Ok(());
    }
    if !p.writer.has_server() {
        p.health.ok("There is no API server");
        return Ok(());
    }
    let settings = Settings {
        ipam: p.node_config.ipam,
        families: (*p.families).clone(),
        excluded_labels,
        demand: Demand::new(p.node_config.ipam, &p.config),
    };
    let publisher =
        Publisher { settings, nodes: p.nodes, objects: p.objects, writer: p.writer, health: p.health };
    p.jobs.one_shot("publish", move |cx: JobCx| publisher.run(cx)).add();
    Ok(())
}

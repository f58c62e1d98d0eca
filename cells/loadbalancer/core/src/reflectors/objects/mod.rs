//! Services and their backends from cluster objects of any source.

pub(crate) mod invalid_fields;
mod pods;
mod services;
mod slices;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::core::{EndpointSlice, Pod, Service as Manifest};
use local_node::LocalNode;
use maps::FamilyConfig;
use statedb::Table;

use crate::config::ServicesConfig;
use crate::model::families::Families;
use crate::writer::services_writer::ServicesWriter;

pub(crate) use pods::HostPorts;
pub(crate) use services::Reflector;

/// Returns the cell that follows the tables `k8s-services`, `k8s-endpointslices` and `k8s-pods`, if the hive has them.
pub(crate) fn cell() -> Cell {
    module("k8s-reflector", "Services of the cluster", [invoke(follow)])
}

#[derive(Params)]
struct FollowParams {
    config: Config<ServicesConfig>,
    families: Config<FamilyConfig>,
    services: Option<Arc<Table<Row<Manifest>>>>,
    slices: Option<Arc<Table<Row<EndpointSlice>>>>,
    pods: Option<Arc<Table<Row<Pod>>>>,
    node: Arc<Table<LocalNode>>,
    writer: Arc<ServicesWriter>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) -> anyhow::Result<()> {
    let families = Families { v4: p.families.enable_ipv4, v6: p.families.enable_ipv6 };
    let (writer, wait) = ((*p.writer).clone(), p.config.lb_reflector_wait_time);
    let proxy_name = p.config.k8s_service_proxy_name.as_str().to_owned();
    if let (Some(services), Some(slices)) = (p.services, p.slices) {
        let node = p.node.clone();
        let labels = move || {
            let snapshot = node.snapshot();
            node.get(&snapshot, LocalNode::query()).map(|node| node.labels.clone()).unwrap_or_default()
        };
        let tables = ((*services).clone(), (*slices).clone());
        let reflector = Reflector::new(writer.clone(), tables, families, proxy_name, labels);
        let node = p.node;
        p.jobs
            .one_shot("reflect-services-endpoints", move |cx: JobCx| reflector.follow(wait, node, cx))
            .add();
    }
    if let Some(pods) = p.pods {
        let range = p.config.node_port_range.ports();
        let host_ports = HostPorts::new(writer, (*pods).clone(), families, range);
        p.jobs.one_shot("reflect-pods", move |cx: JobCx| host_ports.follow(wait, cx)).add();
    }
    Ok(())
}

//! The wiring.

use std::sync::Arc;

use ::metrics::Metrics;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::Api;
use k8s_types::cilium::{CiliumEndpointSlice, CiliumIdentity, CiliumNode};
use k8s_types::core::Node;
use k8s_types::selector::LabelRequirements;
use operator_definitions::{DefinitionsConfig, Registered};
use operator_election::Leadership;
use operator_endpoint_slices::EndpointSlicesConfig;
use operator_identities::{IdentitiesConfig, PodIdentity};
use operator_objects::{EndpointRow, PodRow};
use statedb::Table;

use crate::identities::{IdentityCollector, Tables};
use crate::leftovers::LeftoverCollector;
use crate::metrics::Numbers;
use crate::requests::{Requests, Run};
use crate::slices::delete_all;
use crate::unmanaged_pods::PodRestarter;
use crate::{Error, GarbageCollectionConfig};

/// Collects what agents have left. A cell of the leader.
pub fn cell() -> Cell {
    let cells = [config::<GarbageCollectionConfig>(), invoke(start)];
    module("garbage-collection", "Collection of objects that agents have left", cells)
}

#[derive(Params)]
struct CollectionParams {
    config: Config<GarbageCollectionConfig>,
    definitions: Config<DefinitionsConfig>,
    slicing: Config<EndpointSlicesConfig>,
    identity_options: Config<IdentitiesConfig>,
    api: Option<Arc<dyn Api>>,
    leadership: Arc<Leadership>,
    identities: Arc<Table<Row<CiliumIdentity>>>,
    endpoints: Arc<Table<EndpointRow>>,
    slices: Arc<Table<Row<CiliumEndpointSlice>>>,
    pod_identities: Arc<Table<PodIdentity>>,
    cilium_nodes: Arc<Table<Row<CiliumNode>>>,
    nodes: Arc<Table<Row<Node>>>,
    pods: Arc<Table<PodRow>>,
    metrics: Option<Arc<Metrics>>,
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: CollectionParams) -> Result<(), Error> {
    let value = &p.config.pod_restart_selector;
    let selector: LabelRequirements =
        value.parse().map_err(|source| Error::PodSelector { value: value.clone(), source })?;
    if p.config.disable_endpoint_crd && p.slicing.enable_cilium_endpoint_slice {
        return Err(Error::NoEndpoints);
    }
    let Some(api) = p.api.clone() else {
        p.health.ok("There is no API server to collect objects of");
        return Ok(());
    };
    let requests = Requests { api, leadership: Leadership::clone(&p.leadership) };
    let numbers = Numbers::default();
    if let Some(metrics) = &p.metrics {
        numbers.register(metrics);
    }
    identities(&p, &requests, &numbers);
    endpoints(&p, &requests, &numbers);
    nodes(&p, &requests);
    if !p.slicing.enable_cilium_endpoint_slice {
        let (slices, requests) = (p.slices.clone(), requests.clone());
        p.jobs.one_shot("endpoint-slices", move |cx| delete_all(slices, requests, cx)).add();
    }
    let interval = p.config.unmanaged_pod_watcher_interval;
    if interval.is_zero() || p.config.disable_endpoint_crd {
        p.health.child("unmanaged-pods").ok("Off");
        return Ok(());
    }
    let restarter =
        PodRestarter { pods: p.pods, endpoints: p.endpoints, selector, requests, interval, numbers };
    p.jobs.one_shot("unmanaged-pods", move |cx: JobCx| restarter.run(cx)).add();
    Ok(())
}

fn identities(p: &CollectionParams, requests: &Requests, numbers: &Numbers) {
    let config = &p.config;
    if let Some(reason) = config.identities_off(&p.identity_options) {
        p.health.child("identities").ok(format_args!("Off ({reason})"));
        return;
    }
    let tables = Tables {
        identities: p.identities.clone(),
        endpoints: p.endpoints.clone(),
        slices: p.slices.clone(),
        pods: p.pod_identities.clone(),
    };
    let collector = IdentityCollector {
        tables,
        requests: requests.clone(),
        interval: config.identity_gc_interval,
        timeout: config.identity_heartbeat_timeout,
        limit: (config.identity_gc_rate_limit, config.identity_gc_rate_interval),
        numbers: numbers.clone(),
    };
    p.jobs.one_shot("identities", move |cx: JobCx| collector.run(cx)).add();
}

fn endpoints(p: &CollectionParams, requests: &Requests, numbers: &Numbers) {
    let (endpoints, requests) = (p.endpoints.clone(), requests.clone());
    let interval = p.config.cilium_endpoint_gc_interval;
    if p.config.disable_endpoint_crd {
        p.jobs.one_shot("endpoints", move |cx| delete_all(endpoints, requests, cx)).add();
    } else if interval.is_zero() {
        p.health.child("endpoints").ok("Off (cilium-endpoint-gc-interval=0s)");
    } else {
        let (owners, numbers) = (p.pods.clone(), numbers.clone());
        let count = Box::new(move |run: &Run| numbers.endpoints(run));
        let is_left = crate::endpoints::is_left;
        let collector = LeftoverCollector { objects: endpoints, owners, is_left, requests, interval, count };
        p.jobs.one_shot("endpoints", move |cx: JobCx| collector.run(cx)).add();
    }
}

fn nodes(p: &CollectionParams, requests: &Requests) {
    let (cilium_nodes, requests) = (p.cilium_nodes.clone(), requests.clone());
    let interval = p.config.nodes_gc_interval;
    if !p.definitions.enable_ciliumnode_crd {
        p.jobs.one_shot("nodes", move |cx| delete_all(cilium_nodes, requests, cx)).add();
    } else if interval.is_zero() {
        p.health.child("nodes").ok("Off (nodes-gc-interval=0s)");
    } else {
        let (owners, is_left) = (p.nodes.clone(), crate::nodes::is_left);
        let count = Box::new(|_: &Run| ());
        let collector =
            LeftoverCollector { objects: cilium_nodes, owners, is_left, requests, interval, count };
        p.jobs.one_shot("nodes", move |cx: JobCx| collector.run(cx)).add();
    }
}

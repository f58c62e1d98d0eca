//! The wiring.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::Settings;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::core::{EndpointSlice, Node};
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use operator_status::StatusWriter;
use statedb::Table;

use crate::allocator::Allocator;
use crate::config::{DefaultIpam, LbIpamConfig};
use crate::job::LbIpam;
use crate::node_job::NodeIpam;
use crate::objects::{IpPool, LbService};
use crate::range::Family;

/// Gives load balancers addresses of pools and of nodes. A cell of the leader.
pub fn cell() -> Cell {
    type Options = Config<LbIpamConfig>;
    let cells = [
        config::<LbIpamConfig>(),
        k8s_tables::optional::<LbService, _>(|options: Options| {
            options.enable_lb_ipam || options.enable_node_ipam
        }),
        k8s_tables::optional::<IpPool, _>(|options: Options| options.enable_lb_ipam),
        k8s_tables::optional::<EndpointSlice, _>(|options: Options| options.enable_node_ipam),
        invoke(start_lb_ipam),
        invoke(start_node_ipam),
    ];
    module("lb-ipam", "Addresses of load balancers", cells)
}

#[derive(Params)]
struct IpamParams {
    config: Config<LbIpamConfig>,
    settings: Arc<Settings>,
    services: Arc<Table<Row<LbService>>>,
    pools: Arc<Table<Row<IpPool>>>,
    nodes: Arc<Table<Row<Node>>>,
    slices: Arc<Table<Row<EndpointSlice>>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

impl IpamParams {
    fn write(&self, part: &'static str) -> StatusWriter {
        StatusWriter::new(&self.writer, &self.leadership, part)
    }

    /// Whether an option of an agent is on, which no cell of an operator declares.
    fn is_on(&self, option: &str, default: bool) -> bool {
        self.settings.value(option).map_or(default, |(_, value)| value == "true")
    }

    /// Returns the enabled families.
    fn families(&self) -> Vec<Family> {
        let enabled = [("enable-ipv4", Family::V4), ("enable-ipv6", Family::V6)];
        enabled.into_iter().filter(|(option, _)| self.is_on(option, true)).map(|(_, family)| family).collect()
    }
}

fn start_lb_ipam(p: IpamParams) {
    if !p.config.enable_lb_ipam {
        p.health.child("pools").ok("Off (enable-lb-ipam=false)");
        return;
    }
    let classes = [
        (None, p.config.default_lb_service_ipam == DefaultIpam::LbIpam),
        (Some("io.cilium/bgp-control-plane"), p.is_on("enable-bgp-control-plane", false)),
        (Some("io.cilium/l2-announcer"), p.is_on("enable-l2-announcements", false)),
    ];
    let ipam = LbIpam {
        allocator: Allocator::default(),
        write: p.write("lb-ipam"),
        families: p.families(),
        classes: served(&classes),
        pools: p.pools,
        services: p.services,
        former: BTreeMap::new(),
        counted: (0, Vec::new()),
        problems: Vec::new(),
    };
    p.jobs.one_shot("pools", move |cx: JobCx| ipam.run(cx)).add();
}

fn start_node_ipam(p: IpamParams) {
    if !p.config.enable_node_ipam {
        p.health.child("nodes").ok("Off (enable-node-ipam=false)");
        return;
    }
    let is_default = p.config.default_lb_service_ipam == DefaultIpam::NodeIpam;
    let ipam = NodeIpam {
        write: p.write("node-ipam"),
        families: p.families(),
        classes: served(&[(None, is_default), (Some("io.cilium/node"), true)]),
        services: p.services,
        nodes: p.nodes,
        slices: p.slices,
        receivers: BTreeMap::new(),
        slices_of: BTreeMap::new(),
        problems: BTreeMap::new(),
    };
    p.jobs.one_shot("nodes", move |cx: JobCx| ipam.run(cx)).add();
}

fn served(classes: &[(Option<&'static str>, bool)]) -> Vec<Option<&'static str>> {
    classes.iter().filter(|(_, is_served)| *is_served).map(|(class, _)| *class).collect()
}

//! Tests of the cell without a kernel: tables, maps in memory, the state file.

mod faults;
mod ids;
mod kernel;
mod kills;
mod maps;
mod mesh;
mod model;
mod property;
mod rules;
mod selection;
mod tables;
mod translation;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use devices::NodeAddress;
use reconciler::Reconciler;
use statedb::{Db, RwTable, Table};

use crate::lbmap::maglev::Maglev;
use crate::lbmap::rows::{Key, LbMaps, MapError, Value};
use crate::metrics::Events;
use crate::model::address::LbAddress;
use crate::model::families::Families;
use crate::model::frontend::Frontend;
use crate::model::source::Source;
use crate::option_values::{MaglevSeed, MaglevTableSize};
use crate::reconciler::balancer::{Balancer, UpsertError};
use crate::reconciler::desired::{Desired, Settings};
use crate::reconciler::operations::{LbOps, ReconcileContext};
use crate::reconciler::record::{Removal, Upsert};
use crate::testing::FakeMaps;
use crate::writer::select::Place;
use crate::writer::services_writer::{NodeInfo, Rules, ServicesWriter, State};

const NODE: &str = "alpha";

pub(crate) const FAMILIES: Families = Families { v4: true, v6: true };

/// Returns a writer with tables of its own.
pub(crate) fn writer() -> ServicesWriter {
    writer_with(Rules::default())
}

/// Returns a writer with other rules.
pub(crate) fn writer_with(rules: Rules) -> ServicesWriter {
    let db = Db::new();
    let (services, frontends, backends) = (db.table(), db.table(), db.table());
    let tables = (services.unwrap(), frontends.unwrap(), backends.unwrap());
    let place = || Place { node: NODE.to_owned(), zone: Some("north".into()), cluster_id: 3 };
    let node_port_addresses = || BTreeSet::from([[192, 0, 2, 90].into()]);
    let node_info = NodeInfo::new(place, node_port_addresses);
    ServicesWriter::new(tables.0, tables.1, tables.2, node_info, FAMILIES, rules, Events::default())
}

/// Parses a state file.
fn state(text: &str) -> State {
    crate::parse_state_file(text.as_bytes(), Families { v4: true, v6: true }).unwrap()
}

/// Returns all frontends that are desired in the maps, in order of their last change.
fn served(writer: &ServicesWriter) -> Vec<Frontend> {
    let (table, snapshot) = (writer.frontends(), writer.frontends().snapshot());
    let rows = table.by_revision(&snapshot, 0).filter(|frontend| frontend.is_reconciled());
    rows.map(|frontend| (**frontend).clone()).collect()
}

fn desired(writer: &ServicesWriter) -> Vec<Desired> {
    served(writer).iter().map(|frontend| of(frontend, &settings())).collect()
}

fn of(frontend: &Frontend, settings: &Settings) -> Desired {
    Desired::new(frontend, frontend.address(), settings, &Default::default()).unwrap()
}

fn tables() -> Maglev {
    Maglev::new(MaglevTableSize::new(251).unwrap(), MaglevSeed::from_base64("JLfvgnHc2kaSUFaI").unwrap())
}

/// Returns an agent without a hive: its tables, those of the node's addresses among them, and the operations of its
/// reconciler, restored from the maps.
fn agent(maps: Arc<dyn LbMaps>) -> (ServicesWriter, RwTable<NodeAddress>, LbOps) {
    let writer = writer();
    let addresses: RwTable<NodeAddress> = writer.frontends().db().table().unwrap();
    let context = ReconcileContext {
        settings: settings(),
        addresses: Some(Arc::new((*addresses).clone())),
        frontends: writer.frontends(),
    };
    let balancer = Balancer::restore(maps).unwrap();
    let ops = LbOps { balancer, comparisons: Arc::default(), context, unserved: Default::default() };
    (writer, addresses, ops)
}

fn settings() -> Settings {
    Settings {
        owns_classless: true,
        maglev: true,
        algorithm_annotation: true,
        tables: tables(),
        ..Settings::default()
    }
}

impl Balancer {
    /// Upserts entries; returns the results in order.
    fn update(&mut self, batch: &[Desired]) -> Vec<Result<u16, UpsertError>> {
        let mut upserts: Vec<Upsert> = batch.iter().cloned().map(Upsert::from).collect();
        self.upsert(upserts.iter_mut());
        upserts.into_iter().map(|upsert| upsert.result).collect()
    }

    /// Removes entries; returns the results in order.
    fn delete(&mut self, addresses: &[LbAddress]) -> Vec<Result<(), MapError>> {
        let mut removals: Vec<Removal> = addresses.iter().copied().map(Removal::from).collect();
        self.remove(&mut removals);
        removals.into_iter().map(|removal| removal.result).collect()
    }
}

/// Returns the maps after a new balancer has restored, upserted the tables' frontends, and pruned.
fn brought(maps: &Arc<FakeMaps>, writer: &ServicesWriter) -> Vec<String> {
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    for result in balancer.update(&desired(writer)) {
        result.unwrap();
    }
    balancer.prune().unwrap();
    text(&maps.dump())
}

/// Formats entries in the words of Cilium's `lb/maps-dump`, without Maglev tables.
fn text<'r>(rows: impl IntoIterator<Item = (&'r Key, &'r Value)>) -> Vec<String> {
    let rows = rows.into_iter().filter(|(key, _)| !matches!(key, Key::Maglev(..)));
    let mut lines: Vec<String> = rows.map(|(key, value)| line(key, value)).collect();
    lines.sort();
    lines
}

fn line(key: &Key, value: &Value) -> String {
    match (key, value) {
        (Key::AffinityMatch(id, backend), _) => format!("AFF: ID={id} BEID={backend}"),
        (Key::SourceRange(id, range), _) => format!("SRCRANGE: ID={id} CIDR={range}"),
        (Key::Backend(_, id), Value::Backend(row)) => {
            let state = ["active", "terminating", "quarantined", "maintenance"][usize::from(row.state)];
            format!("BE: ID={id} ADDR={} STATE={state}", row.address)
        }
        (Key::ReverseNat(_, id), Value::ReverseNat(ip, port)) => {
            format!("REV: ID={id} ADDR={}", std::net::SocketAddr::new(*ip, *port))
        }
        (Key::Service(address, 0), Value::Service(row)) => format!(
            "SVC: ID={} ADDR={address} SLOT=0 AFFTimeout={} COUNT={} QCOUNT={} FLAGS={}",
            u16::from_be(row.rev_nat_index),
            row.backend_id,
            row.count,
            row.qcount,
            flags(row)
        ),
        (Key::Service(address, slot), Value::Service(row)) => format!(
            "SVC: ID={} ADDR={address} SLOT={slot} BEID={} COUNT={} QCOUNT={} FLAGS={}",
            u16::from_be(row.rev_nat_index),
            row.backend_id,
            row.count,
            row.qcount,
            flags(row)
        ),
        (Key::Maglev(_, id), _) => format!("MAGLEV: ID={id}"),
        other => panic!("{other:?}"),
    }
}

fn flags(row: &datapath_abi::LbService) -> String {
    let LbService { flags, flags2, .. } = *row;
    use datapath_abi::{LbService, lb_flag as f, lb_flag2 as f2};
    let kind = match flags & (f::EXTERNAL_IP | f::NODE_PORT | f::HOST_PORT | f::LOAD_BALANCER) {
        0 => "ClusterIP",
        f::EXTERNAL_IP => "ExternalIPs",
        f::LOAD_BALANCER => "LoadBalancer",
        _ => "other",
    };
    let words = [
        (true, kind),
        (flags & f::EXT_LOCAL_SCOPE != 0, "Local"),
        (flags2 & f2::INT_LOCAL_SCOPE != 0, "InternalLocal"),
        (flags2 & f2::TWO_SCOPES != 0, "two-scopes"),
        (flags & f::SESSION_AFFINITY != 0, "sessionAffinity"),
        (flags & f::ROUTABLE == 0, "non-routable"),
        (flags & f::SOURCE_RANGE != 0, "check source-range"),
        (flags2 & f2::QUARANTINED_OR_DENY != 0, "deny"),
    ];
    words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<Vec<_>>().join("+")
}

//! The wiring: table, reconciler, seeds, restore, REST.

use std::net::IpAddr;
use std::sync::Arc;

use api::{Operation, Route};
use devices::NodeAddress;
use hive::prelude::*;
use identity::{Identities, Identity, Prefixes};
use local_node::LocalNode;
use maps::Maps;
use statedb::{RwTable, Snapshot, Table};

use crate::entry::Entry;
use crate::reconcile::{IpcacheMap, MapOps, OWNER, builder};
use crate::rest;
use crate::restore;
use crate::seeds::{Host, seeds};
use crate::source::Source;
use crate::writer::{IpcacheWriter, retract};

/// The resource and initializer of the host's own addresses.
const HOST: &str = "host";

/// Provides `Arc<IpcacheWriter>` and `Arc<Table<Entry>>`, keeps `cilium_ipcache_v2` equal to the table, serves `GET /ip`.
pub fn cell() -> Cell {
    module(
        "ipcache",
        "Identities of addresses",
        [
            statedb::table::<Entry>(),
            provide_private(|maps: Arc<Maps>| -> Arc<dyn IpcacheMap> { maps }),
            provide(writer),
            provide(|table: Arc<Table<Entry>>, identities: Option<Arc<Table<Identity>>>| {
                Member(Route::new(Operation::GetIP, move |request| {
                    let answer = rest::get_ip(&table, identities.as_deref(), &request);
                    async move { answer }
                }))
            }),
        ],
    )
}

#[derive(Params)]
struct WriterParams {
    table: Arc<RwTable<Entry>>,
    map: Arc<dyn IpcacheMap>,
    maps: Option<Arc<Maps>>,
    identities: Option<Arc<Identities>>,
    prefixes: Option<Arc<Prefixes>>,
    node: Arc<Table<LocalNode>>,
    addresses: Arc<Table<NodeAddress>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn writer(p: WriterParams) -> Arc<IpcacheWriter> {
    let (table, map) = ((*p.table).clone(), p.map.clone());
    let identities = p.identities.map(|identities| (identities.register("ipcache"), identities));
    let prefixes = p.prefixes.clone();
    p.lifecycle
        .hook("ipcache")
        .on_start(move |_| async move {
            let rows = map.rows().map_err(|error| anyhow::anyhow!("cannot read the ipcache: {error}"))?;
            let entries = restore::entries(rows);
            if let Some(prefixes) = prefixes {
                prefixes.restored(&restore::identities(&entries));
            }
            if let Some((initializer, identities)) = identities {
                identities.complete(initializer);
            }
            let count = restore::fill(&table, entries);
            tracing::info!(count, "Restored ipcache entries of the previous run");
            Ok(())
        })
        .add();
    let comparisons = p.maps.map(|maps| maps.comparisons().clone()).unwrap_or_default();
    let ops = MapOps { map: p.map, comparisons: comparisons.clone() };
    let handle = builder((*p.table).clone(), ops).spawn(&p.jobs);
    let pruned = handle.clone();
    p.jobs
        .one_shot("compare", move |cx: JobCx| async move {
            loop {
                tokio::select! {
                    () = comparisons.turn(OWNER) => pruned.prune(),
                    () = cx.cancelled() => return Ok(()),
                }
            }
        })
        .add();
    let writer = Arc::new(IpcacheWriter::new((*p.table).clone(), handle));

    let initializer = writer.register(HOST);
    let (node, addresses, of_host) = (p.node, p.addresses, writer.clone());
    p.jobs
        .one_shot("seeds", move |cx: JobCx| async move {
            tokio::select! {
                () = addresses.wait_initialized() => {}
                () = cx.cancelled() => return Ok(()),
            }
            let mut initializer = Some(initializer);
            loop {
                let snapshot = node.snapshot();
                let (_, node_watch) = node.all_watch(&snapshot);
                let (_, address_watch) = addresses.all_watch(&snapshot);
                if let Some(host) = host(&node, &addresses, &snapshot) {
                    of_host.replace(Source::Local, HOST, seeds(&host));
                    if let Some(initializer) = initializer.take() {
                        of_host.complete(initializer);
                    }
                }
                drop(snapshot);
                tokio::select! {
                    () = node_watch.changed() => {}
                    () = address_watch.changed() => {}
                    () = cx.cancelled() => return Ok(()),
                }
            }
        })
        .add();

    let table = (*p.table).clone();
    p.jobs
        .one_shot("retract-restored", move |cx: JobCx| async move {
            tokio::select! {
                () = table.wait_initialized() => {
                    let count = retract(&table, Source::Restored);
                    if let Some(prefixes) = p.prefixes {
                        prefixes.ipcache_complete();
                    }
                    tracing::debug!(count, "All sources of the ipcache have spoken");
                }
                () = cx.cancelled() => {}
            }
            Ok(())
        })
        .add();
    writer
}

/// Returns the input of the seeds; none before the node's row exists.
fn host(node: &Table<LocalNode>, addresses: &Table<NodeAddress>, snapshot: &Snapshot) -> Option<Host> {
    let node = node.get(snapshot, LocalNode::query())?;
    Some(Host {
        node: [node.ipv4.map(IpAddr::V4), node.ipv6.map(IpAddr::V6)],
        router: [node.router_ipv4.map(IpAddr::V4), node.router_ipv6.map(IpAddr::V6)],
        addresses: addresses.all(snapshot).map(|address| address.addr).collect(),
        enabled: [node.ipv4_alloc_cidr.is_some(), node.ipv6_alloc_cidr.is_some()],
    })
}

//! The wiring.

use std::sync::Arc;
use std::time::Duration;

use api::{Operation, Request, Response, Route};
use hive::prelude::*;
use identity::Prefixes;
use ipcache::IpcacheWriter;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumNode;
use k8s_tables::core::EndpointSlice;
use local_node::{LocalNode, LocalNodeConfig, StateConfig};
use maps::{FamilyConfig, Maps};
use state_file::Rewrite;
use statedb::{RwTable, Table};
use tunnel::Tunnel;

use crate::api_servers::{ApiServers, OutsideServers};
use crate::checkpoint::Checkpoint;
use crate::cluster_nodes::History;
use crate::follow::{Follow, Identities};
use crate::label_identities::{LabelIdentities, Parts};
use crate::mappings::Settings;
use crate::metrics::Numbers;
use crate::node::Node;
use crate::node_map::NodeMap;

/// The least time between two writes of `nodes.json`, as in Cilium.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// Provides the table `nodes`, `GET /cluster/nodes` and `GET /node/ids`; keeps the claims of nodes in the ipcache, and
/// `cilium_node_map_v2`.
pub fn cell() -> Cell {
    module(
        "node-manager",
        "The nodes of the cluster",
        [
            statedb::table::<Node>(),
            provide_private(numbers),
            provide_private(|table: Arc<Table<Node>>| Arc::new(History::new(table))),
            provide_private(node_map),
            provide_private(checkpoint),
            provide(routes),
            invoke(follow),
        ],
    )
}

fn numbers(metrics: Option<Arc<metrics::Metrics>>) -> Arc<Numbers> {
    let numbers = Numbers::default();
    if let Some(metrics) = metrics {
        numbers.register(&metrics);
    }
    Arc::new(numbers)
}

/// Without maps there are no node ids, and the operation returns an empty list.
fn node_map(
    maps: Option<Arc<Maps>>,
    nodes: Arc<Table<Node>>,
    numbers: Arc<Numbers>,
    jobs: JobGroup,
) -> Arc<NodeMap> {
    let map = NodeMap::default();
    if let Some(maps) = maps {
        let (follower, numbers) = (map.clone(), Numbers::clone(&numbers));
        jobs.one_shot("node-ids", move |cx| follower.follow(maps, nodes, numbers, cx)).add();
    }
    Arc::new(map)
}

/// Writes the file when nodes change, at most once in the interval, and at the stop.
fn checkpoint(
    state: Config<StateConfig>,
    nodes: Arc<Table<Node>>,
    jobs: JobGroup,
    lifecycle: Lifecycle,
    health: Health,
) -> Arc<Checkpoint> {
    let checkpoint = Arc::new(Checkpoint::new(&state.state(), nodes.clone()));
    let writer = checkpoint.clone();
    let file = Rewrite::new(&jobs, &health, "nodes.json", move || writer.write());
    let at_stop = checkpoint.clone();
    lifecycle
        .hook("nodes.json")
        .on_stop(move |_| async move {
            hive::blocking(move || at_stop.write()).await?;
            Ok(())
        })
        .add();
    jobs.one_shot("checkpoint", move |cx: JobCx| async move {
        let token = cx.token().clone();
        let follow = async {
            nodes.wait_initialized().await;
            loop {
                let changed = nodes.watch(&nodes.snapshot());
                file.wake();
                tokio::time::sleep(CHECKPOINT_INTERVAL).await;
                changed.changed().await;
            }
        };
        token.run_until_cancelled(follow).await;
        Ok(())
    })
    .add();
    checkpoint
}

fn routes(history: Arc<History>, local: Arc<Table<LocalNode>>, map: Arc<NodeMap>) -> Members<Route> {
    let nodes = move |request: Request| {
        let snapshot = local.snapshot();
        let answer = match local.get(&snapshot, LocalNode::query()) {
            Some(node) => {
                let client = request.header("client-id").and_then(|id| id.parse().ok());
                Response::json(200, &history.answer(node.full_name(), client))
            }
            None => Response::error(500, "the local node is not known yet"),
        };
        std::future::ready(answer)
    };
    let ids = move |_| {
        std::future::ready(match map.list() {
            Ok(list) => Response::json(200, &list),
            Err(error) => Response::error(500, error.to_string()),
        })
    };
    Members(vec![Route::new(Operation::GetClusterNodes, nodes), Route::new(Operation::GetNodeIds, ids)])
}

#[derive(Params)]
struct FollowParams {
    tunnel: Arc<Tunnel>,
    families: Config<FamilyConfig>,
    config: Config<LocalNodeConfig>,
    prefixes: Option<Arc<Prefixes>>,
    slices: Option<Arc<Table<Row<EndpointSlice>>>>,
    nodes: Arc<RwTable<Node>>,
    objects: Arc<Table<Row<CiliumNode>>>,
    local: Arc<Table<LocalNode>>,
    ipcache: Arc<IpcacheWriter>,
    history: Arc<History>,
    checkpoint: Arc<Checkpoint>,
    numbers: Arc<Numbers>,
    jobs: JobGroup,
    health: Health,
}

fn follow(p: FollowParams) -> anyhow::Result<()> {
    let mut txn = p.nodes.write();
    let initializer = txn.register_initializer("ciliumnodes");
    txn.commit();
    let addresses = p.config.cidr_rules_select_nodes()?;
    let filter = p.config.node_label_filter()?;
    let labels = p.config.enable_node_selector_labels.then_some(filter);
    let parts = Parts { labels, addresses };
    let identities = p.prefixes.map(|prefixes| Identities {
        initializer: Some(prefixes.of_nodes().register("api-servers")),
        by_labels: LabelIdentities::new(prefixes.of_nodes(), parts),
        outside: OutsideServers::new((*prefixes).clone(), p.ipcache.clone()),
    });
    let follow = Follow {
        identities,
        api_servers: ApiServers(p.slices),
        settings: Settings { tunnel: p.tunnel, families: FamilyConfig::clone(&p.families) },
        nodes: p.nodes,
        objects: p.objects,
        local: p.local,
        initializers: (initializer, p.ipcache.register("nodes")),
        ipcache: p.ipcache,
        history: p.history,
        checkpoint: p.checkpoint,
        numbers: Numbers::clone(&p.numbers),
        health: p.health,
    };
    p.jobs
        .one_shot("nodes", move |cx: JobCx| async move {
            follow.run(cx).await;
            Ok(())
        })
        .add();
    Ok(())
}

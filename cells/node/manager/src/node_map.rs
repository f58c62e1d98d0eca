//! Node ids in the kernel: `cilium_node_map_v2` and `GET /node/ids`.
//!
//! The pinned map is authoritative: it keeps the ids over restarts, and the operation reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_models::NodeId;
use bpf::Map;
use datapath_abi::{NodeKey, NodeValue};
use hive::JobCx;
use maps::Maps;
use statedb::Table;
use tokio::time::sleep;

use crate::metrics::Numbers;
use crate::model::key;
use crate::node::Node;
use crate::node_ids::{NodeIds, Write};

const NAME: &str = "cilium_node_map_v2";
/// Name of this cell as an owner in drift checks.
const OWNER: &str = "node-ids";
/// Interval of attempts to open the map: the maps' cell creates it in a job, not in a start hook.
const OPEN_INTERVAL: Duration = Duration::from_millis(50);
/// Delay of the comparison that follows a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of rows that one round takes, so that a large cluster does not hold up other jobs.
const BATCH: usize = 512;

/// The map, once it exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMap(Arc<OnceLock<Map<NodeKey, NodeValue>>>);

impl NodeMap {
    /// Writes the ids of the nodes' addresses, now and when they change.
    pub(crate) async fn follow(
        self,
        maps: Arc<Maps>,
        nodes: Arc<Table<Node>>,
        numbers: Numbers,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            result = self.reconcile(&maps, &nodes, &numbers, &cx) => result,
        }
    }

    async fn reconcile(
        &self,
        maps: &Maps,
        nodes: &Table<Node>,
        numbers: &Numbers,
        cx: &JobCx,
    ) -> anyhow::Result<()> {
        let path = maps.path(NAME);
        let map = loop {
            match Map::open(&path) {
                Ok(map) => break self.0.get_or_init(|| map),
                Err(_) => sleep(OPEN_INTERVAL).await,
            }
        };
        let mut ids = NodeIds::new(read(map)?, RandomState::new().hash_one(OWNER));
        let mut changes = nodes.changes();
        let (mut is_pruned, mut is_comparing, mut has_failed) = (false, false, false);
        loop {
            let snapshot = nodes.snapshot();
            let (is_complete, complete) = nodes.initialized_watch(&snapshot);
            let (batch, changed) = changes.read(&snapshot, BATCH);
            let mut writes = Vec::new();
            for change in &batch {
                let (key, node) = (key(&change.object), &change.object);
                writes.extend(match change.deleted {
                    true => ids.delete(&key),
                    false => ids.upsert(&key, node.addresses.iter().map(|address| address.ip).collect()),
                });
            }
            if is_complete && batch.len() < BATCH && !is_pruned {
                writes.extend(ids.prune());
                is_pruned = true;
            }
            let mut result = write(map, writes);
            if result.is_ok() && (is_comparing || has_failed) {
                result = repair(map, &ids, is_pruned).map(|repaired| {
                    numbers.validations.inc_by(ids.len() as u64);
                    if is_comparing {
                        maps.comparisons().compared(OWNER, ids.entries().len(), repaired);
                    }
                });
            }
            has_failed = result.is_err();
            report(cx, &ids, result);
            drop(snapshot);
            is_comparing = tokio::select! {
                () = changed.changed() => false,
                () = complete.changed(), if !is_complete => false,
                () = sleep(RETRY_INTERVAL), if has_failed => false,
                () = maps.comparisons().turn(OWNER) => true,
            };
        }
    }

    /// Returns the answer of `GET /node/ids`.
    pub(crate) fn list(&self) -> bpf::Result<Vec<NodeId>> {
        let Some(map) = self.0.get() else {
            return Ok(Vec::new());
        };
        let mut by_id: BTreeMap<u16, Vec<IpAddr>> = BTreeMap::new();
        for (ip, id) in read(map)? {
            by_id.entry(id).or_default().push(ip);
        }
        Ok(by_id.into_iter().map(|(id, ips)| node_id(id, &ips)).collect())
    }
}

fn report(cx: &JobCx, ids: &NodeIds, result: bpf::Result<()>) {
    match (result, ids.waiting()) {
        (Err(error), _) => cx.health.degraded("Node ids not written", error),
        (Ok(()), 0) => cx.health.ok(format_args!("{} node ids", ids.len())),
        (Ok(()), waiting) => cx.health.degraded(
            format_args!("{waiting} nodes have no id"),
            "no available node ID: all 65535 are taken; delete CiliumNodes of nodes that are gone",
        ),
    }
}

fn node_id(id: u16, ips: &[IpAddr]) -> NodeId {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    NodeId { id: i64::from(id).into(), ips: ips.into() }
}

fn entry(ip: IpAddr, id: u16) -> (NodeKey, NodeValue) {
    (NodeKey::from(ip), NodeValue { id, spi: 0, pad: 0 })
}

fn read(map: &Map<NodeKey, NodeValue>) -> bpf::Result<BTreeMap<IpAddr, u16>> {
    let rows = map.entries()?;
    Ok(rows.into_iter().filter_map(|(key, value)| Some((key.ip()?, value.id))).collect())
}

/// Writes entries; of several writes of an address the last counts.
fn write(map: &Map<NodeKey, NodeValue>, writes: Vec<Write>) -> bpf::Result<()> {
    let last: BTreeMap<IpAddr, Option<u16>> = writes.into_iter().collect();
    let updates: Vec<_> = last.iter().filter_map(|(ip, id)| Some(entry(*ip, (*id)?))).collect();
    match &updates[..] {
        [] => {}
        [(key, value)] => map.update(key, value)?,
        updates => map.update_batch(updates)?,
    }
    for (ip, _) in last.iter().filter(|(_, id)| id.is_none()) {
        map.delete(&NodeKey::from(*ip))?;
    }
    Ok(())
}

/// Repairs missing and wrong entries, and deletes those of no node once all nodes are known. Returns descriptions.
fn repair(map: &Map<NodeKey, NodeValue>, ids: &NodeIds, is_pruned: bool) -> bpf::Result<Vec<String>> {
    let rows = map.entries()?;
    let found: BTreeSet<(IpAddr, u16)> =
        rows.iter().filter_map(|(key, value)| Some((key.ip()?, value.id))).collect();
    let mut repaired = Vec::new();
    let wrong = ids.entries().iter().map(|(ip, id)| (*ip, *id)).filter(|entry| !found.contains(entry));
    for (ip, id) in wrong.collect::<Vec<_>>() {
        let (key, value) = entry(ip, id);
        map.update(&key, &value)?;
        repaired.push(format!("{NAME}: {ip}"));
    }
    let is_known = |key: &NodeKey| key.ip().is_some_and(|ip| ids.entries().contains_key(&ip));
    for (key, _) in rows.iter().filter(|(key, _)| is_pruned && !is_known(key)) {
        map.delete(key)?;
        repaired.push(format!(
            "{NAME}: {}",
            key.ip().map_or("an unknown family".to_owned(), |ip| ip.to_string())
        ));
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_serialized_as_cilium_does() {
        let ids = [node_id(3829, &[[10, 99, 0, 1].into(), [10, 244, 71, 14].into()])];
        assert_eq!(
            serde_json::to_string(&ids).unwrap(),
            r#"[{"id":3829,"ips":["10.99.0.1","10.244.71.14"]}]"#
        );
    }
}

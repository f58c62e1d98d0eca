//! Node ids in the datapath: `cilium_node_map_v2` and `GET /node/ids`.
//!
//! The pinned map is authoritative: it keeps the node's id over restarts, and the operation reads it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_models::NodeId;
use bpf::Map;
use datapath_abi::{NodeKey, NodeValue};
use hive::JobCx;
use maps::Maps;

use crate::{LocalNode, LocalNodeStore};

const NAME: &str = "cilium_node_map_v2";
/// Name of this cell as an owner in drift checks.
const OWNER: &str = "node-ids";
/// Interval of attempts to open the map: the maps' cell creates it in a job, not in a start hook.
const OPEN_INTERVAL: Duration = Duration::from_millis(50);

/// The map, once it exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeIds(Arc<OnceLock<Map<NodeKey, NodeValue>>>);

/// The changes of the map.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    id: u16,
    add: Vec<IpAddr>,
    remove: Vec<IpAddr>,
}

/// Computes the changes after which exactly the node's addresses have its id: the id it had in this run (`last`), else
/// that of one of its addresses, else the lowest free id. `None` if all ids are taken.
fn plan(known: &BTreeMap<IpAddr, u16>, own: &[IpAddr], last: Option<u16>) -> Option<Plan> {
    let found = || own.iter().find_map(|ip| known.get(ip)).copied().filter(|id| *id != 0);
    let kept = last.or_else(found);
    let free = || (1..=u16::MAX).find(|id| !known.values().any(|used| used == id));
    let id = kept.or_else(free)?;
    Some(Plan {
        id,
        add: own.iter().filter(|ip| known.get(ip) != Some(&id)).copied().collect(),
        remove: known
            .iter()
            .filter(|(ip, used)| **used == id && !own.contains(ip))
            .map(|(ip, _)| *ip)
            .collect(),
    })
}

impl NodeIds {
    /// Writes the id of the node's addresses, now and when they change.
    pub(crate) async fn follow(
        self,
        maps: Arc<Maps>,
        store: Arc<LocalNodeStore>,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            result = self.reconcile(&maps, &store, &cx) => result,
        }
    }

    async fn reconcile(&self, maps: &Maps, store: &LocalNodeStore, cx: &JobCx) -> anyhow::Result<()> {
        let path = maps.path(NAME);
        let map = loop {
            match Map::open(&path) {
                Ok(map) => break self.0.get_or_init(|| map),
                Err(_) => tokio::time::sleep(OPEN_INTERVAL).await,
            }
        };
        let table = store.table();
        let (mut last, mut comparing) = (None, false);
        loop {
            let snapshot = table.snapshot();
            let (node, watch) = table.get_watch(&snapshot, LocalNode::query());
            if let Some(node) = node {
                let own = node.addresses().len();
                match write(map, node, last) {
                    Ok((id, changed)) => {
                        last = Some(id);
                        cx.health.ok(format_args!("node id {id}"));
                        if comparing {
                            let changed = changed.iter().map(|ip| format!("{NAME}: {ip}")).collect();
                            maps.comparisons().compared(OWNER, own, changed);
                        }
                    }
                    Err(error) => cx.health.degraded("Node id not written", error),
                }
            }
            drop(snapshot);
            comparing = tokio::select! {
                () = watch.changed() => false,
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

fn node_id(id: u16, ips: &[IpAddr]) -> NodeId {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    NodeId { id: i64::from(id).into(), ips: ips.into() }
}

fn read(map: &Map<NodeKey, NodeValue>) -> bpf::Result<BTreeMap<IpAddr, u16>> {
    let rows = map.entries()?;
    Ok(rows.into_iter().filter_map(|(key, value)| Some((key.ip()?, value.id))).collect())
}

/// Writes the node's entries. Returns its id and the addresses with missing, wrong or stale entries.
fn write(
    map: &Map<NodeKey, NodeValue>,
    node: &LocalNode,
    last: Option<u16>,
) -> anyhow::Result<(u16, Vec<IpAddr>)> {
    let own: Vec<IpAddr> = node.addresses().into_iter().map(|(_, ip)| ip).collect();
    let plan =
        plan(&read(map)?, &own, last).ok_or_else(|| anyhow::anyhow!("all 65535 node ids are taken"))?;
    for ip in &plan.add {
        map.update(&NodeKey::from(*ip), &NodeValue { id: plan.id, spi: 0, pad: 0 })?;
    }
    for ip in &plan.remove {
        map.delete(&NodeKey::from(*ip))?;
    }
    Ok((plan.id, [plan.add, plan.remove].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_id_is_kept_and_follows_the_addresses() {
        let empty = BTreeMap::new();
        let first = plan(&empty, &[ip(1), ip(2)], None).unwrap();
        assert_eq!(first, Plan { id: 1, add: vec![ip(1), ip(2)], remove: vec![] });
        let known = BTreeMap::from([(ip(1), 7), (ip(2), 7), (ip(9), 1)]);
        let moved = plan(&known, &[ip(2), ip(3)], None).unwrap();
        assert_eq!(moved, Plan { id: 7, add: vec![ip(3)], remove: vec![ip(1)] });
        let others = BTreeMap::from([(ip(9), 1), (ip(8), 2)]);
        assert_eq!(plan(&others, &[ip(1)], None).unwrap().id, 3);
        assert_eq!(plan(&known, &[ip(1), ip(2)], None).unwrap(), Plan { id: 7, add: vec![], remove: vec![] });
        let overwritten = BTreeMap::from([(ip(1), 9), (ip(2), 7)]);
        let again = plan(&overwritten, &[ip(1), ip(2)], Some(7)).unwrap();
        assert_eq!(again, Plan { id: 7, add: vec![ip(1)], remove: vec![] });
    }

    #[test]
    fn the_answer_is_serialized_as_cilium_does() {
        let ids = [node_id(3829, &[[10, 99, 0, 1].into(), [10, 244, 71, 14].into()])];
        assert_eq!(
            serde_json::to_string(&ids).unwrap(),
            r#"[{"id":3829,"ips":["10.99.0.1","10.244.71.14"]}]"#
        );
    }
}

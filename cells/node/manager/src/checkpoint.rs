//! The file `nodes.json` in the state folder: the other nodes, for the next start.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use local_node::{AddressType, JsonAddress, JsonCidr, JsonNode};
use parking_lot::Mutex;
use serde::Serializer as _;
use state_file::StateFile;
use statedb::Table;

use crate::node::{Node, NodeAddress, first_of_families};
use crate::object::{address_type, is_usable, is_usable_range};
use crate::source::NodeSource;

/// The file, below the state folder.
const FILE: &str = "nodes.json";
/// The size of a file that is read: 100,000 nodes with many labels.
const LIMIT: u64 = 256 << 20;

/// Reads and writes the file.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    file: StateFile,
    table: Arc<Table<Node>>,
    /// Held while the file is written: the last write of the job may still run when the stop's begins.
    writing: Mutex<()>,
}

impl Checkpoint {
    pub(crate) fn new(state: &Path, table: Arc<Table<Node>>) -> Checkpoint {
        Checkpoint { file: StateFile::new(state.join(FILE)).limit(LIMIT), table, writing: Mutex::new(()) }
    }

    /// Returns the nodes of the previous run. A damaged file is quarantined: the cluster's objects have the nodes.
    pub(crate) fn read(&self) -> Vec<Node> {
        match self.file.read_json::<Vec<JsonNode>>() {
            Ok(stored) => stored.unwrap_or_default().into_iter().filter_map(from_json).collect(),
            Err(error) => {
                tracing::warn!(%error, "The nodes of the previous run cannot be read; the cluster's objects have them");
                if let state_file::Error::Damaged { .. } = error
                    && let Err(error) = state_file::quarantine(error.path())
                {
                    tracing::warn!(%error, "The damaged file of nodes stays where it is");
                }
                Vec::new()
            }
        }
    }

    /// Writes the nodes of the table, after a write that runs, unless the sources have not reported all of them yet: the file of the previous run
    /// has more.
    pub(crate) fn write(&self) -> Result<(), state_file::Error> {
        let _turn = self.writing.lock();
        let snapshot = self.table.snapshot();
        if !self.table.initialized(&snapshot) {
            return Ok(());
        }
        let remote = self.table.all(&snapshot).filter(|node| !node.is_local());
        let mut text = Vec::new();
        // Node by node: the list of all would take several times the memory of the table.
        if serde_json::Serializer::new(&mut text).collect_seq(remote.map(|node| to_json(node))).is_err() {
            text.clear();
        }
        text.push(b'\n');
        self.file.write_changed(&text)
    }
}

/// Returns a node as Cilium writes it.
fn to_json(node: &Node) -> JsonNode {
    let text = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
    let ranges = |is_ipv4: bool| {
        let mut ranges =
            node.pod_cidrs.iter().filter(|range| range.is_ipv4() == is_ipv4).map(|r| JsonCidr::from(*r));
        let first = ranges.next();
        let others: Vec<JsonCidr> = ranges.collect();
        (first, (!others.is_empty()).then_some(others))
    };
    let address = |address: &NodeAddress| JsonAddress::new(address.kind, address.ip);
    let ((ipv4_alloc_cidr, ipv4_secondary), (ipv6_alloc_cidr, ipv6_secondary)) =
        (ranges(true), ranges(false));
    JsonNode {
        name: node.name.to_string(),
        cluster: node.cluster.to_string(),
        ip_addresses: Some(node.addresses.iter().map(address).collect()),
        ipv4_alloc_cidr,
        ipv4_secondary,
        ipv6_alloc_cidr,
        ipv6_secondary,
        ipv4_health: text(node.health_ipv4.map(IpAddr::V4)),
        ipv6_health: text(node.health_ipv6.map(IpAddr::V6)),
        ipv4_ingress: text(node.ingress_ipv4.map(IpAddr::V4)),
        ipv6_ingress: text(node.ingress_ipv6.map(IpAddr::V6)),
        cluster_id: node.cluster_id,
        source: node.source.name().to_owned(),
        encryption_key: node.encryption_key,
        labels: Some((&node.labels).into()),
        annotations: Some((&node.annotations).into()),
        wireguard_pub_key: node.wireguard_key.to_string(),
        boot_id: node.boot_id.to_string(),
        ..JsonNode::default()
    }
}

/// Returns the restored node, without invalid parts; none without a name.
fn from_json(json: JsonNode) -> Option<Node> {
    let addresses = json.ip_addresses.into_iter().flatten().filter_map(|address| {
        let kind: AddressType = address_type(&address.r#type)?;
        Some(NodeAddress { kind, ip: address.ip.parse().ok().filter(is_usable)? })
    });
    let first = json.ipv4_alloc_cidr.into_iter().chain(json.ipv6_alloc_cidr);
    let others = json.ipv4_secondary.into_iter().chain(json.ipv6_secondary).flatten();
    let ranges = first.chain(others).filter_map(|cidr| cidr.range()).filter(is_usable_range);
    let node = Node {
        name: json.name.into(),
        cluster: json.cluster.into(),
        cluster_id: json.cluster_id,
        source: NodeSource::Restored,
        addresses: addresses.collect(),
        pod_cidrs: first_of_families(ranges),
        health_ipv4: json.ipv4_health.parse().ok(),
        health_ipv6: json.ipv6_health.parse().ok(),
        ingress_ipv4: json.ipv4_ingress.parse().ok(),
        ingress_ipv6: json.ipv6_ingress.parse().ok(),
        encryption_key: json.encryption_key,
        wireguard_key: json.wireguard_pub_key.into(),
        boot_id: json.boot_id.into(),
        labels: json.labels.into_iter().flatten().collect(),
        annotations: json.annotations.into_iter().flatten().collect(),
    };
    (!node.name.is_empty()).then_some(node)
}

#[cfg(test)]
mod tests {
    use statedb::Db;

    use super::*;
    use crate::testing::node;

    fn n2() -> Node {
        let mut n2 =
            node("n2", &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112", "10.0.3.0/24"]);
        n2.health_ipv4 = Some([10, 0, 2, 4].into());
        n2.ingress_ipv6 = "fd00:2::8".parse().ok();
        n2.labels = [("zone", "a")].into_iter().collect();
        n2.wireguard_key = "KEY=".into();
        n2.boot_id = "b".into();
        n2.encryption_key = 3;
        n2
    }

    /// The job's write may run when that of the stop begins.
    #[test]
    fn writes_at_the_same_time_all_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let table = Db::new().table::<Node>().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), Arc::new(table.reader()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let boot_id = round.to_string().into();
                        table.transact(|txn| drop(txn.insert(Node { boot_id, ..n2() })));
                        checkpoint.write().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn nodes_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let table = Db::new().table::<Node>().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), Arc::new(table.reader()));
        assert_eq!(checkpoint.read(), []);
        checkpoint.write().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE)).unwrap().trim(), "[]");
        let local = Node { source: NodeSource::Local, ..node("n1", &["192.0.2.1"], &[]) };
        table.transact(|txn| {
            txn.insert(n2());
            txn.insert(local);
        });
        checkpoint.write().unwrap();
        let restored = Node { source: NodeSource::Restored, ..n2() };
        assert_eq!(checkpoint.read(), [restored]);

        // Before the sources have reported all nodes the file keeps those of the previous run.
        let mut txn = table.write();
        let initializer = txn.register_initializer("test");
        txn.delete(Node::by_name("default", "n2"));
        txn.commit();
        checkpoint.write().unwrap();
        assert_eq!(checkpoint.read().len(), 1);
        let mut txn = table.write();
        initializer.done(&mut txn);
        txn.commit();
        checkpoint.write().unwrap();
        assert_eq!(checkpoint.read(), []);
    }

    /// Nodes in the form of Cilium, whose nil maps and lists are `null`.
    #[test]
    fn a_file_of_cilium_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), Arc::new(Db::new().table::<Node>().unwrap().reader()));
        let text = r#"[{"Name":"n2","Cluster":"default","IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.2"},
            {"Type":"CiliumInternalIP","IP":"10.0.2.1"},{"Type":"InternalIP","IP":"127.0.0.1"}],
            "IPv4AllocCIDR":{"IP":"10.0.2.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":null,"IPv6AllocCIDR":null,
            "IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.0.2.4","IPv6HealthIP":"","IPv4IngressIP":"",
            "IPv6IngressIP":"","ClusterID":0,"Source":"custom-resource","EncryptionKey":0,"Labels":null,
            "Annotations":null,"WireguardPubKey":"","BootID":"b","Local":null},{"Name":""}]"#;
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let [n2] = &checkpoint.read()[..] else { panic!() };
        assert_eq!((n2.addresses.len(), n2.ipv4()), (2, Some([192, 0, 2, 2].into())));
        assert_eq!(n2.pod_cidrs, ["10.0.2.0/24".parse().unwrap()]);
        assert_eq!((n2.health_ipv4, n2.ingress_ipv4), (Some([10, 0, 2, 4].into()), None));
    }

    #[test]
    fn a_damaged_file_is_quarantined() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(dir.path(), Arc::new(Db::new().table::<Node>().unwrap().reader()));
        std::fs::write(dir.path().join(FILE), "[{").unwrap();
        assert_eq!(checkpoint.read(), []);
        assert!(!dir.path().join(FILE).exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "it is kept under another name");
        checkpoint.write().unwrap();
    }
}

//! Veths that a plugin of Cilium has created and not finished.

use std::collections::{HashMap, HashSet};

use statedb::Table;

use crate::links::Links;
use crate::model::endpoint::Endpoint;

/// An end of an unfinished veth: its name and index.
pub(crate) type UnfinishedLink = (String, u32);

/// Returns the pods' ends of unfinished veths: both ends are in the node's namespace, the pod's end still under its
/// temporary name, and the other end belongs to no endpoint. Called before plugins can create veths again.
///
/// Two ends belong together when each names the other's index. Indexes alone could match by chance, as peers in other
/// namespaces have indexes of their own; the temporary name decides.
pub(crate) fn find(links: &Links, endpoints: &Table<Endpoint>) -> Vec<UnfinishedLink> {
    let snapshot = endpoints.snapshot();
    let used: HashSet<&str> = endpoints.all(&snapshot).map(|row| row.record.if_name.as_str()).collect();
    let with_prefix = |prefix: &'static str| links.iter().filter(move |(name, _)| name.starts_with(prefix));
    let node_ends: HashMap<u32, u32> = with_prefix("lxc")
        .filter(|(name, _)| !used.contains(name.as_str()))
        .map(|(_, link)| (link.index, link.peer))
        .collect();
    let mut unfinished: Vec<_> = with_prefix("tmp")
        .filter(|(_, link)| link.peer != 0 && node_ends.get(&link.peer) == Some(&link.index))
        .map(|(name, link)| (name.clone(), link.index))
        .collect();
    unfinished.sort_unstable();
    unfinished
}

/// Removes unfinished veths, which takes the kernel about 20 ms each. A veth that has changed since it was found is
/// kept.
pub(crate) async fn remove(unfinished: Vec<UnfinishedLink>) {
    if unfinished.is_empty() {
        return;
    }
    let removed = devices::rtnetlink::call(move |netlink| {
        let mut removed = Vec::new();
        for (name, index) in unfinished {
            if netlink.find_link(&name)?.is_some_and(|link| link.index == index) {
                netlink.delete_link(index)?;
                removed.push(name);
            }
        }
        Ok(removed)
    });
    match removed.await {
        Ok(interfaces) => tracing::info!(?interfaces, "Removed pod interfaces that were never finished"),
        Err(error) => tracing::warn!(%error, "Unable to remove unfinished pod interfaces"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::links::Link;
    use crate::model::record::Record;

    #[test]
    fn only_pairs_with_a_temporary_end_and_no_endpoint_are_unfinished() {
        let link = |index, peer| Link { index, mac: None, peer };
        let links: Links = [
            ("lxc1", link(9, 10)),
            ("tmp1", link(10, 9)),
            // Two pods with peers, in other namespaces, that have each other's index by chance.
            ("lxc2", link(11, 12)),
            ("lxc3", link(12, 11)),
            ("tmp4", link(13, 11)),
            // A pod in the node's own namespace.
            ("lxc6", link(15, 16)),
            ("tmp6", link(16, 15)),
            ("tmp5", link(14, 0)),
            ("eth0", link(2, 0)),
        ]
        .map(|(name, link)| (name.to_owned(), link))
        .into();
        let table = statedb::Db::new().table::<Endpoint>().unwrap();
        let record = Record { id: 7, if_name: "lxc6".into(), ..Record::default() };
        table.transact(|txn| txn.insert(Endpoint::restored(record, SystemTime::UNIX_EPOCH)));
        assert_eq!(find(&links, &table.reader()), [("tmp1".to_owned(), 10)]);
    }
}

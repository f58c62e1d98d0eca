//! Facts of the cluster's objects about this node, kept for the next start: it does not wait for the API server.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use serde::{Deserialize, Serialize};
use state_file::{Schema, StateFile, Version};

use crate::{AddressSource, Error, LocalNode, NodePool};

/// The file, below the state folder.
const FILE: &str = "local-node.json";

/// Pod ranges and addresses that the cluster's objects gave the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Previous {
    /// The node's name: facts of another node are ignored.
    name: String,
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
    pub(crate) ipv4_cidrs: Vec<Ipv4Network>,
    pub(crate) ipv6_cidrs: Vec<Ipv6Network>,
    pub(crate) withdrawn: Vec<IpNetwork>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ingress_ipv4: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ingress_ipv6: Option<Ipv6Addr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pools: Vec<NodePool>,
}

impl Schema for Previous {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "pod ranges of the node";
}

impl Previous {
    pub(crate) fn new(node: &LocalNode) -> Previous {
        Previous {
            name: node.name.clone(),
            ipv4: node.ipv4.filter(|_| node.ipv4_source == AddressSource::Node),
            ipv6: node.ipv6.filter(|_| node.ipv6_source == AddressSource::Node),
            ipv4_cidrs: node.ipv4_alloc_cidrs().collect(),
            ipv6_cidrs: node.ipv6_alloc_cidrs().collect(),
            withdrawn: node.withdrawn_alloc_cidrs.clone(),
            ingress_ipv4: node.ingress_ipv4,
            ingress_ipv6: node.ingress_ipv6,
            pools: node.pools.clone(),
        }
    }
}

pub(crate) fn version() -> Version {
    Version::of::<Previous>()
}

fn file(state: &Path) -> StateFile {
    StateFile::new(state.join(FILE))
}

/// Reads the facts about the node of this name. A damaged file is quarantined: the cluster's objects have the facts.
pub(crate) fn read(state: &Path, name: &str) -> Result<Previous, Error> {
    match file(state).load::<Previous>() {
        Ok(previous) => Ok(previous.filter(|previous| previous.name == name).unwrap_or_default()),
        Err(error @ state_file::Error::Damaged { .. }) => {
            tracing::warn!(%error, "The file of the node's pod ranges is damaged; the cluster's objects have them");
            state_file::quarantine(error.path())?;
            Ok(Previous::default())
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes the facts; one without a range keeps those of the previous run.
pub(crate) fn write(state: &Path, node: &LocalNode) -> Result<(), state_file::Error> {
    let new = Previous::new(node);
    match new.ipv4_cidrs.is_empty() && new.ipv6_cidrs.is_empty() {
        true => Ok(()),
        false => file(state).store(&new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_those_of_the_node_of_this_name() {
        let dir = tempfile::tempdir().unwrap();
        let node = LocalNode {
            name: "n1".into(),
            ipv4: Some([192, 0, 2, 1].into()),
            ipv4_source: AddressSource::Node,
            ipv6: Some("2001:db8::1".parse().unwrap()),
            ipv4_alloc_cidr: Some("10.0.1.0/24".parse().unwrap()),
            ipv4_secondary_alloc_cidrs: vec!["10.0.9.0/24".parse().unwrap()],
            ingress_ipv4: Some([10, 0, 1, 9].into()),
            ..LocalNode::default()
        };
        write(dir.path(), &node).unwrap();
        let previous = read(dir.path(), "n1").unwrap();
        assert_eq!(
            (previous.ipv4, previous.ipv6),
            (node.ipv4, None),
            "the devices' address is not the cluster's"
        );
        assert_eq!(previous.ipv4_cidrs, node.ipv4_alloc_cidrs().collect::<Vec<_>>());
        assert_eq!(previous.ingress_ipv4, node.ingress_ipv4, "other nodes know it");
        assert_eq!(read(dir.path(), "n2").unwrap(), Previous::default());
        write(dir.path(), &LocalNode { name: "n1".into(), ..LocalNode::default() }).unwrap();
        assert_eq!(read(dir.path(), "n1").unwrap(), previous, "a start that waits keeps what is known");
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(read(dir.path(), "n1").unwrap(), Previous::default());
    }
}

//! `GET /cluster/nodes`: all nodes of the cluster, or the changes since a client's previous request.
//!
//! A client that sends the header `client-id: 0` gets an id with the answer and sends it with its next request, which
//! then returns only changes. The id is the revision of the answer, so that no state is kept per client.

use std::collections::VecDeque;

use api_models::{ClusterNodeStatus, NodeAddressing, NodeAddressingElement, NodeElement};

use crate::LocalNode;

/// Number of responses with ids that clients may still send.
const HISTORY: usize = 16;

/// The latest answers, newest last.
#[derive(Debug, Default)]
pub(crate) struct History {
    answers: VecDeque<(u64, NodeElement)>,
}

impl History {
    /// Returns the response for a client that has sent this id: changes since then, or all nodes without an id.
    pub(crate) fn answer(
        &mut self,
        node: &LocalNode,
        revision: u64,
        client: Option<i64>,
    ) -> ClusterNodeStatus {
        let element = element(node);
        if self.answers.back().is_none_or(|(known, _)| *known != revision) {
            self.answers.push_back((revision, element.clone()));
            if self.answers.len() > HISTORY {
                self.answers.pop_front();
            }
        }
        let mut status = ClusterNodeStatus { self_name: node.full_name(), ..ClusterNodeStatus::default() };
        let Some(client) = client else {
            status.nodes_added = vec![element].into();
            return status;
        };
        status.client_id = i64::try_from(revision).unwrap_or(i64::MAX);
        let seen = self.answers.iter().find(|(known, _)| i64::try_from(*known) == Ok(client));
        match seen {
            Some((_, old)) if *old == element => {}
            Some((_, old)) => {
                status.nodes_removed = vec![old.clone()].into();
                status.nodes_added = vec![element].into();
            }
            None => status.nodes_added = vec![element].into(),
        }
        status
    }
}

fn addressing<T: ToString>(enabled: bool, ip: Option<T>, range: Option<String>) -> NodeAddressingElement {
    NodeAddressingElement {
        address_type: String::new(),
        alloc_range: range.unwrap_or_default(),
        enabled,
        ip: ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}

fn element(node: &LocalNode) -> NodeElement {
    let v4_range = node.ipv4_alloc_cidr.map(|c| c.to_string());
    let v6_range = node.ipv6_alloc_cidr.map(|c| c.to_string());
    let health = (node.health_ipv4.is_some() || node.health_ipv6.is_some()).then(|| NodeAddressing {
        ipv4: Some(addressing(node.health_ipv4.is_some(), node.health_ipv4, None)),
        ipv6: Some(addressing(node.health_ipv6.is_some(), node.health_ipv6, None)),
    });
    let routers = [node.router_ipv4.map(|ip| ip.to_string()), node.router_ipv6.map(|ip| ip.to_string())];
    let secondary: Vec<NodeAddressingElement> =
        routers.into_iter().flatten().map(|ip| addressing(false, Some(ip), None)).collect();
    NodeElement {
        health_endpoint_address: health,
        ingress_address: None,
        name: node.full_name(),
        primary_address: Some(NodeAddressing {
            ipv4: Some(addressing(node.ipv4.is_some(), node.ipv4, v4_range)),
            ipv6: Some(addressing(node.ipv6.is_some(), node.ipv6, v6_range)),
        }),
        secondary_addresses: secondary.into(),
        source: "local".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> LocalNode {
        LocalNode {
            name: "peer1".into(),
            cluster: "default".into(),
            ipv4: Some([10, 99, 0, 1].into()),
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            router_ipv4: Some([10, 244, 71, 14].into()),
            health_ipv4: Some([10, 244, 57, 201].into()),
            ..LocalNode::default()
        }
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn the_answer_is_serialized_as_cilium_does() {
        let status = History::default().answer(&node(), 7, None);
        assert_eq!(
            serde_json::to_string(&status).unwrap(),
            r#"{"nodes-added":[{"health-endpoint-address":{"ipv4":{"enabled":true,"ip":"10.244.57.201"},"ipv6":{}},"name":"peer1","primary-address":{"ipv4":{"alloc-range":"10.244.0.0/16","enabled":true,"ip":"10.99.0.1"},"ipv6":{}},"secondary-addresses":[{"ip":"10.244.71.14"}],"source":"local"}],"nodes-removed":null,"self":"peer1"}"#
        );
    }

    #[test]
    fn a_client_with_an_id_gets_only_changes() {
        let mut history = History::default();
        let first = history.answer(&node(), 7, Some(0));
        assert_eq!((first.client_id, first.nodes_added.len()), (7, 1));
        let again = history.answer(&node(), 7, Some(first.client_id));
        assert_eq!((again.client_id, again.nodes_added.len()), (7, 0));

        let mut moved = node();
        moved.ipv4 = Some([10, 99, 0, 2].into());
        let changed = history.answer(&moved, 9, Some(again.client_id));
        assert_eq!((changed.nodes_added.len(), changed.nodes_removed.len()), (1, 1));
        let unknown = history.answer(&moved, 9, Some(12345));
        assert_eq!((unknown.nodes_added.len(), unknown.nodes_removed.len()), (1, 0));
        for revision in 10..100 {
            history.answer(&moved, revision, None);
        }
        assert_eq!(history.answers.len(), HISTORY);
    }
}

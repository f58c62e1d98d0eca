//! The sources of nodes, with their priorities.

use serde::{Deserialize, Serialize};

/// The source of a node, in ascending priority: a row is not replaced by one of a source with a lower priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeSource {
    /// Unknown.
    #[default]
    Unspec,
    /// The state folder, until the real sources are complete.
    Restored,
    /// The agent itself.
    Generated,
    /// The REST API.
    Api,
    /// A folder.
    Directory,
    /// Another cluster.
    #[serde(rename = "clustermesh")]
    ClusterMesh,
    /// Nodes of Kubernetes.
    #[serde(rename = "k8s")]
    Kubernetes,
    /// CiliumNodes.
    CustomResource,
    /// The kvstore.
    #[serde(rename = "kvstore")]
    KvStore,
    /// The agent's own node.
    Local,
    /// The API server.
    #[serde(rename = "kube-apiserver")]
    KubeApiServer,
}

impl NodeSource {
    /// Returns the name in the REST API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspec => "unspec",
            Self::Restored => "restored",
            Self::Generated => "generated",
            Self::Api => "api",
            Self::Directory => "directory",
            Self::ClusterMesh => "clustermesh",
            Self::Kubernetes => "k8s",
            Self::CustomResource => "custom-resource",
            Self::KvStore => "kvstore",
            Self::Local => "local",
            Self::KubeApiServer => "kube-apiserver",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_order_are_those_of_cilium() {
        let mut sources = [
            NodeSource::KubeApiServer,
            NodeSource::Local,
            NodeSource::KvStore,
            NodeSource::CustomResource,
            NodeSource::Kubernetes,
            NodeSource::ClusterMesh,
            NodeSource::Directory,
            NodeSource::Api,
            NodeSource::Generated,
            NodeSource::Restored,
            NodeSource::Unspec,
        ];
        assert!(sources.is_sorted_by(|a, b| a > b));
        sources.reverse();
        for source in sources {
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
    }
}

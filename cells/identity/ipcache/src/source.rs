//! The sources of mappings, with their priorities.

use serde::Serialize;

/// The source of a mapping, in ascending priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Source {
    /// The kernel's map at start, until the real sources are complete.
    Restored,
    /// The agent itself: the world, CIDRs of policies.
    Generated,
    /// Addresses of the API server outside of the cluster: their identity has the label of the address, too, so it wins over
    /// the CIDRs of policies.
    KubeApiServer,
    /// Addresses of DNS names: their identity has the labels of the CIDRs of policies and of the API server, too, so it wins
    /// over these.
    Names,
    /// The REST API.
    LocalApi,
    /// Pods and nodes of Kubernetes.
    Kubernetes,
    /// CiliumEndpoints and CiliumNodes.
    CustomResource,
    /// The kvstore.
    KvStore,
    /// This node's own endpoints and addresses.
    Local,
}

impl Source {
    /// Returns the name in the REST API.
    pub fn name(self) -> &'static str {
        match self {
            Source::Restored => "restored",
            Source::Generated | Source::Names => "generated",
            Source::LocalApi => "api",
            Source::Kubernetes => "k8s",
            Source::CustomResource => "custom-resource",
            Source::KvStore => "kvstore",
            Source::Local => "local",
            Source::KubeApiServer => "kube-apiserver",
        }
    }
}

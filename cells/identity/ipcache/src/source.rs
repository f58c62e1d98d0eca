//! Who says which identity an address has, and who is believed.

use serde::Serialize;

/// Where a mapping comes from; a later one in this list is believed over an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Source {
    /// Read back from the kernel at start, kept until the real sources have spoken.
    Restored,
    /// Made by the agent itself without knowledge: the world, CIDRs of policies.
    Generated,
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
    /// Addresses of the API server.
    KubeApiServer,
}

impl Source {
    /// The word of the REST API.
    pub fn name(self) -> &'static str {
        match self {
            Source::Restored => "restored",
            Source::Generated => "generated",
            Source::LocalApi => "api",
            Source::Kubernetes => "k8s",
            Source::CustomResource => "custom-resource",
            Source::KvStore => "kvstore",
            Source::Local => "local",
            Source::KubeApiServer => "kube-apiserver",
        }
    }
}

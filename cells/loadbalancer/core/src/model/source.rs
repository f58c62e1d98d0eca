//! Sources of services and backends, and their precedence.

use std::fmt;

use serde::{Serialize, Serializer};

/// The source of a row, in descending precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Addresses of the API server.
    KubeApiServer,
    /// The agent itself.
    Local,
    /// The kvstore.
    KvStore,
    /// Custom resources.
    CustomResource,
    /// Services and endpoint slices of Kubernetes.
    Kubernetes,
    /// Other clusters.
    ClusterMesh,
    /// A directory of manifests.
    Directory,
    /// The state file, and programs that embed the agent.
    Api,
    /// State that the agent derives; only restored and unspecified rows have lower precedence.
    Generated,
    /// State restored from the previous run.
    Restored,
    /// Unknown.
    Unspec,
}

impl Source {
    /// Returns the name in tables and in the REST API.
    pub fn name(self) -> &'static str {
        match self {
            Source::KubeApiServer => "kube-apiserver",
            Source::Local => "local",
            Source::KvStore => "kvstore",
            Source::CustomResource => "custom-resource",
            Source::Kubernetes => "k8s",
            Source::ClusterMesh => "clustermesh",
            Source::Directory => "directory",
            Source::Api => "api",
            Source::Generated => "generated",
            Source::Restored => "restored",
            Source::Unspec => "unspec",
        }
    }

    /// Returns the rank of precedence; 0 is the highest.
    pub fn priority(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

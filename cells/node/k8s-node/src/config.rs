//! The options.

use local_node::{IpamMode, LocalNodeConfig};
use maps::FamilyConfig;

/// Options about the Node object. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes")]
pub struct K8sNodeConfig {
    /// Annotate the Node object with facts of this node, and read its pod ranges from there if its spec has none
    #[flag(default = false)]
    pub annotate_k8s_node: bool,
}

/// The options that decide about ranges and addresses.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    /// Whether there is a cluster whose Node this is; in a folder of manifests it may be missing.
    pub(crate) in_cluster: bool,
    pub(crate) ipam: IpamMode,
    pub(crate) annotations: bool,
    pub(crate) ipv4: FamilySettings,
    pub(crate) ipv6: FamilySettings,
}

/// Those of a family.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FamilySettings {
    pub(crate) enabled: bool,
    /// An option names the range.
    pub(crate) is_configured: bool,
    /// There is no range but one of the cluster.
    pub(crate) is_required: bool,
}

impl Settings {
    pub(crate) fn new(
        name: &str,
        node: &LocalNodeConfig,
        config: &K8sNodeConfig,
        families: &FamilyConfig,
    ) -> Settings {
        let always = matches!(node.ipam, IpamMode::ClusterPool | IpamMode::Kubernetes);
        let family = |enabled, range: &str, required| FamilySettings {
            enabled,
            is_configured: range != "auto",
            is_required: always || required,
        };
        Settings {
            name: name.to_owned(),
            in_cluster: true,
            ipam: node.ipam,
            annotations: config.annotate_k8s_node,
            ipv4: family(families.enable_ipv4, &node.ipv4_range, node.k8s_require_ipv4_pod_cidr),
            ipv6: family(families.enable_ipv6, &node.ipv6_range, node.k8s_require_ipv6_pod_cidr),
        }
    }

    /// The same for a node whose ranges are in its row from the start: only labels and addresses are the Node's.
    pub(crate) fn without_cluster(mut self) -> Settings {
        self.in_cluster = false;
        self.ipv4.is_configured = true;
        self.ipv6.is_configured = true;
        self
    }

    /// Whether ranges are read here; those of pools are read by the cell that also requests them.
    pub(crate) fn reads_ranges(&self) -> bool {
        self.ipam != IpamMode::MultiPool
    }

    /// Whether the ranges are those of the CiliumNode.
    pub(crate) fn reads_cilium_node(&self) -> bool {
        self.ipam == IpamMode::ClusterPool
    }
}

//! Nodes.

use smol_str::SmolStr;

use crate::ObjectMeta;
use crate::Time;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// A node.
    pub struct Node {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: NodeSpec,
        /// The observed state.
        always pub status: NodeStatus,
    }

    /// The desired state of a node.
    pub struct NodeSpec {
        /// The range of its pods.
        #[serde(rename = "podCIDR")]
        pub pod_cidr: SmolStr,
        /// The ranges of its pods, at most one per family; the first is `pod_cidr`.
        #[serde(rename = "podCIDRs")]
        pub pod_cidrs: Vec<SmolStr>,
        /// Its instance id at the cloud provider.
        #[serde(rename = "providerID")]
        pub provider_id: SmolStr,
        /// Its taints, which repel pods.
        pub taints: Vec<Taint>,
    }

    /// A taint, which repels pods that do not tolerate it.
    pub struct Taint {
        /// Its name.
        always pub key: SmolStr,
        /// Its value.
        pub value: SmolStr,
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
        always pub effect: SmolStr,
        /// The time at which it was added.
        pub time_added: Option<Time>,
    }

    /// The observed state of a node.
    pub struct NodeStatus {
        /// The conditions.
        pub conditions: Vec<NodeCondition>,
        /// Its addresses.
        pub addresses: Vec<NodeAddress>,
    }

    /// A condition of a node.
    pub struct NodeCondition {
        /// `Ready` and so on.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// The reason, as one CamelCase word.
        pub reason: SmolStr,
    }

    /// An address of a node.
    pub struct NodeAddress {
        /// `InternalIP`, `ExternalIP`, `Hostname` and so on.
        always pub r#type: SmolStr,
        /// The address.
        always pub address: SmolStr,
    }
}

resource!(Node);

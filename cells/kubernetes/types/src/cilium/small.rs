//! Kinds of few fields, and the conditions that many kinds have.

use smol_str::SmolStr;

use crate::Time;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta, StringMap};

slim! {
    /// External ranges that policies refer to by a name.
    pub struct CiliumCIDRGroup {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Its options.
        always pub spec: CidrGroupSpec,
    }

    /// The ranges of a group.
    pub struct CidrGroupSpec {
        /// The ranges.
        #[serde(rename = "externalCIDRs")]
        always pub external_cidrs: Vec<SmolStr>,
    }

    /// Configuration overrides for a set of nodes.
    pub struct CiliumNodeConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The settings, and the selected nodes.
        always pub spec: NodeConfigSpec,
    }

    /// The settings, and the selected nodes.
    pub struct NodeConfigSpec {
        /// The settings, as in the ConfigMap.
        always pub defaults: StringMap,
        /// The selected nodes; none if missing.
        always pub node_selector: Option<LabelSelector>,
    }

    /// An egress gateway for a set of pods.
    pub struct CiliumEgressGatewayPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The pods, destinations and gateways.
        always pub spec: EgressGatewayPolicySpec,
    }

    /// The pods, destinations and gateways of a policy.
    pub struct EgressGatewayPolicySpec {
        /// The pods: those that any of the rules selects.
        always pub selectors: Vec<EgressRule>,
        /// The destinations.
        #[serde(rename = "destinationCIDRs")]
        always pub destination_cidrs: Vec<SmolStr>,
        /// Exceptions.
        #[serde(rename = "excludedCIDRs")]
        pub excluded_cidrs: Vec<SmolStr>,
        /// The gateway.
        always pub egress_gateway: Option<EgressGateway>,
        /// Several gateways, one of which is assigned to each pod; overrides `egress_gateway`.
        pub egress_gateways: Vec<EgressGateway>,
    }

    /// A selector of pods by labels of the pod, its namespace and its node.
    pub struct EgressRule {
        /// Namespaces.
        pub namespace_selector: Option<LabelSelector>,
        /// Pods.
        pub pod_selector: Option<LabelSelector>,
        /// Nodes.
        pub node_selector: Option<LabelSelector>,
    }

    /// A gateway node with its source address.
    pub struct EgressGateway {
        /// Selects the node: the first one by name.
        always pub node_selector: Option<LabelSelector>,
        /// The device whose first address is used.
        pub interface: SmolStr,
        /// The address.
        #[serde(rename = "egressIP")]
        pub egress_ip: SmolStr,
    }

    /// A plugin of the datapath.
    pub struct CiliumDatapathPlugin {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Its state.
        always pub spec: DatapathPluginSpec,
    }

    /// The state of a plugin of the datapath.
    pub struct DatapathPluginSpec {
        /// `Always` or `BestEffort`.
        always pub attachment_policy: SmolStr,
        /// Its version; a change reloads the datapath.
        always pub version: SmolStr,
    }

    /// A status that has only conditions.
    pub struct Conditions {
        /// The conditions, one per type.
        pub conditions: Vec<Condition>,
    }

    /// A condition of an object.
    pub struct Condition {
        /// The type, such as `cilium.io/PoolConflict`.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// The generation of the object that the condition is about.
        pub observed_generation: i64,
        /// The time of the last transition.
        always pub last_transition_time: Option<Time>,
        /// The reason, as one CamelCase word.
        always pub reason: SmolStr,
        /// A human-readable message.
        always pub message: SmolStr,
    }
}

resource!(CiliumCIDRGroup, CiliumNodeConfig, CiliumEgressGatewayPolicy, CiliumDatapathPlugin);

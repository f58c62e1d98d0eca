//! Kinds of few fields, and conditions, which many have.

use smol_str::SmolStr;

use crate::Time;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta, StringMap};

slim! {
    /// Ranges outside the cluster that policies refer to by one name.
    pub struct CiliumCIDRGroup {
        /// Name, labels and so on.
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

    /// Settings of some nodes.
    pub struct CiliumNodeConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Which ones, and of which nodes.
        always pub spec: NodeConfigSpec,
    }

    /// Settings, and the nodes that have them.
    pub struct NodeConfigSpec {
        /// The settings, as the ConfigMap has them.
        always pub defaults: StringMap,
        /// The nodes; none at all without it.
        always pub node_selector: Option<LabelSelector>,
    }

    /// A gateway by which some pods leave the cluster.
    pub struct CiliumEgressGatewayPolicy {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Which pods, whereto, and by which gateway.
        always pub spec: EgressGatewayPolicySpec,
    }

    /// The pods, where they go to, and their gateway.
    pub struct EgressGatewayPolicySpec {
        /// The pods: those that one of these means.
        always pub selectors: Vec<EgressRule>,
        /// Where they go to.
        #[serde(rename = "destinationCIDRs")]
        always pub destination_cidrs: Vec<SmolStr>,
        /// Less these.
        #[serde(rename = "excludedCIDRs")]
        pub excluded_cidrs: Vec<SmolStr>,
        /// Their gateway.
        always pub egress_gateway: Option<EgressGateway>,
        /// Several gateways, one of which each pod is assigned; they replace the single one.
        pub egress_gateways: Vec<EgressGateway>,
    }

    /// Pods by their labels, their namespace's and their node's.
    pub struct EgressRule {
        /// Namespaces.
        pub namespace_selector: Option<LabelSelector>,
        /// Pods.
        pub pod_selector: Option<LabelSelector>,
        /// Nodes.
        pub node_selector: Option<LabelSelector>,
    }

    /// A node by which packets leave, and the address they have then.
    pub struct EgressGateway {
        /// The node: the first by name.
        always pub node_selector: Option<LabelSelector>,
        /// The device whose first address is used.
        pub interface: SmolStr,
        /// The address.
        #[serde(rename = "egressIP")]
        pub egress_ip: SmolStr,
    }

    /// A plugin of the datapath.
    pub struct CiliumDatapathPlugin {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Its state.
        always pub spec: DatapathPluginSpec,
    }

    /// The state of a plugin of the datapath.
    pub struct DatapathPluginSpec {
        /// `Always` or `BestEffort`.
        always pub attachment_policy: SmolStr,
        /// Its version; another one has the datapath loaded again.
        always pub version: SmolStr,
    }

    /// A status that has only conditions.
    pub struct Conditions {
        /// The conditions, one a type.
        pub conditions: Vec<Condition>,
    }

    /// How an object is in one respect.
    pub struct Condition {
        /// The respect, as `cilium.io/PoolConflict`.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// The generation of the object that the condition is about.
        pub observed_generation: i64,
        /// Since when it is so.
        always pub last_transition_time: Option<Time>,
        /// Why, in one word.
        always pub reason: SmolStr,
        /// Why, in words.
        always pub message: SmolStr,
    }
}

resource!(CiliumCIDRGroup, CiliumNodeConfig, CiliumEgressGatewayPolicy, CiliumDatapathPlugin);

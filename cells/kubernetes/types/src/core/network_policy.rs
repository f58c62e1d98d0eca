//! NetworkPolicies: Kubernetes' own.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{IntOrString, LabelSelector, ObjectMeta};

slim! {
    /// The allowed ingress and egress traffic of selected pods.
    pub struct NetworkPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The selected pods and their rules.
        always pub spec: NetworkPolicySpec,
    }

    /// The selected pods and their rules.
    pub struct NetworkPolicySpec {
        /// The pods.
        always pub pod_selector: LabelSelector,
        /// Rules for ingress traffic.
        pub ingress: Vec<NetworkPolicyIngressRule>,
        /// Rules for egress traffic.
        pub egress: Vec<NetworkPolicyEgressRule>,
        /// The directions that it applies to: `Ingress`, `Egress`.
        pub policy_types: Vec<SmolStr>,
    }

    /// A rule for ingress traffic.
    pub struct NetworkPolicyIngressRule {
        /// The ports; empty for all.
        pub ports: Vec<NetworkPolicyPort>,
        /// The peers; empty for all.
        pub from: Vec<NetworkPolicyPeer>,
    }

    /// A rule for egress traffic.
    pub struct NetworkPolicyEgressRule {
        /// The ports; empty for all.
        pub ports: Vec<NetworkPolicyPort>,
        /// The peers; empty for all.
        pub to: Vec<NetworkPolicyPeer>,
    }

    /// Ports of a protocol.
    pub struct NetworkPolicyPort {
        /// `TCP`, `UDP` or `SCTP`; none means `TCP`.
        pub protocol: Option<SmolStr>,
        /// The port; all if missing.
        pub port: Option<IntOrString>,
        /// The last port of a range.
        pub end_port: Option<i32>,
    }

    /// Pods by their labels and their namespaces', or addresses.
    pub struct NetworkPolicyPeer {
        /// Pods.
        pub pod_selector: Option<LabelSelector>,
        /// Namespaces.
        pub namespace_selector: Option<LabelSelector>,
        /// Addresses.
        pub ip_block: Option<IpBlock>,
    }

    /// Addresses of a range.
    pub struct IpBlock {
        /// The range.
        always pub cidr: SmolStr,
        /// Exceptions.
        pub except: Vec<SmolStr>,
    }
}

resource!(NetworkPolicy);

//! NetworkPolicies: Kubernetes' own.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{IntOrString, LabelSelector, ObjectMeta};

slim! {
    /// What some pods of a namespace may receive and send.
    pub struct NetworkPolicy {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The pods, and what they may.
        always pub spec: NetworkPolicySpec,
    }

    /// Pods, and what they may receive and send.
    pub struct NetworkPolicySpec {
        /// The pods.
        always pub pod_selector: LabelSelector,
        /// What they may receive.
        pub ingress: Vec<NetworkPolicyIngressRule>,
        /// What they may send.
        pub egress: Vec<NetworkPolicyEgressRule>,
        /// `Ingress`, `Egress`: the directions it is about.
        pub policy_types: Vec<SmolStr>,
    }

    /// What may be received.
    pub struct NetworkPolicyIngressRule {
        /// On these ports; all without any.
        pub ports: Vec<NetworkPolicyPort>,
        /// From these; all without any.
        pub from: Vec<NetworkPolicyPeer>,
    }

    /// What may be sent.
    pub struct NetworkPolicyEgressRule {
        /// To these ports; all without any.
        pub ports: Vec<NetworkPolicyPort>,
        /// To these; all without any.
        pub to: Vec<NetworkPolicyPeer>,
    }

    /// Ports of a protocol.
    pub struct NetworkPolicyPort {
        /// `TCP`, `UDP` or `SCTP`; none means `TCP`.
        pub protocol: Option<SmolStr>,
        /// The port; all without it.
        pub port: Option<IntOrString>,
        /// The last one, if there are several.
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
        /// Less these.
        pub except: Vec<SmolStr>,
    }
}

resource!(NetworkPolicy);

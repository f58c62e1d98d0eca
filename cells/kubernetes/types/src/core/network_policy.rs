//! NetworkPolicies: Kubernetes' own.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{IntOrString, LabelSelector, ObjectMeta};

slim! {
    /// The traffic that selected pods of a namespace may receive and send.
    pub struct NetworkPolicy {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The selected pods and their rules.
        always pub spec: NetworkPolicySpec,
    }

    /// The selected pods, and the traffic that they may receive and send.
    pub struct NetworkPolicySpec {
        /// The pods.
        always pub pod_selector: LabelSelector,
        /// Rules about received traffic.
        pub ingress: Vec<NetworkPolicyIngressRule>,
        /// Rules about sent traffic.
        pub egress: Vec<NetworkPolicyEgressRule>,
        /// `Ingress`, `Egress`: the directions it is about.
        pub policy_types: Vec<SmolStr>,
    }

    /// A rule about received traffic.
    pub struct NetworkPolicyIngressRule {
        /// On these ports; all without any.
        pub ports: Vec<NetworkPolicyPort>,
        /// From these; all without any.
        pub from: Vec<NetworkPolicyPeer>,
    }

    /// A rule about sent traffic.
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

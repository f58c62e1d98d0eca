//! Announcements of service addresses on local networks.

use smol_str::SmolStr;

use super::Conditions;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Which nodes answer for the addresses of which services on their networks.
    pub struct CiliumL2AnnouncementPolicy {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: L2AnnouncementPolicySpec,
        /// How it is.
        always pub status: Conditions,
    }

    /// Nodes, services, and addresses of the latter.
    pub struct L2AnnouncementPolicySpec {
        /// The nodes; all without it.
        always pub node_selector: Option<LabelSelector>,
        /// The services; all without it.
        always pub service_selector: Option<LabelSelector>,
        /// Whether addresses of load balancers are meant.
        #[serde(rename = "loadBalancerIPs")]
        always pub load_balancer_ips: bool,
        /// Whether external addresses are meant.
        #[serde(rename = "externalIPs")]
        always pub external_ips: bool,
        /// Patterns of devices; all devices without any.
        always pub interfaces: Vec<SmolStr>,
    }
}

resource!(CiliumL2AnnouncementPolicy);

//! Announcements of service addresses on local networks.

use smol_str::SmolStr;

use super::Conditions;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Announces addresses of services on local networks (ARP, NDP) from selected nodes.
    pub struct CiliumL2AnnouncementPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: L2AnnouncementPolicySpec,
        /// The observed state.
        always pub status: Conditions,
    }

    /// The selected nodes and services, and the kinds of addresses.
    pub struct L2AnnouncementPolicySpec {
        /// The selected nodes; all if missing.
        always pub node_selector: Option<LabelSelector>,
        /// The selected services; all if missing.
        always pub service_selector: Option<LabelSelector>,
        /// Whether to announce addresses of load balancers.
        #[serde(rename = "loadBalancerIPs")]
        always pub load_balancer_ips: bool,
        /// Whether to announce external addresses.
        #[serde(rename = "externalIPs")]
        always pub external_ips: bool,
        /// Regular expressions of device names; empty for all devices.
        always pub interfaces: Vec<SmolStr>,
    }
}

resource!(CiliumL2AnnouncementPolicy);

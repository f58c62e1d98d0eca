//! Pools of addresses, of load balancers and of pods.

use smol_str::SmolStr;

use super::Conditions;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Addresses for load balancers.
    pub struct CiliumLoadBalancerIPPool {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The addresses, and for which services.
        always pub spec: LoadBalancerIpPoolSpec,
        /// How it is.
        always pub status: Conditions,
    }

    /// Addresses, and services that may have them.
    pub struct LoadBalancerIpPoolSpec {
        /// The services; all without it.
        always pub service_selector: Option<LabelSelector>,
        /// `No` keeps the first and the last address of each range back.
        #[serde(rename = "allowFirstLastIPs")]
        pub allow_first_last_ips: SmolStr,
        /// The addresses.
        pub blocks: Vec<IpBlock>,
        /// Whether no more addresses are allocated from it.
        always pub disabled: bool,
    }

    /// A range of addresses, by its prefix or its ends.
    pub struct IpBlock {
        /// The prefix.
        always pub cidr: SmolStr,
        /// The first address.
        pub start: SmolStr,
        /// The last address.
        pub stop: SmolStr,
    }

    /// Addresses for pods.
    pub struct CiliumPodIPPool {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The addresses, and for which pods.
        always pub spec: PodIpPoolSpec,
    }

    /// Addresses, and pods that may have them.
    pub struct PodIpPoolSpec {
        /// The IPv4 ones.
        pub ipv4: Option<PoolFamily>,
        /// The IPv6 ones.
        pub ipv6: Option<PoolFamily>,
        /// Whether the first address of a node's range is allocated to pods.
        #[serde(rename = "allowFirstIP")]
        pub allow_first_ip: bool,
        /// Whether the last address of a node's range is allocated to pods.
        #[serde(rename = "allowLastIP")]
        pub allow_last_ip: bool,
        /// Pods that have addresses of it without saying so.
        pub pod_selector: Option<LabelSelector>,
        /// Namespaces of such pods.
        pub namespace_selector: Option<LabelSelector>,
    }

    /// Addresses of a family.
    pub struct PoolFamily {
        /// The ranges they are from.
        always pub cidrs: Vec<SmolStr>,
        /// The prefix length of the part that a node gets.
        always pub mask_size: u8,
    }
}

resource!(CiliumLoadBalancerIPPool, CiliumPodIPPool);

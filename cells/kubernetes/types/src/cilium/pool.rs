//! Pools of addresses, of load balancers and of pods.

use smol_str::SmolStr;

use super::Conditions;
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// A pool of addresses for load balancers.
    pub struct CiliumLoadBalancerIPPool {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The addresses, and the selected services.
        always pub spec: LoadBalancerIpPoolSpec,
        /// The observed state.
        always pub status: Conditions,
    }

    /// The addresses of a pool, and the selected services.
    pub struct LoadBalancerIpPoolSpec {
        /// The selected services; all if missing.
        always pub service_selector: Option<LabelSelector>,
        /// `No` excludes the first and the last address of each range.
        #[serde(rename = "allowFirstLastIPs")]
        pub allow_first_last_ips: SmolStr,
        /// The addresses.
        pub blocks: Vec<IpBlock>,
        /// Whether new allocations are disabled.
        always pub disabled: bool,
    }

    /// A range of addresses, as a prefix or by its first and last address.
    pub struct IpBlock {
        /// The prefix.
        always pub cidr: SmolStr,
        /// The first address.
        pub start: SmolStr,
        /// The last address.
        pub stop: SmolStr,
    }

    /// A pool of addresses for pods.
    pub struct CiliumPodIPPool {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The addresses, and the selected pods.
        always pub spec: PodIpPoolSpec,
    }

    /// The addresses of a pool, and the selected pods.
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
        /// Pods that use the pool by default.
        pub pod_selector: Option<LabelSelector>,
        /// Namespaces of such pods.
        pub namespace_selector: Option<LabelSelector>,
    }

    /// Addresses of a family.
    pub struct PoolFamily {
        /// The ranges of the pool.
        always pub cidrs: Vec<SmolStr>,
        /// The prefix length of a node's range.
        always pub mask_size: u8,
    }
}

resource!(CiliumLoadBalancerIPPool, CiliumPodIPPool);

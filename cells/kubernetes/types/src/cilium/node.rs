//! Nodes as Cilium sees them.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{
    AddressPair, AlibabaCloudSpec, AlibabaCloudStatus, AzureSpec, AzureStatus, EncryptionSpec, EniSpec,
    EniStatus,
};
use crate::resource::resource;
use crate::slim::slim;
use crate::{ObjectMeta, StringMap};

slim! {
    /// A node as Cilium sees it; its name is the node's.
    pub struct CiliumNode {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Its addresses and settings.
        always pub spec: NodeSpec,
        /// The observed state.
        always pub status: NodeStatus,
    }

    /// The addresses and settings of a node.
    kebab pub struct NodeSpec {
        /// How its cloud names it.
        pub instance_id: SmolStr,
        /// The run of its kernel.
        #[serde(rename = "bootid")]
        pub boot_id: SmolStr,
        /// Its addresses.
        pub addresses: Vec<NodeAddress>,
        /// The addresses by which its health is probed.
        always pub health: AddressPair,
        /// The addresses of its ingress.
        always pub ingress: AddressPair,
        /// Its key.
        always pub encryption: EncryptionSpec,
        /// The request to AWS.
        always pub eni: EniSpec,
        /// The request to Azure.
        always pub azure: AzureSpec,
        /// The request to Alibaba Cloud.
        always pub alibaba_cloud: AlibabaCloudSpec,
        /// Its pods' addresses.
        always pub ipam: IpamSpec,
    }

    /// An address of a node.
    pub struct NodeAddress {
        /// `InternalIP`, `ExternalIP`, `CiliumInternalIP` and so on.
        pub r#type: SmolStr,
        /// The address.
        pub ip: SmolStr,
    }

    /// The addresses of a node's pods: existing and requested ones.
    kebab pub struct IpamSpec {
        /// IPv4 addresses that it may allocate to pods.
        pub pool: BTreeMap<SmolStr, AllocationIp>,
        /// IPv6 addresses that it may allocate to pods.
        pub ipv6_pool: BTreeMap<SmolStr, AllocationIp>,
        /// Pools that it gets ranges from.
        always pub pools: IpamPools,
        /// Its ranges.
        #[serde(rename = "podCIDRs")]
        pub pod_cidrs: Vec<SmolStr>,
        /// How many addresses it has at least.
        pub min_allocate: i64,
        /// How many addresses it has at most; 0 for any number.
        pub max_allocate: i64,
        /// How many free addresses it keeps.
        pub pre_allocate: i64,
        /// How many addresses it takes beyond those at once.
        pub max_above_watermark: i64,
        /// Labels of fixed public addresses, one of which it gets.
        #[serde(rename = "static-ip-tags")]
        pub static_ip_tags: StringMap,
    }

    /// An address that may be or is allocated to a pod.
    pub struct AllocationIp {
        /// The owner of the address.
        pub owner: SmolStr,
        /// The cloud resource that it belongs to.
        pub resource: SmolStr,
    }

    /// Pools that a node gets ranges from.
    pub struct IpamPools {
        /// The addresses that it requests from pools.
        pub requested: Vec<IpamPoolRequest>,
        /// The ranges of pools that it owns.
        pub allocated: Vec<IpamPoolAllocation>,
    }

    /// The addresses that a node requests from a pool.
    pub struct IpamPoolRequest {
        /// The pool.
        always pub pool: SmolStr,
        /// How much.
        always pub needed: IpamPoolDemand,
    }

    /// How many addresses are wanted.
    kebab pub struct IpamPoolDemand {
        /// IPv4 addresses.
        pub ipv4_addrs: i64,
        /// IPv6 addresses.
        pub ipv6_addrs: i64,
    }

    /// The ranges of a pool that a node owns.
    pub struct IpamPoolAllocation {
        /// The pool.
        always pub pool: SmolStr,
        /// The ranges.
        pub cidrs: Vec<SmolStr>,
        /// Whether a range's first address is allocated to pods.
        #[serde(rename = "allowFirstIP")]
        pub allow_first_ip: bool,
        /// Whether a range's last address is allocated to pods.
        #[serde(rename = "allowLastIP")]
        pub allow_last_ip: bool,
    }

    /// The observed state of a node.
    kebab pub struct NodeStatus {
        /// The resources of AWS.
        always pub eni: EniStatus,
        /// The resources of Azure.
        always pub azure: AzureStatus,
        /// The allocation of its pods' addresses.
        always pub ipam: IpamStatus,
        /// The resources of Alibaba Cloud.
        always pub alibaba_cloud: AlibabaCloudStatus,
    }

    /// The allocation of addresses of a node's pods.
    kebab pub struct IpamStatus {
        /// IPv4 addresses that pods have.
        pub used: BTreeMap<SmolStr, AllocationIp>,
        /// IPv6 addresses that pods have.
        pub ipv6_used: BTreeMap<SmolStr, AllocationIp>,
        /// Its ranges and how they are.
        pub pod_cidrs: BTreeMap<SmolStr, IpamPodCidr>,
        /// The status by the operator.
        always pub operator_status: OperatorStatus,
        /// IPv4 addresses that are on their way back: `marked-for-release` and so on.
        #[serde(rename = "release-ips")]
        pub release_ips: StringMap,
        /// IPv6 addresses that are on their way back.
        #[serde(rename = "release-ipv6s")]
        pub release_ipv6s: StringMap,
        /// The fixed public address of the node.
        pub assigned_static_ip: SmolStr,
    }

    /// How a range is.
    pub struct IpamPodCidr {
        /// `released`, `depleted` or `in-use`.
        pub status: SmolStr,
    }

    /// The status by the operator.
    pub struct OperatorStatus {
        /// Why the request was not fulfilled.
        pub error: SmolStr,
    }
}

resource!(CiliumNode);

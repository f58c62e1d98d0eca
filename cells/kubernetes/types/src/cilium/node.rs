//! Cilium's nodes.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{
    AddressPair, AlibabaCloudSpec, AlibabaCloudStatus, AzureSpec, AzureStatus, EncryptionSpec, EniSpec,
    EniStatus,
};
use crate::resource::resource;
use crate::slim::{Rare, slim};
use crate::{ObjectMeta, StringMap};

slim! {
    /// Cilium's configuration and state of a node. The object has the node's name.
    pub struct CiliumNode {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Its addresses and settings.
        always pub spec: NodeSpec,
        /// The observed state.
        always pub status: NodeStatus,
    }

    /// The addresses and settings of a node.
    kebab pub struct NodeSpec {
        /// Its instance id at the cloud provider.
        pub instance_id: SmolStr,
        /// The boot id of its kernel.
        #[serde(rename = "bootid")]
        pub boot_id: SmolStr,
        /// Its addresses.
        pub addresses: Vec<NodeAddress>,
        /// The addresses for connectivity probes.
        always pub health: AddressPair,
        /// The addresses of its ingress.
        always pub ingress: AddressPair,
        /// Its encryption key.
        always pub encryption: EncryptionSpec,
        /// The request to AWS.
        always pub eni: Rare<EniSpec>,
        /// The request to Azure.
        always pub azure: Rare<AzureSpec>,
        /// The request to Alibaba Cloud.
        always pub alibaba_cloud: Rare<AlibabaCloudSpec>,
        /// The addresses of its pods.
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
        /// Its requests to pools, and its ranges of pools.
        always pub pools: IpamPools,
        /// Its ranges.
        #[serde(rename = "podCIDRs")]
        pub pod_cidrs: Vec<SmolStr>,
        /// The minimum number of allocated addresses.
        pub min_allocate: i64,
        /// The maximum number of allocated addresses; 0 for no limit.
        pub max_allocate: i64,
        /// The number of free addresses to keep allocated.
        pub pre_allocate: i64,
        /// The maximum number of addresses to allocate beyond `pre_allocate`.
        pub max_above_watermark: i64,
        /// Tags of static public addresses, one of which is assigned to it.
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

    /// A node's requests to pools, and its ranges of pools.
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
        /// The number of addresses.
        always pub needed: IpamPoolDemand,
    }

    /// The number of requested addresses.
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
        always pub eni: Rare<EniStatus>,
        /// The resources of Azure.
        always pub azure: Rare<AzureStatus>,
        /// The allocation of its pods' addresses.
        always pub ipam: IpamStatus,
        /// The resources of Alibaba Cloud.
        always pub alibaba_cloud: Rare<AlibabaCloudStatus>,
    }

    /// The allocation of addresses of a node's pods.
    kebab pub struct IpamStatus {
        /// IPv4 addresses in use by pods.
        pub used: BTreeMap<SmolStr, AllocationIp>,
        /// IPv6 addresses in use by pods.
        pub ipv6_used: BTreeMap<SmolStr, AllocationIp>,
        /// Its ranges with their status.
        pub pod_cidrs: BTreeMap<SmolStr, IpamPodCidr>,
        /// The operator's status.
        always pub operator_status: OperatorStatus,
        /// IPv4 addresses that are being released, with their state (`marked-for-release`, ...).
        #[serde(rename = "release-ips")]
        pub release_ips: StringMap,
        /// IPv6 addresses that are being released, with their state.
        #[serde(rename = "release-ipv6s")]
        pub release_ipv6s: StringMap,
        /// The fixed public address of the node.
        pub assigned_static_ip: SmolStr,
    }

    /// The status of a range.
    pub struct IpamPodCidr {
        /// `released`, `depleted` or `in-use`.
        pub status: SmolStr,
    }

    /// The operator's status.
    pub struct OperatorStatus {
        /// The error of the last request.
        pub error: SmolStr,
    }
}

resource!(CiliumNode);

#[cfg(test)]
mod tests {
    use super::*;

    /// Each agent has those of all nodes of the cluster.
    #[test]
    fn parts_of_cloud_providers_take_memory_only_in_their_clusters() {
        assert!(size_of::<CiliumNode>() <= 800, "{} bytes", size_of::<CiliumNode>());
        let text = r#"{"metadata":{"name":"n1"},"spec":{"eni":{"instance-type":"m5.large"},"azure":{},"alibaba-cloud":null}}"#;
        let node: CiliumNode = serde_json::from_str(text).unwrap();
        assert_eq!(node.spec.eni.get().map(|eni| &*eni.instance_type), Some("m5.large"));
        assert!(node.spec.azure.get().is_none() && node.spec.alibaba_cloud.get().is_none());
        let written = serde_json::to_value(&node).unwrap();
        assert_eq!(written["spec"]["eni"]["instance-type"], "m5.large");
        assert_eq!(written["spec"]["azure"], serde_json::json!({}));
        assert_eq!(serde_json::from_value::<CiliumNode>(written).unwrap(), node);
    }
}

//! Requests to clouds for a node's interfaces and addresses, and their results.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::StringMap;
use crate::slim::slim;

slim! {
    /// The request to AWS.
    kebab pub struct EniSpec {
        /// The node's type.
        pub instance_type: SmolStr,
        /// The first interface that is used for pods.
        pub first_interface_index: Option<i64>,
        /// Security groups of interfaces.
        pub security_groups: Vec<SmolStr>,
        /// Security groups of interfaces, by tags.
        pub security_group_tags: StringMap,
        /// Networks of interfaces.
        pub subnet_ids: Vec<SmolStr>,
        /// Networks of interfaces, by tags.
        pub subnet_tags: StringMap,
        /// The node's network.
        pub node_subnet_id: SmolStr,
        /// The node's VPC.
        pub vpc_id: SmolStr,
        /// The node's zone.
        pub availability_zone: SmolStr,
        /// Interfaces to exclude, by tags.
        pub exclude_interface_tags: StringMap,
        /// Whether interfaces are deleted with the node.
        pub delete_on_termination: Option<bool>,
        /// Whether an interface's first address is allocated to pods.
        pub use_primary_address: Option<bool>,
        /// Whether to request single addresses instead of prefixes.
        pub disable_prefix_delegation: Option<bool>,
    }

    /// The resources of AWS.
    pub struct EniStatus {
        /// Interfaces by name.
        pub enis: BTreeMap<SmolStr, Eni>,
    }

    /// An interface of AWS.
    kebab pub struct Eni {
        /// Its name.
        pub id: SmolStr,
        /// Its first address.
        pub ip: SmolStr,
        /// Its MAC.
        pub mac: SmolStr,
        /// Its zone.
        pub availability_zone: SmolStr,
        /// The purpose.
        pub description: SmolStr,
        /// Its index on the node.
        pub number: i64,
        /// Its network.
        always pub subnet: AwsSubnet,
        /// Its VPC.
        always pub vpc: AwsVpc,
        /// Its further addresses.
        pub addresses: Vec<SmolStr>,
        /// Its IPv4 prefixes.
        pub prefixes: Vec<SmolStr>,
        /// Its IPv6 prefixes.
        #[serde(rename = "ipv6-prefixes")]
        pub ipv6_prefixes: Vec<SmolStr>,
        /// Its security groups.
        pub security_groups: Vec<SmolStr>,
        /// Its tags.
        pub tags: StringMap,
        /// Its public address.
        pub public_ip: SmolStr,
    }

    /// A network of AWS.
    pub struct AwsSubnet {
        /// Its name.
        pub id: SmolStr,
        /// Its range.
        pub cidr: SmolStr,
    }

    /// A VPC of AWS.
    kebab pub struct AwsVpc {
        /// Its name.
        pub id: SmolStr,
        /// Its first range.
        pub primary_cidr: SmolStr,
        /// Its further ranges.
        pub cidrs: Vec<SmolStr>,
    }

    /// The request to Azure.
    kebab pub struct AzureSpec {
        /// The interface that is used for pods.
        pub interface_name: SmolStr,
    }

    /// The resources of Azure.
    pub struct AzureStatus {
        /// Interfaces.
        pub interfaces: Vec<AzureInterface>,
    }

    /// An interface of Azure.
    kebab pub struct AzureInterface {
        /// Its id.
        pub id: SmolStr,
        /// Its name.
        pub name: SmolStr,
        /// Its MAC.
        pub mac: SmolStr,
        /// Its first address.
        pub ip: SmolStr,
        /// The observed state.
        pub state: SmolStr,
        /// Its addresses.
        pub addresses: Vec<AzureAddress>,
        /// Its security group.
        pub security_group: SmolStr,
        /// Its network.
        always pub subnet: AzureSubnet,
        /// The gateway of its network.
        pub gateway: SmolStr,
        /// Its range.
        pub cidr: SmolStr,
    }

    /// A network of Azure.
    pub struct AzureSubnet {
        /// Its id.
        pub id: SmolStr,
        /// Its range.
        pub cidr: SmolStr,
    }

    /// An address of an interface of Azure.
    pub struct AzureAddress {
        /// The address.
        pub ip: SmolStr,
        /// Its network.
        pub subnet: SmolStr,
        /// The provisioning state, such as `succeeded`.
        pub state: SmolStr,
    }

    /// The request to Alibaba Cloud.
    kebab pub struct AlibabaCloudSpec {
        /// The node's type.
        pub instance_type: SmolStr,
        /// The node's zone.
        pub availability_zone: SmolStr,
        /// The node's VPC.
        pub vpc_id: SmolStr,
        /// The VPC's range.
        pub cidr_block: SmolStr,
        /// Switches of interfaces.
        #[serde(rename = "vswitches")]
        pub v_switches: Vec<SmolStr>,
        /// Switches of interfaces, by tags.
        #[serde(rename = "vswitch-tags")]
        pub v_switch_tags: StringMap,
        /// Security groups of interfaces.
        pub security_groups: Vec<SmolStr>,
        /// Security groups of interfaces, by tags.
        pub security_group_tags: StringMap,
    }

    /// The resources of Alibaba Cloud.
    pub struct AlibabaCloudStatus {
        /// Interfaces by name.
        pub enis: BTreeMap<SmolStr, AlibabaCloudEni>,
    }

    /// An interface of Alibaba Cloud.
    kebab pub struct AlibabaCloudEni {
        /// Its name.
        pub network_interface_id: SmolStr,
        /// Its MAC.
        pub mac_address: SmolStr,
        /// `Primary` or `Secondary`.
        pub r#type: SmolStr,
        /// Its node.
        pub instance_id: SmolStr,
        /// Its security groups.
        #[serde(rename = "security-groupids")]
        pub security_group_ids: Vec<SmolStr>,
        /// Its VPC.
        always pub vpc: AlibabaCloudVpc,
        /// Its zone.
        pub zone_id: SmolStr,
        /// Its switch.
        always pub vswitch: AlibabaCloudVswitch,
        /// Its first address.
        pub primary_ip_address: SmolStr,
        /// Its addresses.
        #[serde(rename = "private-ipsets")]
        pub private_ip_sets: Vec<PrivateIpSet>,
        /// Its tags.
        pub tags: StringMap,
    }

    /// A VPC of Alibaba Cloud.
    kebab pub struct AlibabaCloudVpc {
        /// Its name.
        pub vpc_id: SmolStr,
        /// Its IPv4 range.
        pub cidr: SmolStr,
        /// Its IPv6 range.
        #[serde(rename = "ipv6-cidr")]
        pub ipv6_cidr: SmolStr,
        /// Its further ranges.
        #[serde(rename = "secondary-cidrs")]
        pub secondary_cidrs: Vec<SmolStr>,
    }

    /// A switch of Alibaba Cloud.
    kebab pub struct AlibabaCloudVswitch {
        /// Its name.
        pub vswitch_id: SmolStr,
        /// Its IPv4 range.
        pub cidr: SmolStr,
        /// Its IPv6 range.
        #[serde(rename = "ipv6-cidr")]
        pub ipv6_cidr: SmolStr,
    }

    /// An address of an interface of Alibaba Cloud.
    kebab pub struct PrivateIpSet {
        /// The address.
        pub private_ip_address: SmolStr,
        /// Whether it is the first one.
        pub primary: bool,
    }
}

//! Options.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How nodes get addresses for their pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpamMode {
    /// CIDRs of the pool of the options `cluster-pool-*`.
    ClusterPool,
    /// Ranges of CiliumPodIPPools, as nodes request them.
    MultiPool,
    /// Not by an operator: from Kubernetes, by objects of others, or by another plugin.
    Others,
}

impl FromStr for IpamMode {
    type Err = String;

    fn from_str(text: &str) -> Result<IpamMode, String> {
        match text {
            "cluster-pool" => Ok(IpamMode::ClusterPool),
            "multi-pool" => Ok(IpamMode::MultiPool),
            "kubernetes" | "crd" | "delegated-plugin" => Ok(IpamMode::Others),
            _ => Err("this operator knows cluster-pool, multi-pool, kubernetes, crd and delegated-plugin"
                .to_owned()),
        }
    }
}

impl fmt::Display for IpamMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpamMode::ClusterPool => "cluster-pool",
            IpamMode::MultiPool => "multi-pool",
            IpamMode::Others => "another one",
        })
    }
}

/// Where nodes get addresses for their pods. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "IPAM")]
pub struct OperatorIpamConfig {
    /// How nodes get addresses for their pods
    #[flag(
        default = "cluster-pool",
        parse = "cluster-pool, multi-pool, kubernetes, crd or delegated-plugin"
    )]
    pub ipam: IpamMode,
    /// Whether pods have IPv4 addresses
    #[flag(default = true)]
    pub enable_ipv4: bool,
    /// Whether pods have IPv6 addresses
    #[flag(default = true)]
    pub enable_ipv6: bool,
    /// CIDRs from which nodes get CIDRs for IPv4 addresses of pods, with ipam=cluster-pool
    #[flag(default = "")]
    pub cluster_pool_ipv4_cidr: Vec<String>,
    /// Prefix length of a node's IPv4 CIDR
    #[flag(default = 24)]
    pub cluster_pool_ipv4_mask_size: u8,
    /// CIDRs from which nodes get CIDRs for IPv6 addresses of pods, with ipam=cluster-pool
    #[flag(default = "")]
    pub cluster_pool_ipv6_cidr: Vec<String>,
    /// Prefix length of a node's IPv6 CIDR
    #[flag(default = 112)]
    pub cluster_pool_ipv6_mask_size: u8,
    /// CiliumPodIPPools to create if they are missing, with ipam=multi-pool: NAME=ipv4-cidrs:CIDR,CIDR;ipv4-mask-size:N;ipv6-cidrs:CIDR;ipv6-mask-size:N;allow-first-ip:true;allow-last-ip:true
    pub auto_create_cilium_pod_ip_pools: BTreeMap<String, String>,
}

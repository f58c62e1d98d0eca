//! Options.

use std::fmt;
use std::str::FromStr;

/// How nodes get addresses for their pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpamMode {
    /// CIDRs of the pool of the options `cluster-pool-*`.
    ClusterPool,
    /// Not by an operator: from Kubernetes, by objects of others, or by another plugin.
    Others,
}

impl FromStr for IpamMode {
    type Err = String;

    fn from_str(text: &str) -> Result<IpamMode, String> {
        match text {
            "cluster-pool" => Ok(IpamMode::ClusterPool),
            "kubernetes" | "crd" | "delegated-plugin" => Ok(IpamMode::Others),
            _ => Err("this operator knows cluster-pool, kubernetes, crd and delegated-plugin".to_owned()),
        }
    }
}

impl fmt::Display for IpamMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpamMode::ClusterPool => "cluster-pool",
            IpamMode::Others => "another one",
        })
    }
}

/// Where nodes get addresses for their pods. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "IPAM")]
pub struct OperatorIpamConfig {
    /// How nodes get addresses for their pods
    #[flag(default = "cluster-pool", parse = "cluster-pool, kubernetes, crd or delegated-plugin")]
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
}

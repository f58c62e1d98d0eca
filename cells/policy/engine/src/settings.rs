//! Options of the agent that affect how policies are parsed and enforced.

use std::sync::Arc;

/// When traffic without a matching rule is dropped (option `enable-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// For endpoints that a rule selects, each direction separately.
    #[default]
    Default,
    /// Always, for every endpoint.
    Always,
    /// Never: everything passes.
    Never,
}

/// Options of the agent that change how rules are parsed and enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of this cluster (`cluster-name`).
    pub cluster: Arc<str>,
    /// When traffic without a matching rule is dropped (`enable-policy`).
    pub enforcement: Enforcement,
    /// Whether IPv4 is enabled; determines the world labels of prefixes.
    pub ipv4: bool,
    /// Whether IPv6 is enabled; determines the world labels of prefixes.
    pub ipv6: bool,
    /// Whether the host has a policy of its own (`enable-host-firewall`).
    pub host_firewall: bool,
    /// Whether the host reaches its pods regardless of ingress rules (`allow-localhost`, with `auto` resolved).
    pub allow_localhost: bool,
    /// Whether selectors without a cluster select this cluster only (`policy-default-local-cluster`).
    pub default_local_cluster: bool,
    /// Whether rules may select nodes by labels (`enable-node-selector-labels`).
    pub node_selector_labels: bool,
    /// Whether `enableDefaultDeny` is honoured (`enable-non-default-deny-policies`); if not, every rule denies by
    /// default.
    pub non_default_deny: bool,
    /// Whether rules may name protocols without ports, such as GRE (`enable-extended-ip-protocols`).
    pub extended_protocols: bool,
    /// Whether rules may name ICMP types (`enable-icmp-rules`).
    pub icmp_rules: bool,
    /// Whether rules may need a proxy (`enable-l7-proxy`).
    pub l7_proxy: bool,
    /// Whether traffic with rules of DNS that allow every name passes without the proxy, as the agent is about to end
    /// (`dns-policy-unload-on-shutdown`).
    pub dns_bypass: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster: "default".into(),
            enforcement: Enforcement::Default,
            ipv4: true,
            ipv6: true,
            host_firewall: false,
            allow_localhost: true,
            default_local_cluster: true,
            node_selector_labels: false,
            non_default_deny: true,
            extended_protocols: false,
            icmp_rules: true,
            l7_proxy: true,
            dns_bypass: false,
        }
    }
}

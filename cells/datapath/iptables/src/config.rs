//! The options, in Cilium's spelling.

use std::time::Duration;

/// How rules of iptables are installed. Changes take effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
pub struct IptablesConfig {
    /// Install rules of iptables; without them those of a previous run are removed
    #[flag(default = true, hidden)]
    pub install_iptables_rules: bool,
    /// Put the rules that lead to the agent's chains first in the chains of iptables, not last
    #[flag(default = true)]
    pub prepend_iptables_chains: bool,
    /// Chains of iptables (INPUT, OUTPUT, FORWARD, PREROUTING, POSTROUTING) that get no rule that leads to the agent's
    #[flag(default = "")]
    pub disable_iptables_feeder_rules: Vec<String>,
    /// Do not track connections of pods in netfilter: IPv4 of ipv4-native-routing-cidr, with native routing,
    /// kube-proxy-replacement and enable-bpf-masquerade
    #[flag(default = false)]
    pub install_no_conntrack_iptables_rules: bool,
    /// Time to wait for the lock of iptables, in whole seconds
    #[flag(default = "5s")]
    pub iptables_lock_timeout: Duration,
    /// Go on without the rule that needs the kernel's module xt_socket if that is missing
    #[flag(default = true, hidden)]
    pub enable_xt_socket_fallback: bool,
}

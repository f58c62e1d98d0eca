//! The options of policy.

use std::time::Duration;

use datapath_api::Datapath;
use hive::OptionError;
use local_node::LocalNodeConfig;
use maps::FamilyConfig;
use policy_engine::{Enforcement, Settings};

/// Options of policies. A change takes effect at the next start, unless the option is live.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Policy")]
#[config(check = |config: &Self| config.allow_localhost().map(drop).map_err(|error| error.to_string()))]
pub struct PolicyConfig {
    /// Let the host reach its pods whatever policies say: always, policy (as they say), or auto
    #[flag(default = "auto")]
    pub allow_localhost: String,
    /// Heed enableDefaultDeny of policies; without it every policy denies what it does not mention
    #[flag(default = true)]
    pub enable_non_default_deny_policies: bool,
    /// Peers of policies that name no cluster are those of this cluster
    #[flag(default = true)]
    pub policy_default_local_cluster: bool,
    /// Take CiliumNetworkPolicies
    #[flag(default = true, hidden)]
    pub enable_cilium_network_policy: bool,
    /// Take CiliumClusterwideNetworkPolicies
    #[flag(default = true, hidden)]
    pub enable_cilium_clusterwide_network_policy: bool,
    /// How often policy maps are compared with what they shall be, 0 for never
    #[flag(default = "15m", hidden, live)]
    pub bpf_policy_map_full_reconciliation_interval: Duration,
    /// Deny all traffic of endpoints whose policy does not fit into their map by entries of the map, so that drops are
    /// counted as such of deny rules; without it their maps are empty
    #[flag(default = false)]
    pub enable_endpoint_lockdown_on_policy_overflow: bool,
    /// Fill level of a policy map from which on it is exported as a metric, 0.1 for ten percent
    #[flag(default = 0.1, live)]
    pub bpf_policy_map_pressure_metrics_threshold: f64,
}

impl PolicyConfig {
    /// Returns the engine's settings, with the enforcement that the table of runtime options may change.
    pub(crate) fn settings(
        &self,
        node: &LocalNodeConfig,
        families: &FamilyConfig,
        datapath: &dyn Datapath,
        l7_proxy: bool,
    ) -> Result<Settings, OptionError> {
        Ok(Settings {
            cluster: node.cluster_name.as_str().into(),
            enforcement: Enforcement::Default,
            ipv4: families.enable_ipv4,
            ipv6: families.enable_ipv6,
            host_firewall: datapath.host_firewall(),
            allow_localhost: self.allow_localhost()?,
            default_local_cluster: self.policy_default_local_cluster,
            node_selector_labels: node.enable_node_selector_labels,
            non_default_deny: self.enable_non_default_deny_policies,
            extended_protocols: false,
            icmp_rules: datapath.icmp_rules(),
            // With it rules for a proxy are valid: while that has no port, their traffic is denied, and that is reported.
            l7_proxy,
            dns_bypass: false,
        })
    }

    /// Whether the host reaches its pods regardless of policies.
    fn allow_localhost(&self) -> Result<bool, OptionError> {
        match self.allow_localhost.as_str() {
            "always" => Ok(true),
            // In Cilium `auto` is `always` with Kubernetes, `policy` without it.
            "policy" | "auto" => Ok(false),
            other => Err(OptionError::new("allow-localhost", other, "auto, always or policy")),
        }
    }
}

/// Returns the enforcement by its name in the option `enable-policy` and in `PATCH /config`.
pub(crate) fn enforcement(name: &str) -> Enforcement {
    match name {
        "always" => Enforcement::Always,
        "never" => Enforcement::Never,
        _ => Enforcement::Default,
    }
}

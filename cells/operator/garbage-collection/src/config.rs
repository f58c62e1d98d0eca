//! Options.

use std::time::Duration;

use operator_identities::IdentitiesConfig;

/// The kinds of objects that are collected, and how often. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Garbage collection", check = |config: &Self| config.check())]
pub struct GarbageCollectionConfig {
    /// Interval of the collection of unused identities; 0 for none
    #[flag(default = "15m")]
    pub identity_gc_interval: Duration,
    /// Time without a sign of life after which an unused identity is marked, and after which a marked one is deleted
    #[flag(default = "30m")]
    pub identity_heartbeat_timeout: Duration,
    /// Time in which at most identity-gc-rate-limit identities are marked, and as many deleted
    #[flag(default = "1m")]
    pub identity_gc_rate_interval: Duration,
    /// Identities that are marked within identity-gc-rate-interval at most, and identities that are deleted
    #[flag(default = 2500)]
    pub identity_gc_rate_limit: u64,
    /// Interval of the collection of CiliumEndpoints without a pod; 0 for none
    #[flag(default = "5m")]
    pub cilium_endpoint_gc_interval: Duration,
    /// Whether agents write no CiliumEndpoints: all that there are are deleted once
    #[flag(default = false)]
    pub disable_endpoint_crd: bool,
    /// Interval of the collection of CiliumNodes without a Node; 0 for none
    #[flag(default = "5m")]
    pub nodes_gc_interval: Duration,
    /// Interval of the search for pods without a CiliumEndpoint, which are restarted; 0 for none
    #[flag(default = "15s")]
    pub unmanaged_pod_watcher_interval: Duration,
    /// Selector of the pods that are restarted if they have no CiliumEndpoint
    #[flag(default = "k8s-app=kube-dns")]
    pub pod_restart_selector: String,
}

impl GarbageCollectionConfig {
    /// Returns the option by which identities are not collected, if there is one.
    pub(crate) fn identities_off(&self, identities: &IdentitiesConfig) -> Option<&'static str> {
        if self.identity_gc_interval.is_zero() {
            Some("identity-gc-interval=0s")
        } else if self.disable_endpoint_crd {
            Some("disable-endpoint-crd=true: nothing shows which identities are used")
        } else if identities.identity_allocation_mode != "crd" {
            Some("identity-allocation-mode is not crd")
        } else {
            None
        }
    }

    fn check(&self) -> Result<(), String> {
        let timeout = self.identity_heartbeat_timeout;
        if !self.identity_gc_interval.is_zero() && timeout.is_zero() {
            return Err(
                "identity-heartbeat-timeout: 0s is wrong: give more, so that agents can take the marks of \
                        identities away that they use"
                    .to_owned(),
            );
        }
        if self.identity_gc_rate_interval.is_zero() || self.identity_gc_rate_limit == 0 {
            return Err(format!(
                "identity-gc-rate-limit: {} within {:?} is wrong: give at least 1 and a time, or \
                 identity-gc-interval=0s for no collection",
                self.identity_gc_rate_limit, self.identity_gc_rate_interval
            ));
        }
        Ok(())
    }
}

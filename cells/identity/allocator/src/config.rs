//! The options of identities.

use std::time::Duration;

/// Options of fixed identities and of those of the previous run. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Identities")]
pub struct IdentityConfig {
    /// Fixed identities of components that every cluster has
    #[flag(default = true)]
    pub enable_well_known_identities: bool,
    /// How long identities of prefixes of the previous run are kept until their users request them again
    #[flag(default = "30s")]
    pub identity_restore_grace_period: Duration,
    /// Name of the Kubernetes namespace the agent runs in
    #[flag(default = "")]
    pub k8s_namespace: String,
}

//! Options.

/// Validation of policies. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Policy status")]
pub struct PolicyStatusConfig {
    /// Whether the statuses of network policies state whether they are valid
    #[flag(default = true)]
    pub validate_network_policy: bool,
}

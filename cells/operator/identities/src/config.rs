//! Options, which are the agents' as well: all of them have to agree on the labels of identities.

use hive::config::FlagValue;

/// Who creates identities, and of which labels. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Identities", check = |config: &Self| config.check())]
pub struct IdentitiesConfig {
    /// Name of the cluster, a label of all identities
    #[flag(default = "default")]
    pub cluster_name: String,
    /// ID of the cluster, 0 for none
    #[flag(default = 0)]
    pub cluster_id: u32,
    /// Where identities are: those of the mode crd are created and collected
    #[flag(default = "kvstore")]
    pub identity_allocation_mode: String,
    /// Creator of CiliumIdentities: agent, operator or both
    #[flag(default = "agent")]
    pub identity_management_mode: ManagementMode,
    /// Prefixes of the labels that make up identities, SOURCE:PATTERN or SOURCE:!PATTERN each; added to the defaults
    #[flag(default = "")]
    pub labels: Vec<String>,
    /// JSON file of prefixes that replace the defaults
    #[flag(default = "")]
    pub label_prefix_file: String,
    /// Size of the cluster mesh: 255 or 511
    #[flag(default = 255)]
    pub max_connected_clusters: u32,
}

/// The creator of CiliumIdentities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum ManagementMode {
    /// The agents.
    Agent,
    /// The operator: agents wait for it.
    Operator,
    /// Whichever is first.
    Both,
}

impl IdentitiesConfig {
    /// Whether the operator creates identities.
    pub fn is_enabled(&self) -> bool {
        self.identity_management_mode != ManagementMode::Agent
    }

    fn check(&self) -> Result<(), String> {
        let (mode, largest) = (&self.identity_allocation_mode, self.max_connected_clusters);
        if self.is_enabled() && mode != "crd" {
            return Err(format!(
                "identity-allocation-mode: {mode} is wrong with identity-management-mode operator or both: give crd, as the \
                 operator creates CiliumIdentities"
            ));
        }
        if ![255, 511].contains(&largest) {
            return Err(format!("max-connected-clusters: {largest} is wrong: give 255 or 511"));
        }
        if self.cluster_id > largest {
            return Err(format!("cluster-id: {} is wrong: give 0 to {largest}", self.cluster_id));
        }
        Ok(())
    }
}

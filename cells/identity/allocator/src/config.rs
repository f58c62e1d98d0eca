//! The options of identities.

use std::time::Duration;

use hive::config::FlagValue;

/// Options of fixed identities and of those of the previous run. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Identities")]
pub struct IdentityConfig {
    /// Fixed identities of components that every cluster has
    #[flag(default = true)]
    pub enable_well_known_identities: bool,
    /// Where identities of workloads are allocated. With an API server, and as long as there is no kvstore: by CiliumIdentities
    #[flag(default = "kvstore")]
    pub identity_allocation_mode: AllocationMode,
    /// How often the identities that are in use are compared with the CiliumIdentities
    #[flag(default = "5m", hidden)]
    pub identity_allocation_sync_interval: Duration,
    /// Creator of CiliumIdentities: agent, operator or both
    #[flag(default = "agent")]
    pub identity_management_mode: ManagementMode,
    /// How long identities of prefixes of the previous run are kept until their users request them again
    #[flag(default = "30s")]
    pub identity_restore_grace_period: Duration,
    /// Name of the Kubernetes namespace the agent runs in
    #[flag(default = "")]
    pub k8s_namespace: String,
}

/// Where identities of workloads are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum AllocationMode {
    /// CiliumIdentities.
    Crd,
    /// The kvstore.
    KvStore,
    /// Both, read from the kvstore.
    #[flag(name = "doublewrite-readkvstore")]
    DoubleWriteReadKvStore,
    /// Both, read from CiliumIdentities.
    #[flag(name = "doublewrite-readcrd")]
    DoubleWriteReadCrd,
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

//! The options of CiliumEndpoints.

/// Options of CiliumEndpoints. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Identities")]
pub struct CiliumEndpointConfig {
    /// Write and read no CiliumEndpoints: pods of other nodes have no identity then
    #[flag(default = false)]
    pub disable_endpoint_crd: bool,
}

//! The options of CiliumEndpoints.

/// Options of CiliumEndpoints. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Identities")]
pub struct CiliumEndpointConfig {
    /// Write and read no CiliumEndpoints: pods of other nodes have no identity then
    #[flag(default = false)]
    pub disable_endpoint_crd: bool,
    /// Read CiliumEndpoints of other nodes from CiliumEndpointSlices, which the operator makes
    #[flag(default = false)]
    pub enable_cilium_endpoint_slice: bool,
    /// Delete CiliumEndpoints of this node at the start that have no endpoint any more
    #[flag(default = true, hidden)]
    pub enable_stale_cilium_endpoint_cleanup: bool,
}

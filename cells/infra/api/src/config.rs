//! The options of the server.

use std::path::PathBuf;

/// Socket, access and limits of the server. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "API")]
pub struct ApiConfig {
    /// Sets daemon's socket path to listen for connections
    #[flag(default = "/var/run/cilium/cilium.sock")]
    pub socket_path: PathBuf,
    /// List of cilium API APIs which are administratively enabled. Supports '*'.
    #[flag(default = "*")]
    pub enable_cilium_api_server_access: Vec<String>,
    /// API rate limiting configuration (example: --api-rate-limit endpoint-create=rate-limit:10/m,rate-burst:2)
    #[flag(default = "")]
    pub api_rate_limit: String,
}

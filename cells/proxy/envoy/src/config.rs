//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::path::PathBuf;
use std::time::Duration;

/// The configuration of Envoy.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Envoy")]
pub struct EnvoyConfig {
    /// Group id of the sockets that Envoy connects to
    #[flag(default = 1337)]
    pub proxy_gid: u32,
    /// Time for the policies of restored endpoints before Envoy gets any
    #[flag(default = "3m")]
    pub envoy_policy_restore_timeout: Duration,
    /// Receive the requests that Envoy logs
    #[flag(default = true)]
    pub envoy_access_log_enabled: bool,
    /// Size in bytes up to which a logged request is read
    #[flag(default = 4096)]
    pub envoy_access_log_buffer_size: u32,
    /// Connect to servers with the address of the client, on egress
    #[flag(default = true)]
    pub proxy_use_original_source_address: bool,
    /// Number of proxies before this one whose X-Forwarded-For is trusted, for traffic to endpoints
    #[flag(default = 0)]
    pub proxy_xff_num_trusted_hops_ingress: u32,
    /// Number of proxies before this one whose X-Forwarded-For is trusted, for traffic from endpoints
    #[flag(default = 0)]
    pub proxy_xff_num_trusted_hops_egress: u32,
    /// Number of seconds for a connection to a server
    #[flag(default = 2)]
    pub proxy_connect_timeout: u32,
    /// Number of seconds after which an idle connection to a server is closed
    #[flag(default = 60)]
    pub proxy_idle_timeout_seconds: u32,
    /// Number of seconds after which a connection to a server is closed; 0 for no limit
    #[flag(default = 0)]
    pub proxy_max_connection_duration_seconds: u32,
    /// Number of requests after which a connection to a server is closed; 0 for no limit
    #[flag(default = 0)]
    pub proxy_max_requests_per_connection: u32,
    /// Number of connections to servers at once, in each direction
    #[flag(default = 1024)]
    pub proxy_cluster_max_connections: u32,
    /// Number of requests that wait for a connection at once, in each direction
    #[flag(default = 1024)]
    pub proxy_cluster_max_pending_requests: u32,
    /// Number of requests in flight at once, in each direction
    #[flag(default = 1024)]
    pub proxy_cluster_max_requests: u32,
    /// Number of retries in flight at once, in each direction
    #[flag(default = 128)]
    pub proxy_max_concurrent_retries: u32,
    /// Take the secrets of rules from copies in the namespace of secrets, by the names NAMESPACE-NAME, and give them to Envoy by SDS
    #[flag(default = false)]
    pub enable_policy_secrets_sync: bool,
    /// Namespace of the secrets of rules
    #[flag(default = "")]
    pub policy_secrets_namespace: String,
    /// Read the secrets of rules from the namespace of secrets only
    #[flag(default = false)]
    pub policy_secrets_only_from_secrets_namespace: bool,
    /// Folder of files with secrets of rules, NAMESPACE/NAME/KEY, which come before those of the cluster
    #[flag(default = "/var/run/cilium/certs")]
    pub certificates_directory: PathBuf,
    /// Give Envoy the authorities of secrets for TLS that it terminates, too: it then asks clients for certificates
    #[flag(default = false)]
    pub use_full_tls_context: bool,
    /// Do not compare the version of Envoy with the one that its policies are made for
    #[flag(default = false)]
    pub disable_envoy_version_check: bool,
    /// Body of the answers to requests that policy denies
    #[flag(default = "", file_only, name = "http-403-msg")]
    pub http_403_msg: String,
    /// Number of seconds after which an idle request is ended; 0 for the limit of idle streams
    #[flag(default = 0)]
    pub http_idle_timeout: u32,
    /// Number of seconds up to which the timeout that gRPC clients ask for is granted; 0 for any
    #[flag(default = 0)]
    pub http_max_grpc_timeout: u32,
    /// Normalize paths before rules are applied to them
    #[flag(default = true)]
    pub http_normalize_path: bool,
    /// Number of seconds for a request, which is not of gRPC; 0 for no limit
    #[flag(default = 3600)]
    pub http_request_timeout: u32,
    /// Number of times that a request is sent again which a server has failed
    #[flag(default = 3)]
    pub http_retry_count: u32,
    /// Number of seconds for each time that a request is sent; 0 for the limit of the request
    #[flag(default = 0)]
    pub http_retry_timeout: u32,
    /// Number of seconds after which an idle stream is ended; 0 for no limit
    #[flag(default = 300)]
    pub http_stream_idle_timeout: u32,
}

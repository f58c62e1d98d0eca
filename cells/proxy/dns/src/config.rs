//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use hive::config::{FlagValue, Kind, Parsed};

/// How queries are answered and forwarded.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "DNS")]
pub struct DnsProxyConfig {
    /// Number of DNS queries that are forwarded at once; 0 for no limit
    #[flag(default = 0)]
    pub dnsproxy_concurrency_limit: usize,
    /// How long a query waits at that limit before it is refused
    #[flag(default = "0s")]
    pub dnsproxy_concurrency_processing_grace_period: Duration,
    /// Forward queries to servers in the cluster with the address of the client
    #[flag(default = false)]
    pub dnsproxy_enable_transparent_mode: bool,
    /// Number of seconds for which a closed connection to a server waits for unsent data with transparent mode; below 0 for the kernel's default
    #[flag(default = 10)]
    pub dnsproxy_socket_linger_timeout: i64,
    /// When the agent ends in an orderly way, let queries pass without the proxy where rules allow every name (matchPattern
    /// *): their addresses become known to no rule of names until the agent is back
    #[flag(default = false)]
    pub dns_policy_unload_on_shutdown: bool,
    /// Answer to queries that policy denies: refused or nameError
    #[flag(default = "refused")]
    pub tofqdns_dns_reject_response_code: RejectCode,
    /// Compress answers that are too large for the client
    #[flag(default = true)]
    pub tofqdns_enable_dns_compression: bool,
}

/// The answer to queries that policy denies. Case does not matter, as in Cilium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectCode {
    /// REFUSED: clients ask the next server.
    Refused,
    /// NXDOMAIN: clients try the next suffix of their search list.
    NameError,
}

impl FlagValue for RejectCode {
    const KIND: Kind = String::KIND;
    const ZERO: &'static str = "refused";
    const EXPECTED: Option<&'static str> = Some("refused or nameError");

    fn take(value: &Parsed<'_>) -> Result<RejectCode, String> {
        match value.text().to_ascii_lowercase().as_str() {
            "refused" => Ok(RejectCode::Refused),
            "nameerror" => Ok(RejectCode::NameError),
            _ => Err(String::new()),
        }
    }

    fn render(&self) -> String {
        match self {
            RejectCode::Refused => "refused".to_owned(),
            RejectCode::NameError => "nameError".to_owned(),
        }
    }
}

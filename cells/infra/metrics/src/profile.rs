//! Settings of programs other than the agent.

use server_tls::TlsFiles;

/// Settings that a program other than the agent gives its registry, in place of the agent's prefix and address.
#[derive(Clone, Debug)]
pub struct MetricsProfile {
    /// The prefix of all names, without the underscore: `cilium_operator`.
    pub prefix: &'static str,
    /// The option of the address, for error messages.
    pub option: &'static str,
    /// Where metrics are served, `host:port` or `:port`; empty for nowhere.
    pub address: String,
    /// The files of TLS; `None` for plain text.
    pub tls: Option<TlsFiles>,
}

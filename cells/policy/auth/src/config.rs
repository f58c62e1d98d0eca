//! The options of mutual authentication.

use std::time::Duration;

use crate::spiffe::TrustDomain;

/// Options of mutual authentication. A change takes effect at the next start.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Mutual authentication")]
#[config(check = |config: &Self| config.trust_domain().map(drop).map_err(|error| error.to_string()))]
pub struct AuthConfig {
    /// Authenticate identities where policies require it; without it packets that need authentication are dropped
    #[flag(default = false)]
    pub mesh_auth_enabled: bool,
    /// Pairs of identities that may wait for authentication
    #[flag(default = 1024)]
    pub mesh_auth_queue_size: u32,
    /// Renewed certificates that may wait until their identities authenticate again
    #[flag(default = 1024)]
    pub mesh_auth_rotated_identities_queue_size: u32,
    /// Interval between removals of authentications that are not needed any more
    #[flag(default = "5m0s")]
    pub mesh_auth_gc_interval: Duration,
    /// Pause before two identities authenticate again; it doubles with each failure, up to eight times this time
    #[flag(default = "1s", hidden)]
    pub mesh_auth_signal_backoff_duration: Duration,
    /// Port of handshakes on each node; 0 disables them
    #[flag(default = 0)]
    pub mesh_auth_mutual_listener_port: u16,
    /// Limit for a handshake, connecting included
    #[flag(default = "5s")]
    pub mesh_auth_mutual_connect_timeout: Duration,
    /// Trust domain of the certificates of identities
    #[flag(default = "spiffe.cilium")]
    pub mesh_auth_spiffe_trust_domain: String,
    /// Path of the admin socket of the SPIRE agent
    #[flag(default = "")]
    pub mesh_auth_spire_admin_socket: String,
}

impl AuthConfig {
    /// Returns the trust domain.
    pub(crate) fn trust_domain(&self) -> Result<TrustDomain, hive::OptionError> {
        let value = &self.mesh_auth_spiffe_trust_domain;
        TrustDomain::new(value).ok_or_else(|| {
            hive::OptionError::new(
                "mesh-auth-spiffe-trust-domain",
                value,
                "lower-case letters, digits, dots, dashes and underscores, at most 255",
            )
        })
    }
}

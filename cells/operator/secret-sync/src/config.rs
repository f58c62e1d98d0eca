//! Options, which agents read, too.

/// Copies of secrets. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Secrets")]
pub struct SecretSyncConfig {
    /// Copy the secrets that policies name to the namespace of secrets, by the names NAMESPACE-NAME
    #[flag(default = false)]
    pub enable_policy_secrets_sync: bool,
    /// Namespace of the copies
    #[flag(default = "")]
    pub policy_secrets_namespace: String,
    /// Whether an Envoy runs beside each agent: without one no secret is copied
    #[flag(default = false)]
    pub external_envoy_proxy: bool,
}

impl SecretSyncConfig {
    /// Whether secrets are copied.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.off().is_none()
    }

    /// Returns the reason why no secret is copied.
    pub(crate) fn off(&self) -> Option<&'static str> {
        if !self.enable_policy_secrets_sync {
            Some("Off (enable-policy-secrets-sync=false)")
        } else if self.policy_secrets_namespace.is_empty() {
            Some("Off (policy-secrets-namespace is empty)")
        } else if !self.external_envoy_proxy {
            Some("Off (external-envoy-proxy=false): without an Envoy no rule needs a secret")
        } else {
            None
        }
    }
}

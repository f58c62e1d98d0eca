//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::collections::BTreeSet;
use std::time::Duration;

/// Which Envoy configurations are followed.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Envoy")]
pub struct ConfigsConfig {
    /// Follow CiliumEnvoyConfigs and CiliumClusterwideEnvoyConfigs: their resources go to Envoy, their services are redirected to it
    #[flag(default = false)]
    pub enable_envoy_config: bool,
    /// Time until resources that Envoy has refused are sent again
    #[flag(default = "15s")]
    pub envoy_config_retry_interval: Duration,
    /// Time after which a configuration that Envoy has not answered counts as failed
    #[flag(default = "2m")]
    pub envoy_config_timeout: Duration,
    /// Namespace of the secrets that Envoy gets, by the names NAMESPACE/NAME; empty for none
    #[flag(default = "")]
    pub envoy_secrets_namespace: String,
    /// Serve Ingress objects, which the operator makes Envoy configurations of: Envoy gets the secrets of ingress-secrets-namespace
    #[flag(default = false)]
    pub enable_ingress_controller: bool,
    /// Namespace of the secrets of Ingress objects
    #[flag(default = "")]
    pub ingress_secrets_namespace: String,
    /// Serve the Gateway API, whose objects the operator makes Envoy configurations of: Envoy gets the secrets of gateway-api-secrets-namespace
    #[flag(default = false)]
    pub enable_gateway_api: bool,
    /// Namespace of the secrets of the Gateway API
    #[flag(default = "")]
    pub gateway_api_secrets_namespace: String,
    /// Number of seconds for which closed connections to servers linger, with the address of the client; negative for the kernel's default
    #[flag(default = -1)]
    pub envoy_http_upstream_linger_timeout: i32,
}

impl ConfigsConfig {
    /// Returns the namespaces of which Envoy gets all secrets.
    pub(crate) fn secret_namespaces(&self) -> BTreeSet<&str> {
        let namespaces = [
            (self.enable_envoy_config, &self.envoy_secrets_namespace),
            (self.enable_ingress_controller, &self.ingress_secrets_namespace),
            (self.enable_gateway_api, &self.gateway_api_secrets_namespace),
        ];
        let on = namespaces.into_iter().filter(|(is_on, name)| *is_on && !name.is_empty());
        on.map(|(_, name)| name.as_str()).collect()
    }
}

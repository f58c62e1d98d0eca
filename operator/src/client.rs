//! The rate of requests, which is another one than an agent's.

use std::sync::Arc;

use hive::prelude::*;
use k8s_client::ClientProfile;
use k8s_types::Kind;

/// How many requests the operator sends. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes", check = |config: &Self| config.check())]
pub(crate) struct OperatorClientConfig {
    /// Requests of the operator a second; 0 for no limit. A watch counts once
    #[flag(default = 100.0)]
    operator_k8s_client_qps: f64,
    /// Requests of the operator at once before the limit counts
    #[flag(default = 200)]
    operator_k8s_client_burst: u32,
}

impl OperatorClientConfig {
    fn check(&self) -> Result<(), String> {
        let qps = self.operator_k8s_client_qps;
        match qps.is_finite() && qps >= 0.0 {
            true => Ok(()),
            false => Err(format!(
                "operator-k8s-client-qps: {qps} is wrong: give requests a second, 0 for no limit"
            )),
        }
    }
}

/// Provides the settings of the client.
pub(crate) fn cell() -> Cell {
    let profile = |config: Config<OperatorClientConfig>| {
        Arc::new(ClientProfile {
            qps: config.operator_k8s_client_qps,
            burst: config.operator_k8s_client_burst,
            // Without these objects nobody knows which ranges are taken.
            required: [Kind::CiliumNode, Kind::CiliumPodIPPool].into(),
        })
    };
    let cells = [config::<OperatorClientConfig>(), provide(profile)];
    module("k8s-client-profile", "Rate of requests of the operator", cells)
}

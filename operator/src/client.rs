//! The rate of requests, which is another one than an agent's, and the fence around writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::Settings;
use hive::prelude::*;
use k8s_client::{ClientProfile, Fence};
use k8s_types::Kind;
use operator_election::Leadership;

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
    let profile =
        |config: Config<OperatorClientConfig>, settings: Arc<Settings>, leadership: Arc<Leadership>| {
            let is_on = |option: &str| settings.value(option).is_some_and(|(_, value)| value == "true");
            Arc::new(ClientProfile {
                qps: config.operator_k8s_client_qps,
                burst: config.operator_k8s_client_burst,
                required: required_kinds(is_on),
                only_requests: false,
                fence: leaders_writes(&leadership),
            })
        };
    let cells = [config::<OperatorClientConfig>(), provide(profile)];
    module("k8s-client-profile", "Rate of requests of the operator, and fence of its writes", cells)
}

/// Returns a fence that permits writes while this process leads, and those of the election. Cells ask before each write, too,
/// but a process may be suspended between their question and the moment at which the rate limit lets the request go.
fn leaders_writes(leadership: &Leadership) -> Fence {
    let leadership = leadership.clone();
    Fence::new(move |plural| plural == Kind::Lease.plural() || leadership.holds())
}

/// Returns the kinds that are not taken as empty lists while they are undefined: CiliumNodes and pools show which ranges are
/// taken, the others which identities are used.
fn required_kinds(is_on: impl Fn(&str) -> bool) -> BTreeSet<Kind> {
    let mut kinds: BTreeSet<Kind> =
        [Kind::CiliumNode, Kind::CiliumPodIPPool, Kind::CiliumIdentity, Kind::CiliumEndpoint].into();
    if is_on("disable-endpoint-crd") {
        kinds.remove(&Kind::CiliumEndpoint);
    }
    if is_on("enable-cilium-endpoint-slice") {
        kinds.insert(Kind::CiliumEndpointSlice);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_slices_are_required_as_they_are_in_use() {
        assert!(required_kinds(|_| false).contains(&Kind::CiliumEndpoint));
        assert!(!required_kinds(|_| false).contains(&Kind::CiliumEndpointSlice));
        assert!(!required_kinds(|option| option == "disable-endpoint-crd").contains(&Kind::CiliumEndpoint));
        let slices = required_kinds(|option| option == "enable-cilium-endpoint-slice");
        assert!(slices.contains(&Kind::CiliumEndpoint) && slices.contains(&Kind::CiliumEndpointSlice));
    }
}

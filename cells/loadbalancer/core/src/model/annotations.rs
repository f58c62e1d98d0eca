//! Annotations of services and slices.

/// Which algorithm chooses the backends of a service: `random` or `maglev`.
pub(crate) const ALGORITHM: &str = "service.cilium.io/lb-algorithm";
/// Whether its source ranges are allowed or denied: `allow` or `deny`.
pub(crate) const SOURCE_RANGES_POLICY: &str = "service.cilium.io/src-ranges-policy";
/// Whether a proxy behind local backends takes over: `none` or `delegate-if-local`.
pub(crate) const PROXY_DELEGATION: &str = "service.cilium.io/proxy-delegation";
/// Of a slice: the weight of its backends.
pub(crate) const WEIGHT: &str = "service.cilium.io/weight";
/// By which older services ask for backends of their zone.
pub(crate) const TOPOLOGY: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// Whether backends of other clusters are its, too: `true`; the second is its older name.
pub(crate) const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
/// Which of them are preferred: `local`, `remote` or `none`; the second is its older name.
pub(crate) const AFFINITY: [&str; 2] = ["service.cilium.io/affinity", "io.cilium/service-affinity"];
/// How its packets come to backends of other nodes: `dsr` or `snat`.
pub(crate) const FORWARDING_MODE: &str = "service.cilium.io/forwarding-mode";
/// The only type of frontends that it is to have.
pub(crate) const TYPE: &str = "service.cilium.io/type";
/// The node's label of the same name must have the same value.
pub(crate) const NODE: &str = "service.cilium.io/node";
/// Labels of the nodes that are to have it; counts before [`NODE`].
pub(crate) const NODE_SELECTOR: &str = "service.cilium.io/node-selector";

//! Annotations of services and slices.

/// The algorithm that selects the backends of a service: `random` or `maglev`.
pub(crate) const ALGORITHM: &str = "service.cilium.io/lb-algorithm";
/// Whether source ranges are allowed or denied: `allow` or `deny`.
pub(crate) const SOURCE_RANGES_POLICY: &str = "service.cilium.io/src-ranges-policy";
/// Whether a proxy in front of local backends takes the connections: `none` or `delegate-if-local`.
pub(crate) const PROXY_DELEGATION: &str = "service.cilium.io/proxy-delegation";
/// The weight of a slice's backends.
pub(crate) const WEIGHT: &str = "service.cilium.io/weight";
/// The former annotations for preferring backends of the same zone.
pub(crate) const TOPOLOGY: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// Whether the service includes backends of other clusters: `true`; the second is the former name.
pub(crate) const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
/// The preferred clusters: `local`, `remote` or `none`; the second is the former name.
pub(crate) const AFFINITY: [&str; 2] = ["service.cilium.io/affinity", "io.cilium/service-affinity"];
/// The mode of forwarding packets to backends of other nodes: `dsr` or `snat`.
pub(crate) const FORWARDING_MODE: &str = "service.cilium.io/forwarding-mode";
/// Limits the service to frontends of one type (`ClusterIP`, `NodePort` or `LoadBalancer`) and external addresses.
pub(crate) const TYPE: &str = "service.cilium.io/type";
/// Limits the service to nodes that have a label with the name and value of this annotation.
pub(crate) const NODE: &str = "service.cilium.io/node";
/// Limits the service to nodes whose labels this selector matches; takes precedence over [`NODE`].
pub(crate) const NODE_SELECTOR: &str = "service.cilium.io/node-selector";

//! Types of objects, and their domains.

use std::fmt;

use k8s_types::{Kind, SmolStr};

/// One of Cilium's two trackers; a type may be in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// `*`: slim Kubernetes types, and all custom resources.
    Any,
    /// `k8s`: complete Kubernetes types.
    Core,
}

impl Domain {
    /// Both, in order.
    pub const ALL: [Domain; 2] = [Domain::Any, Domain::Core];

    /// Returns the name that the table prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Domain::Any => "*",
            Domain::Core => "k8s",
        }
    }
}

/// A resource: group, version and plural of a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gvr {
    /// The group; empty for the core group.
    pub group: SmolStr,
    /// The version.
    pub version: SmolStr,
    /// The plural name in paths.
    pub plural: SmolStr,
}

impl Gvr {
    /// Returns the qualified name in errors: `pods`, `ciliumnodes.cilium.io`.
    pub fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.to_string(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

/// Formats the resource as `v1.pods`, `cilium.io.v2.ciliumnodes`.
impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => write!(f, "{}.{}", self.version, self.plural),
            group => write!(f, "{group}.{}.{}", self.version, self.plural),
        }
    }
}

impl From<Kind> for Gvr {
    fn from(kind: Kind) -> Gvr {
        Gvr { group: kind.group().into(), version: kind.version().into(), plural: kind.plural().into() }
    }
}

/// A type of objects.
#[derive(Clone, Debug)]
pub(crate) struct Type {
    pub(crate) gvr: Gvr,
    /// Its name, `Pod`.
    pub(crate) name: SmolStr,
    /// The kind, if it has a type in `k8s_types`. Others are stored as written.
    pub(crate) kind: Option<Kind>,
    /// Its domains; never empty.
    pub(crate) domains: &'static [Domain],
}

impl Type {
    /// Returns the type of a manifest's `apiVersion` and `kind`.
    pub(crate) fn of(api_version: &str, name: &str) -> Option<Type> {
        if let Some(kind) = Kind::of(api_version, name) {
            return Some(kind.into());
        }
        let (_, domains, _) =
            OTHERS.iter().find(|(version, _, names)| *version == api_version && names.contains(&name))?;
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let gvr = Gvr { group: group.into(), version: version.into(), plural: plural(name).into() };
        Some(Type { gvr, name: name.into(), kind: None, domains })
    }

    /// Returns the domain of watches and requests.
    pub(crate) fn domain(&self) -> Domain {
        self.domains[0]
    }
}

impl From<Kind> for Type {
    fn from(kind: Kind) -> Type {
        let domains = match (kind.group(), kind) {
            ("cilium.io" | "policy.networking.k8s.io", _) => ANY,
            (_, Kind::ConfigMap | Kind::Event | Kind::Lease) => CORE,
            (_, Kind::CustomResourceDefinition) => ANY,
            _ => BOTH,
        };
        Type { gvr: kind.into(), name: kind.name().into(), kind: Some(kind), domains }
    }
}

/// Whether a kind has a status sub-resource.
pub(crate) fn has_status(kind: Kind) -> bool {
    use Kind::*;
    match kind {
        Namespace | Node | Pod | Service | CustomResourceDefinition | ClusterNetworkPolicy => true,
        ConfigMap | Secret | EndpointSlice | NetworkPolicy | Event | Lease => false,
        CiliumBGPClusterConfig
        | CiliumBGPNodeConfig
        | CiliumBGPPeerConfig
        | CiliumClusterwideNetworkPolicy
        | CiliumGatewayClassConfig
        | CiliumIdentity
        | CiliumL2AnnouncementPolicy
        | CiliumLoadBalancerIPPool
        | CiliumNetworkPolicy
        | CiliumNode => true,
        _ => false,
    }
}

/// Returns the plural that Cilium derives from a type's name.
fn plural(name: &str) -> String {
    let lower = name.to_lowercase();
    match lower.as_bytes() {
        _ if lower == "endpoints" => lower,
        [.., b's'] => format!("{lower}es"),
        [start @ .., b'y'] => format!("{}ies", &lower[..start.len()]),
        _ => format!("{lower}s"),
    }
}

const ANY: &[Domain] = &[Domain::Any];
const CORE: &[Domain] = &[Domain::Core];
const BOTH: &[Domain] = &Domain::ALL;

/// Types without a type in `k8s_types`: version, domains, names.
const OTHERS: &[(&str, &[Domain], &[&str])] = &[
    (
        "gateway.networking.k8s.io/v1",
        ANY,
        &["BackendTLSPolicy", "Gateway", "GatewayClass", "GRPCRoute", "HTTPRoute"],
    ),
    ("gateway.networking.k8s.io/v1alpha2", ANY, &["ReferenceGrant", "TCPRoute", "TLSRoute", "UDPRoute"]),
    ("gateway.networking.k8s.io/v1alpha3", ANY, &["BackendTLSPolicy", "TLSRoute"]),
    ("gateway.networking.k8s.io/v1beta1", ANY, &["Gateway", "GatewayClass", "HTTPRoute", "ReferenceGrant"]),
    ("multicluster.x-k8s.io/v1alpha1", ANY, &["ServiceExport", "ServiceImport"]),
    ("multicluster.x-k8s.io/v1beta1", ANY, &["ServiceExport", "ServiceImport"]),
    (
        "v1",
        CORE,
        &[
            "Endpoints",
            "LimitRange",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "ServiceAccount",
        ],
    ),
    ("apps/v1", CORE, &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    ("autoscaling/v2", CORE, &["HorizontalPodAutoscaler"]),
    ("batch/v1", CORE, &["CronJob", "Job"]),
    ("certificates.k8s.io/v1", CORE, &["CertificateSigningRequest"]),
    ("events.k8s.io/v1", CORE, &["Event"]),
    ("networking.k8s.io/v1", CORE, &["IPAddress", "Ingress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io/v1", CORE, &["RuntimeClass"]),
    ("policy/v1", CORE, &["PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io/v1", CORE, &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("scheduling.k8s.io/v1", CORE, &["PriorityClass"]),
    ("storage.k8s.io/v1", CORE, &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(api_version: &str, name: &str) -> Option<(String, &'static [Domain])> {
        Type::of(api_version, name).map(|found| (found.gvr.to_string(), found.domains))
    }

    #[test]
    fn types_have_plurals_and_domains() {
        assert_eq!(resource("v1", "Pod"), Some(("v1.pods".to_owned(), BOTH)));
        assert_eq!(resource("v1", "ConfigMap"), Some(("v1.configmaps".to_owned(), CORE)));
        assert_eq!(resource("v1", "Endpoints"), Some(("v1.endpoints".to_owned(), CORE)));
        assert_eq!(resource("apps/v1", "Deployment"), Some(("apps.v1.deployments".to_owned(), CORE)));
        assert_eq!(resource("networking.k8s.io/v1", "Ingress").unwrap().0, "networking.k8s.io.v1.ingresses");
        assert_eq!(
            resource("scheduling.k8s.io/v1", "PriorityClass").unwrap().0,
            "scheduling.k8s.io.v1.priorityclasses"
        );
        assert_eq!(
            resource("cilium.io/v2", "CiliumNode"),
            Some(("cilium.io.v2.ciliumnodes".to_owned(), ANY))
        );
        assert_eq!(resource("example.org/v1", "Teapot"), None);
        assert_eq!(resource("v2", "Pod"), None);
    }

    #[test]
    fn plurals_are_those_of_cilium() {
        for &kind in Kind::ALL {
            assert_eq!(kind.plural(), plural(kind.name()));
        }
    }
}

//! Kinds of cluster objects and their names.

use std::fmt;

use serde_json::Value;

use crate::{Refusal, Resource, decode, with_type};

/// The scope of a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The objects have no namespace.
    Cluster,
    /// Each object is in a namespace.
    Namespaced,
}

/// An operation on the type of a kind's objects.
pub trait KindVisitor {
    /// The result.
    type Output;

    /// Runs the operation with a type.
    fn visit<T: Resource>(self) -> Self::Output;
}

/// The types of all kinds.
mod types {
    pub(super) use crate::cilium::*;
    pub(super) use crate::core::*;
}

macro_rules! kinds {
    ($($kind:ident $group:literal $version:literal $plural:literal $scope:ident [$($short:literal),*];)*) => {
        /// A kind of cluster objects, in the version that the agent uses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = concat!("`", $plural, "` of `", $group, "/", $version, "`.")] $kind,)*
        }

        impl Kind {
            /// Calls a visitor with the type of this kind's objects.
            pub fn visit<V: KindVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Kind::$kind => visitor.visit::<types::$kind>(),)*
                }
            }

            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            fn facts(self) -> &'static Facts {
                match self {
                    $(Kind::$kind => &Facts {
                        name: stringify!($kind),
                        group: $group,
                        version: $version,
                        plural: $plural,
                        scope: Scope::$scope,
                        short: &[$($short),*],
                    },)*
                }
            }
        }
    };
}

struct Facts {
    name: &'static str,
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    scope: Scope,
    short: &'static [&'static str],
}

kinds! {
    Namespace "" "v1" "namespaces" Cluster ["ns"];
    Node "" "v1" "nodes" Cluster ["no"];
    Pod "" "v1" "pods" Namespaced ["po"];
    Service "" "v1" "services" Namespaced ["svc"];
    ConfigMap "" "v1" "configmaps" Namespaced ["cm"];
    Secret "" "v1" "secrets" Namespaced [];
    EndpointSlice "discovery.k8s.io" "v1" "endpointslices" Namespaced [];
    NetworkPolicy "networking.k8s.io" "v1" "networkpolicies" Namespaced ["netpol"];
    ClusterNetworkPolicy "policy.networking.k8s.io" "v1alpha2" "clusternetworkpolicies" Cluster ["kcnp"];
    Event "" "v1" "events" Namespaced ["ev"];
    Lease "coordination.k8s.io" "v1" "leases" Namespaced [];
    CustomResourceDefinition "apiextensions.k8s.io" "v1" "customresourcedefinitions" Cluster ["crd", "crds"];
    CiliumBGPAdvertisement "cilium.io" "v2" "ciliumbgpadvertisements" Cluster ["cbgpadvert"];
    CiliumBGPClusterConfig "cilium.io" "v2" "ciliumbgpclusterconfigs" Cluster ["cbgpcluster"];
    CiliumBGPNodeConfig "cilium.io" "v2" "ciliumbgpnodeconfigs" Cluster ["cbgpnode"];
    CiliumBGPNodeConfigOverride "cilium.io" "v2" "ciliumbgpnodeconfigoverrides" Cluster ["cbgpnodeoverride"];
    CiliumBGPPeerConfig "cilium.io" "v2" "ciliumbgppeerconfigs" Cluster ["cbgppeer"];
    CiliumCIDRGroup "cilium.io" "v2" "ciliumcidrgroups" Cluster ["ccg"];
    CiliumClusterwideEnvoyConfig "cilium.io" "v2" "ciliumclusterwideenvoyconfigs" Cluster ["ccec"];
    CiliumClusterwideNetworkPolicy "cilium.io" "v2" "ciliumclusterwidenetworkpolicies" Cluster ["ccnp"];
    CiliumDatapathPlugin "cilium.io" "v2alpha1" "ciliumdatapathplugins" Cluster ["cddp"];
    CiliumEgressGatewayPolicy "cilium.io" "v2" "ciliumegressgatewaypolicies" Cluster ["cegp"];
    CiliumEndpoint "cilium.io" "v2" "ciliumendpoints" Namespaced ["cep", "ciliumep"];
    CiliumEndpointSlice "cilium.io" "v2alpha1" "ciliumendpointslices" Cluster ["ces"];
    CiliumEnvoyConfig "cilium.io" "v2" "ciliumenvoyconfigs" Namespaced ["cec"];
    CiliumGatewayClassConfig "cilium.io" "v2alpha1" "ciliumgatewayclassconfigs" Namespaced ["cgcc"];
    CiliumIdentity "cilium.io" "v2" "ciliumidentities" Cluster ["ciliumid"];
    CiliumL2AnnouncementPolicy "cilium.io" "v2alpha1" "ciliuml2announcementpolicies" Cluster ["l2announcement"];
    CiliumLoadBalancerIPPool "cilium.io" "v2" "ciliumloadbalancerippools" Cluster ["ippools", "ippool", "lbippool", "lbippools"];
    CiliumLocalRedirectPolicy "cilium.io" "v2" "ciliumlocalredirectpolicies" Namespaced ["clrp"];
    CiliumNetworkPolicy "cilium.io" "v2" "ciliumnetworkpolicies" Namespaced ["cnp", "ciliumnp"];
    CiliumNode "cilium.io" "v2" "ciliumnodes" Cluster ["cn", "ciliumn"];
    CiliumNodeConfig "cilium.io" "v2" "ciliumnodeconfigs" Namespaced [];
    CiliumPodIPPool "cilium.io" "v2alpha1" "ciliumpodippools" Cluster ["cpip"];
}

impl Kind {
    /// Returns the kind's name in manifests, `CiliumNode`.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the group; empty for the core group.
    pub fn group(self) -> &'static str {
        self.facts().group
    }

    /// Returns the version, such as `v1` or `v2alpha1`.
    pub fn version(self) -> &'static str {
        self.facts().version
    }

    /// Returns the plural name in paths, `ciliumnodes`.
    pub fn plural(self) -> &'static str {
        self.facts().plural
    }

    /// Returns the short names that `kubectl` accepts.
    pub fn short_names(self) -> &'static [&'static str] {
        self.facts().short
    }

    /// Whether its objects have a namespace.
    pub fn namespaced(self) -> bool {
        self.facts().scope == Scope::Namespaced
    }

    /// Returns the `apiVersion`, such as `v1` or `cilium.io/v2`.
    pub fn api_version(self) -> &'static str {
        match (self.group(), self.version()) {
            ("", version) => version,
            ("cilium.io", "v2") => "cilium.io/v2",
            ("cilium.io", _) => "cilium.io/v2alpha1",
            ("discovery.k8s.io", _) => "discovery.k8s.io/v1",
            ("coordination.k8s.io", _) => "coordination.k8s.io/v1",
            ("policy.networking.k8s.io", _) => "policy.networking.k8s.io/v1alpha2",
            ("apiextensions.k8s.io", _) => "apiextensions.k8s.io/v1",
            _ => "networking.k8s.io/v1",
        }
    }

    /// Returns the resource, such as `v1.pods` or `cilium.io.v2.ciliumnodes`.
    pub fn resource(self) -> String {
        match self.group() {
            "" => format!("{}.{}", self.version(), self.plural()),
            group => format!("{group}.{}.{}", self.version(), self.plural()),
        }
    }

    /// Returns the kind of a manifest's `apiVersion` and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|k| k.name() == kind && k.api_version() == api_version)
    }

    /// Returns the object decoded into its type and serialized, with kind and version: without unknown fields, and with
    /// those that are always written.
    pub fn normalize(self, object: &Value) -> Result<Value, Refusal> {
        struct Normalize<'v>(&'v Value);
        impl KindVisitor for Normalize<'_> {
            type Output = Result<Value, Refusal>;

            fn visit<T: Resource>(self) -> Self::Output {
                // Through bytes, to use the only decoder that is instantiated for each type.
                Ok(with_type(&decode::<T>(self.0.to_string().as_bytes())?))
            }
        }
        let mut object = self.visit(Normalize(object))?;
        if self.group() != "cilium.io" {
            forget_times(&mut object);
        }
        match self {
            Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy => {
                crate::cilium::show_rules(&mut object)
            }
            _ => {}
        }
        Ok(object)
    }

    /// Returns the kind with a name, plural or short name, in any version.
    pub fn named(name: &str) -> Option<Kind> {
        let lower = name.to_ascii_lowercase();
        Kind::ALL.iter().copied().find(|kind| {
            kind.plural() == lower
                || kind.name().to_ascii_lowercase() == lower
                || kind.short_names().contains(&lower.as_str())
        })
    }
}

/// Removes timestamps that Cilium's slim types of Kubernetes' kinds omit.
fn forget_times(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
        metadata.remove("finalizers");
        let owners = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten().filter_map(Value::as_object_mut) {
            owner.remove("blockOwnerDeletion");
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::of(kind.api_version(), kind.name()), Some(kind));
            assert_eq!(Kind::named(kind.plural()), Some(kind));
            let group = if kind.group().is_empty() { String::new() } else { format!("{}/", kind.group()) };
            assert_eq!(kind.api_version(), format!("{group}{}", kind.version()));
        }
        struct Of;
        impl KindVisitor for Of {
            type Output = Kind;

            fn visit<T: Resource>(self) -> Kind {
                T::KIND
            }
        }
        assert!(Kind::ALL.iter().all(|&kind| kind.visit(Of) == kind));
        assert_eq!(Kind::of("v2", "Pod"), None);
        assert_eq!(Kind::named("CNP"), Some(Kind::CiliumNetworkPolicy));
        assert_eq!(Kind::CiliumNode.resource(), "cilium.io.v2.ciliumnodes");
    }
}

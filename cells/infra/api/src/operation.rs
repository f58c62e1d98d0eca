//! The operations of the REST API: method, path, name, body and parameters of each.

use http::Method;

use crate::rules::{Body, Kind, Param, Place};

macro_rules! operations {
    ($($variant:ident: $method:ident $path:literal = $name:literal,)*) => {
        /// An operation of the REST API under `/v1`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $(
                #[doc = concat!("`", stringify!($method), " ", $path, "`")]
                $variant,
            )*
        }

        impl Operation {
            /// All operations.
            pub const ALL: &'static [Operation] = &[$(Operation::$variant),*];

            /// Returns the HTTP method.
            pub fn method(self) -> Method {
                match self {
                    $(Self::$variant => Method::$method,)*
                }
            }

            /// Returns the path below `/v1`, with `{name}` for variable parts.
            pub fn path(self) -> &'static str {
                match self {
                    $(Self::$variant => $path,)*
                }
            }

            /// Returns the operation's name in `--enable-cilium-api-server-access`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

operations! {
    GetClusterNodes: GET "/cluster/nodes" = "GetClusterNodes",
    GetHealthz: GET "/healthz" = "GetHealthz",
    GetConfig: GET "/config" = "GetConfig",
    PatchConfig: PATCH "/config" = "PatchConfig",
    GetEndpointID: GET "/endpoint/{id}" = "GetEndpointID",
    PutEndpointID: PUT "/endpoint/{id}" = "PutEndpointID",
    PatchEndpointID: PATCH "/endpoint/{id}" = "PatchEndpointID",
    DeleteEndpointID: DELETE "/endpoint/{id}" = "DeleteEndpointID",
    GetEndpoint: GET "/endpoint" = "GetEndpoint",
    DeleteEndpoint: DELETE "/endpoint" = "DeleteEndpoint",
    GetEndpointIDConfig: GET "/endpoint/{id}/config" = "GetEndpointIDConfig",
    PatchEndpointIDConfig: PATCH "/endpoint/{id}/config" = "PatchEndpointIDConfig",
    GetEndpointIDLabels: GET "/endpoint/{id}/labels" = "GetEndpointIDLabels",
    PatchEndpointIDLabels: PATCH "/endpoint/{id}/labels" = "PatchEndpointIDLabels",
    GetEndpointIDLog: GET "/endpoint/{id}/log" = "GetEndpointIDLog",
    GetEndpointIDHealthz: GET "/endpoint/{id}/healthz" = "GetEndpointIDHealthz",
    GetIdentity: GET "/identity" = "GetIdentity",
    GetIdentityID: GET "/identity/{id}" = "GetIdentityID",
    GetIdentityEndpoints: GET "/identity/endpoints" = "GetIdentityEndpoints",
    PostIpam: POST "/ipam" = "PostIPAM",
    PostIpamIP: POST "/ipam/{ip}" = "PostIPAMIP",
    DeleteIpamIP: DELETE "/ipam/{ip}" = "DeleteIPAMIP",
    GetPolicy: GET "/policy" = "GetPolicy",
    GetPolicySelectors: GET "/policy/selectors" = "GetPolicySelectors",
    GetPolicySubjectSelectors: GET "/policy/subject-selectors" = "GetPolicySubjectSelectors",
    GetLrp: GET "/lrp" = "GetLRP",
    GetService: GET "/service" = "GetService",
    GetPrefilter: GET "/prefilter" = "GetPrefilter",
    PatchPrefilter: PATCH "/prefilter" = "PatchPrefilter",
    DeletePrefilter: DELETE "/prefilter" = "DeletePrefilter",
    GetDebuginfo: GET "/debuginfo" = "GetDebuginfo",
    GetCgroupDumpMetadata: GET "/cgroup-dump-metadata" = "GetCgroupDumpMetadata",
    GetMap: GET "/map" = "GetMap",
    GetMapName: GET "/map/{name}" = "GetMapName",
    GetMapNameEvents: GET "/map/{name}/events" = "GetMapNameEvents",
    GetFqdnCache: GET "/fqdn/cache" = "GetFqdnCache",
    DeleteFqdnCache: DELETE "/fqdn/cache" = "DeleteFqdnCache",
    GetFqdnCacheID: GET "/fqdn/cache/{id}" = "GetFqdnCacheID",
    GetFqdnNames: GET "/fqdn/names" = "GetFqdnNames",
    GetIP: GET "/ip" = "GetIP",
    GetNodeIds: GET "/node/ids" = "GetNodeIds",
    GetBgpPeers: GET "/bgp/peers" = "GetBGPPeers",
    GetBgpRoutes: GET "/bgp/routes" = "GetBGPRoutes",
    GetBgpRoutePolicies: GET "/bgp/route-policies" = "GetBGPRoutePolicies",
}

impl Operation {
    /// Returns the body that the operation takes.
    pub(crate) fn body(self) -> Body {
        match self {
            Self::PatchConfig | Self::PatchEndpointIDLabels => Body::Required("configuration"),
            Self::PutEndpointID | Self::PatchEndpointID | Self::DeleteEndpoint => Body::Required("endpoint"),
            Self::PatchEndpointIDConfig => Body::Required("endpoint-configuration"),
            Self::PatchPrefilter | Self::DeletePrefilter => Body::Required("prefilter-spec"),
            Self::GetEndpoint | Self::GetIdentity | Self::GetIP => Body::Optional("labels"),
            _ => Body::None,
        }
    }

    /// Returns the headers and query parameters that have rules, in the order in which they are checked.
    pub(crate) fn params(self) -> &'static [Param] {
        const fn optional(place: Place, name: &'static str, kind: Kind) -> Param {
            Param { place, name, kind, required: false }
        }
        const fn required(name: &'static str, kind: Kind) -> Param {
            Param { place: Place::Query, name, kind, required: true }
        }
        match self {
            Self::GetClusterNodes => const { &[optional(Place::Header, "client-id", Kind::Integer)] },
            Self::GetHealthz => {
                const {
                    &[
                        optional(Place::Header, "brief", Kind::Bool),
                        optional(Place::Header, "require-k8s-connectivity", Kind::Bool),
                    ]
                }
            }
            Self::PostIpam => {
                const {
                    &[
                        optional(Place::Header, "expiration", Kind::Bool),
                        optional(Place::Query, "family", Kind::OneOf(&["ipv4", "ipv6"])),
                    ]
                }
            }
            Self::GetMapNameEvents => const { &[optional(Place::Query, "follow", Kind::Bool)] },
            Self::GetBgpRoutes => {
                const {
                    &[
                        required("afi", Kind::Text),
                        optional(Place::Query, "router_asn", Kind::Integer),
                        required("safi", Kind::Text),
                        required("table_type", Kind::OneOf(&["loc-rib", "adj-rib-in", "adj-rib-out"])),
                    ]
                }
            }
            Self::GetBgpRoutePolicies => const { &[optional(Place::Query, "router_asn", Kind::Integer)] },
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_44_operations_have_names_and_paths_of_their_own() {
        assert_eq!(Operation::ALL.len(), 44);
        let names: BTreeSet<_> = Operation::ALL.iter().map(|op| op.name()).collect();
        assert_eq!(names.len(), 44);
        let routes: BTreeSet<_> =
            Operation::ALL.iter().map(|op| (op.path(), op.method().to_string())).collect();
        assert_eq!(routes.len(), 44);
    }

    /// The names that `--enable-cilium-api-server-access` takes are made of the method and the words of the path.
    #[test]
    fn names_follow_from_method_and_path() {
        for op in Operation::ALL {
            let method = op.method().to_string();
            let mut name = method[..1].to_owned() + &method[1..].to_lowercase();
            for word in op.path().split(['/', '-', '{', '}']).filter(|word| !word.is_empty()) {
                match word {
                    "bgp" | "id" | "ip" | "ipam" | "lrp" => name += &word.to_uppercase(),
                    _ => name += &(word[..1].to_uppercase() + &word[1..]),
                }
            }
            assert_eq!(name, op.name());
        }
    }
}

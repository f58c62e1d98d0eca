//! Settings of gateways.

use smol_str::SmolStr;

use super::Conditions;
use crate::ObjectMeta;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// Settings of the gateways of a class.
    pub struct CiliumGatewayClassConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The settings.
        always pub spec: GatewayClassConfigSpec,
        /// How it is.
        always pub status: Conditions,
    }

    /// Settings of gateways.
    pub struct GatewayClassConfigSpec {
        /// The purpose.
        pub description: Option<SmolStr>,
        /// The services that are made for them.
        pub service: Option<GatewayService>,
        /// How they treat HTTP.
        pub http_options: Option<HttpOptions>,
    }

    /// Fields of services that are made for gateways.
    pub struct GatewayService {
        /// `LoadBalancer` or `NodePort`.
        pub r#type: SmolStr,
        /// `Local` or `Cluster`.
        pub external_traffic_policy: SmolStr,
        /// The class of the load balancer that serves it.
        pub load_balancer_class: Option<SmolStr>,
        /// `IPv4`, `IPv6`.
        pub ip_families: Vec<SmolStr>,
        /// `SingleStack` and so on.
        pub ip_family_policy: Option<SmolStr>,
        /// Whether load balancers have ports on nodes.
        pub allocate_load_balancer_node_ports: Option<bool>,
        /// Clients that the next field is about.
        pub load_balancer_source_ranges: Vec<SmolStr>,
        /// `Allow` or `Deny`.
        pub load_balancer_source_ranges_policy: SmolStr,
        /// `PreferClose` and so on.
        pub traffic_distribution: Option<SmolStr>,
    }

    /// How gateways treat HTTP.
    pub struct HttpOptions {
        /// gRPC-Web as gRPC.
        pub grpc_web_translation: Option<GrpcWebTranslation>,
    }

    /// gRPC-Web as gRPC.
    pub struct GrpcWebTranslation {
        /// Whether it is done.
        pub enabled: Option<bool>,
    }
}

resource!(CiliumGatewayClassConfig);

//! Settings of gateways.

use smol_str::SmolStr;

use super::Conditions;
use crate::ObjectMeta;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// Settings of the gateways of a class.
    pub struct CiliumGatewayClassConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The settings.
        always pub spec: GatewayClassConfigSpec,
        /// The observed state.
        always pub status: Conditions,
    }

    /// Settings of gateways.
    pub struct GatewayClassConfigSpec {
        /// The purpose.
        pub description: Option<SmolStr>,
        /// Settings of the generated services.
        pub service: Option<GatewayService>,
        /// HTTP options.
        pub http_options: Option<HttpOptions>,
    }

    /// Settings of services that are generated for gateways.
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
        /// Whether node ports are allocated for load balancers.
        pub allocate_load_balancer_node_ports: Option<bool>,
        /// The source ranges of clients, to which the next field applies.
        pub load_balancer_source_ranges: Vec<SmolStr>,
        /// `Allow` or `Deny`.
        pub load_balancer_source_ranges_policy: SmolStr,
        /// `PreferClose` and so on.
        pub traffic_distribution: Option<SmolStr>,
    }

    /// HTTP options of gateways.
    pub struct HttpOptions {
        /// Translation of gRPC-Web to gRPC.
        pub grpc_web_translation: Option<GrpcWebTranslation>,
    }

    /// Translation of gRPC-Web to gRPC.
    pub struct GrpcWebTranslation {
        /// Whether it is enabled.
        pub enabled: Option<bool>,
    }
}

resource!(CiliumGatewayClassConfig);

//! The listeners that redirects of policy lead to, and the clusters of their upstream connections.

use std::collections::BTreeMap;
use std::path::PathBuf;

use envoy_api::cilium::{
    BpfMetadata, DownstreamTlsWrapperContext, L7Policy, NetworkFilter, UpstreamTlsWrapperContext,
};
use envoy_api::cluster::circuit_breakers::Thresholds;
use envoy_api::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use envoy_api::cluster::{CircuitBreakers, Cluster};
use envoy_api::core::{
    Address, CidrRange, Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as Connections,
    SocketAddress, TransportSocket, address, socket_address, transport_socket,
};
use envoy_api::http::http_connection_manager::{
    InternalAddressConfig, PathWithEscapedSlashesAction, RouteSpecifier, UpgradeConfig,
};
use envoy_api::http::{HttpConnectionManager, HttpFilter, http_filter};
use envoy_api::listener::{
    AdditionalAddress, Filter, FilterChain, FilterChainMatch, Listener, ListenerFilter, filter,
    listener_filter,
};
use envoy_api::route::route_action::{ClusterSpecifier, MaxStreamDuration};
use envoy_api::route::route_match::{GrpcRouteMatchOptions, PathSpecifier};
use envoy_api::route::{RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route};
use envoy_api::router::Router;
use envoy_api::tcp_proxy::{TcpProxy, tcp_proxy};
use envoy_api::tls_inspector::TlsInspector;
use envoy_api::upstream_http::HttpProtocolOptions;
use envoy_api::upstream_http::http_protocol_options::{UpstreamProtocolOptions, UseDownstreamHttpConfig};
use envoy_api::{Any, Duration, Name};

use crate::config::EnvoyConfig;

/// The map of identities that Cilium's filters look addresses up in, below `<bpf-root>/tc/globals`.
const IPCACHE: &str = "cilium_ipcache_v2";
/// The ranges of clients that do not count as external: those of RFC 1918, and loopback.
const INTERNAL_V4: [(&str, u32); 4] =
    [("10.0.0.0", 8), ("172.16.0.0", 12), ("192.168.0.0", 16), ("127.0.0.1", 32)];
const INTERNAL_V6: [(&str, u32); 1] = [("::1", 128)];
/// The answers of servers for which a request is sent again.
const RETRY_ON: &str = "5xx";
/// The interval at which addresses without connections are removed from a cluster.
const CLEANUP_INTERVAL: Duration = Duration { seconds: 2, nanos: 500_000_000 };
const UPSTREAM_HTTP: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const TLS_WRAPPER: &str = "cilium.tls_wrapper";

/// The settings that all listeners share.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: EnvoyConfig,
    /// The addresses that listeners bind: loopback, of the enabled families.
    pub(crate) addresses: Vec<&'static str>,
    pub(crate) bpf_root: String,
    /// Programs assign packets to sockets: not to one of a group with SO_REUSEPORT, which kernels before 6.6 refuse.
    pub(crate) bpf_tproxy: bool,
    pub(crate) access_log: PathBuf,
}

impl Settings {
    /// Returns the listener of a proxy with a port.
    pub(crate) fn listener(&self, proxy: &str, is_http: bool, is_ingress: bool, port: u16) -> Listener {
        let mut addresses = self.addresses.iter().map(|ip| Address {
            address: Some(address::Address::SocketAddress(SocketAddress {
                address: (*ip).to_owned(),
                port_specifier: Some(socket_address::PortSpecifier::PortValue(port.into())),
                ..SocketAddress::default()
            })),
        });
        let metadata = BpfMetadata {
            bpf_root: self.bpf_root.clone(),
            is_ingress,
            use_original_source_address: !is_ingress && self.config.proxy_use_original_source_address,
            proxy_id: port.into(),
            ipcache_name: IPCACHE.to_owned(),
            ..BpfMetadata::default()
        };
        let listener_filter = |name: &str, config: Any| ListenerFilter {
            name: name.to_owned(),
            config_type: Some(listener_filter::ConfigType::TypedConfig(config)),
        };
        let chains = [false, true].map(|tls| match is_http {
            true => self.http_chain(is_ingress, tls),
            false => self.tcp_chain(is_ingress, tls),
        });
        Listener {
            name: format!("{proxy}:{port}"),
            address: addresses.next(),
            additional_addresses: addresses
                .map(|address| AdditionalAddress { address: Some(address) })
                .collect(),
            transparent: Some(true),
            enable_reuse_port: self.bpf_tproxy.then_some(false),
            listener_filters: vec![
                listener_filter("envoy.filters.listener.tls_inspector", any(&TlsInspector {})),
                listener_filter("cilium.bpf_metadata", any(&metadata)),
            ],
            filter_chains: chains.into(),
        }
    }

    fn access_log_path(&self) -> String {
        match self.config.envoy_access_log_enabled {
            true => self.access_log.to_string_lossy().into_owned(),
            false => String::new(),
        }
    }

    fn http_chain(&self, is_ingress: bool, tls: bool) -> FilterChain {
        let network = NetworkFilter::default();
        let manager = self.connection_manager(is_ingress, cluster(is_ingress, tls));
        let filters = vec![
            network_filter("cilium.network", any(&network)),
            network_filter("envoy.filters.network.http_connection_manager", any(&manager)),
        ];
        let filter_chain_match = tls.then(|| transport("tls"));
        FilterChain { filter_chain_match, filters, transport_socket: tls.then(downstream_tls) }
    }

    fn tcp_chain(&self, is_ingress: bool, tls: bool) -> FilterChain {
        let network = NetworkFilter { access_log_path: self.access_log_path(), ..NetworkFilter::default() };
        let cluster = cluster(is_ingress, tls).to_owned();
        let specifier = Some(tcp_proxy::ClusterSpecifier::Cluster(cluster));
        let proxy = TcpProxy { stat_prefix: "tcp_proxy".to_owned(), cluster_specifier: specifier };
        let filters = vec![
            network_filter("cilium.network", any(&network)),
            network_filter("envoy.filters.network.tcp_proxy", any(&proxy)),
        ];
        let protocol = if tls { "tls" } else { "raw_buffer" };
        let filter_chain_match = Some(transport(protocol));
        FilterChain { filter_chain_match, filters, transport_socket: tls.then(downstream_tls) }
    }

    fn connection_manager(&self, is_ingress: bool, cluster: &str) -> HttpConnectionManager {
        let config = &self.config;
        let policy = L7Policy {
            access_log_path: self.access_log_path(),
            denied_403_body: config.http_403_msg.clone(),
        };
        let http_filter = |name: &str, config: Any| HttpFilter {
            name: name.to_owned(),
            config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        };
        let ranges = INTERNAL_V4.iter().filter(|_| self.addresses.contains(&"127.0.0.1"));
        let ranges = ranges.chain(INTERNAL_V6.iter().filter(|_| self.addresses.contains(&"::1")));
        let range = |(prefix, length): &(&str, u32)| CidrRange {
            address_prefix: (*prefix).to_owned(),
            prefix_len: Some(*length),
        };
        let xff_num_trusted_hops = match is_ingress {
            true => config.proxy_xff_num_trusted_hops_ingress,
            false => config.proxy_xff_num_trusted_hops_egress,
        };
        let mut manager = HttpConnectionManager {
            stat_prefix: "proxy".to_owned(),
            route_specifier: Some(RouteSpecifier::RouteConfig(self.routes(cluster))),
            http_filters: vec![
                http_filter("cilium.l7policy", any(&policy)),
                http_filter("envoy.filters.http.router", any(&Router {})),
            ],
            use_remote_address: Some(true),
            xff_num_trusted_hops,
            skip_xff_append: true,
            upgrade_configs: vec![UpgradeConfig { upgrade_type: "websocket".to_owned() }],
            stream_idle_timeout: Some(seconds(config.http_stream_idle_timeout)),
            internal_address_config: Some(InternalAddressConfig {
                unix_sockets: false,
                cidr_ranges: ranges.map(range).collect(),
            }),
            ..HttpConnectionManager::default()
        };
        if config.http_normalize_path {
            manager.normalize_path = Some(true);
            manager.merge_slashes = true;
            manager.set_path_with_escaped_slashes_action(PathWithEscapedSlashesAction::UnescapeAndRedirect);
        }
        manager
    }

    fn routes(&self, cluster: &str) -> RouteConfiguration {
        let config = &self.config;
        let limit = |value: u32| (value > 0).then(|| seconds(value));
        let retry = RetryPolicy {
            retry_on: RETRY_ON.to_owned(),
            num_retries: Some(config.http_retry_count),
            per_try_timeout: limit(config.http_retry_timeout),
        };
        let action = RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
            idle_timeout: limit(config.http_idle_timeout),
            ..RouteAction::default()
        };
        let to = |grpc, action| Route {
            r#match: Some(RouteMatch { grpc, path_specifier: Some(PathSpecifier::Prefix("/".to_owned())) }),
            action: Some(route::Action::Route(action)),
        };
        // The limit of a request of gRPC is that of its own header: streams have no end.
        let of_grpc = RouteAction {
            timeout: Some(seconds(0)),
            max_stream_duration: Some(MaxStreamDuration {
                grpc_timeout_header_max: Some(seconds(config.http_max_grpc_timeout)),
            }),
            ..action.clone()
        };
        let of_all = RouteAction {
            timeout: Some(seconds(config.http_request_timeout)),
            retry_policy: Some(retry),
            ..action
        };
        let host = VirtualHost {
            name: "default_route".to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![to(Some(GrpcRouteMatchOptions {}), of_grpc), to(None, of_all)],
        };
        RouteConfiguration { name: String::new(), virtual_hosts: vec![host] }
    }

    /// Returns the clusters by their names: connections to the addresses that clients have asked for.
    pub(crate) fn clusters(&self) -> BTreeMap<&'static str, Cluster> {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        let cluster = |(is_ingress, tls)| {
            let name = cluster(is_ingress, tls);
            (name, self.cluster(name, tls))
        };
        all.into_iter().map(cluster).collect()
    }

    fn cluster(&self, name: &str, tls: bool) -> Cluster {
        let config = &self.config;
        let limit = |value: u32| (value > 0).then_some(value);
        let connections = Connections {
            idle_timeout: Some(seconds(config.proxy_idle_timeout_seconds)),
            max_connection_duration: limit(config.proxy_max_connection_duration_seconds).map(seconds),
            max_requests_per_connection: limit(config.proxy_max_requests_per_connection),
        };
        let options = HttpProtocolOptions {
            common_http_protocol_options: Some(connections),
            upstream_protocol_options: Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(
                UseDownstreamHttpConfig {
                    http_protocol_options: Some(Http1ProtocolOptions {}),
                    http2_protocol_options: Some(Http2ProtocolOptions {}),
                },
            )),
        };
        let thresholds = Thresholds {
            max_connections: Some(config.proxy_cluster_max_connections),
            max_pending_requests: Some(config.proxy_cluster_max_pending_requests),
            max_requests: Some(config.proxy_cluster_max_requests),
            max_retries: Some(config.proxy_max_concurrent_retries),
        };
        Cluster {
            name: name.to_owned(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst.into())),
            connect_timeout: Some(seconds(config.proxy_connect_timeout)),
            lb_policy: LbPolicy::ClusterProvided.into(),
            circuit_breakers: Some(CircuitBreakers { thresholds: vec![thresholds] }),
            cleanup_interval: Some(CLEANUP_INTERVAL),
            transport_socket: tls.then(|| tls_wrapper(any(&UpstreamTlsWrapperContext {}))),
            typed_extension_protocol_options: BTreeMap::from([(UPSTREAM_HTTP.to_owned(), any(&options))]),
        }
    }
}

/// Returns the name of the cluster of a direction.
fn cluster(is_ingress: bool, tls: bool) -> &'static str {
    match (is_ingress, tls) {
        (false, false) => "egress-cluster",
        (false, true) => "egress-cluster-tls",
        (true, false) => "ingress-cluster",
        (true, true) => "ingress-cluster-tls",
    }
}

fn transport(protocol: &str) -> FilterChainMatch {
    FilterChainMatch { transport_protocol: protocol.to_owned() }
}

fn downstream_tls() -> TransportSocket {
    tls_wrapper(any(&DownstreamTlsWrapperContext {}))
}

fn tls_wrapper(context: Any) -> TransportSocket {
    let config_type = Some(transport_socket::ConfigType::TypedConfig(context));
    TransportSocket { name: TLS_WRAPPER.to_owned(), config_type }
}

fn network_filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(filter::ConfigType::TypedConfig(config)) }
}

fn any<M: Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

fn seconds(seconds: u32) -> Duration {
    Duration { seconds: seconds.into(), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_to_which_programs_assign_packets_have_one_socket() {
        for (bpf_tproxy, expected) in [(true, Some(false)), (false, None)] {
            let settings = Settings {
                config: EnvoyConfig::default(),
                addresses: vec!["127.0.0.1"],
                bpf_root: String::new(),
                bpf_tproxy,
                access_log: PathBuf::new(),
            };
            assert_eq!(settings.listener("a", true, true, 7).enable_reuse_port, expected);
        }
    }
}

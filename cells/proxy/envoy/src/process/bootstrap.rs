//! The bootstrap of an Envoy: the connection to the agent, which gives it listeners and clusters, and what serves its
//! metrics and its administration.

use std::path::Path;

use serde_json::{Value, json};

use crate::process::config::EnvoyProcessConfig;

/// The names that Cilium's bootstrap has.
const XDS_CLUSTER: &str = "xds-grpc-cilium";
const ADMIN_CLUSTER: &str = "/envoy-admin";
const NODE: &str = "host~127.0.0.1~no-id~localdomain";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The inputs of a bootstrap.
#[derive(Debug, Clone)]
pub(crate) struct Bootstrap {
    pub(crate) config: EnvoyProcessConfig,
    pub(crate) connect_timeout: u32,
    pub(crate) is_ipv4: bool,
}

impl Bootstrap {
    /// Returns the bootstrap as JSON, with the sockets of a folder.
    pub(crate) fn render(&self, sockets: &Path) -> String {
        let pipe = |name: &str| json!({"pipe": {"path": sockets.join(name)}});
        let cluster = |name: &str, socket: &str| {
            json!({
                "name": name,
                "type": "STATIC",
                "connectTimeout": format!("{}s", self.connect_timeout),
                "loadAssignment": {
                    "clusterName": name,
                    "endpoints": [{"lbEndpoints": [{"endpoint": {"address": pipe(socket)}}]}],
                },
            })
        };
        let mut xds = cluster(XDS_CLUSTER, "xds.sock");
        xds["typedExtensionProtocolOptions"] = json!({HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicitHttpConfig": {"http2ProtocolOptions": {}},
        }});
        let source = json!({
            "apiConfigSource": {
                "apiType": "GRPC",
                "transportApiVersion": "V3",
                "setNodeOnFirstMessageOnly": true,
                "grpcServices": [{"envoyGrpc": {"clusterName": XDS_CLUSTER}}],
            },
            "resourceApiVersion": "V3",
            "initialFetchTimeout": format!("{}s", self.config.proxy_initial_fetch_timeout),
        });
        let bootstrap = json!({
            "node": {"id": NODE, "cluster": "ingress-cluster"},
            "staticResources": {
                "clusters": [xds, cluster(ADMIN_CLUSTER, "admin.sock")],
                "listeners": self.listeners(),
            },
            "dynamicResources": {"ldsConfig": source, "cdsConfig": source},
            "bootstrapExtensions": [{
                "name": "envoy.bootstrap.internal_listener",
                "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
                },
            }],
            "overloadManager": {"resourceMonitors": [{
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    "maxActiveDownstreamConnections": self.config.proxy_max_active_downstream_connections,
                },
            }]},
            "admin": {"address": pipe("admin.sock")},
        });
        bootstrap.to_string()
    }

    fn listeners(&self) -> Vec<Value> {
        let [loopback, any] = if self.is_ipv4 { ["127.0.0.1", "0.0.0.0"] } else { ["::1", "::"] };
        let EnvoyProcessConfig { proxy_prometheus_port, proxy_admin_port, .. } = self.config;
        let mut listeners = Vec::new();
        if proxy_prometheus_port != 0 {
            let name = "envoy-prometheus-metrics-listener";
            listeners.push(listener(name, any, proxy_prometheus_port, "/metrics", "/stats/prometheus"));
        }
        if proxy_admin_port != 0 {
            listeners.push(listener("envoy-admin-listener", loopback, proxy_admin_port, "/", "/"));
        }
        listeners
    }
}

/// Returns a listener that leads requests for paths below `from` to the administration, below `to`.
fn listener(name: &str, address: &str, port: u16, from: &str, to: &str) -> Value {
    let route = json!({"match": {"prefix": from}, "route": {"cluster": ADMIN_CLUSTER, "prefixRewrite": to}});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "statPrefix": name,
        "routeConfig": {"virtualHosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        "httpFilters": [{
            "name": "envoy.filters.http.router",
            "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
        }],
        "streamIdleTimeout": "0s",
    });
    json!({
        "name": name,
        "address": {"socketAddress": {"address": address, "portValue": port}},
        "filterChains": [{
            "filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": manager}],
        }],
    })
}

//! Cilium's part of the resources: sources of configuration, limits, filters, addresses.

use envoy_api::cilium::{BpfMetadata, L7Policy, NetworkFilter};
use envoy_api::reflect::{DynamicMessage, ReflectMessage as _, Value};
use envoy_api::{Message as _, Name as _, Types};

use super::fields::{child, child_mut, entry, list_mut, set_entry, set_text, text, wrap_u32};
use super::names::Origin;
use super::{IngressAddresses, Settings};

/// The cluster of the connection to the agent, in the bootstrap of Envoy.
const AGENT_CLUSTER: &str = "xds-grpc-cilium";
/// The time until Envoy goes on without a resource that it has asked for, in seconds.
const INITIAL_FETCH_TIMEOUT: i64 = 30;
const IPCACHE: &str = "cilium_ipcache_v2";
const MANAGER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const TCP_PROXY: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const UPSTREAM_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const UPSTREAM_TLS: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const CODEC: &str = "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec";
const ROUTER_FILTER: &str = "envoy.filters.http.router";
const CODEC_FILTER: &str = "envoy.filters.http.upstream_codec";
const L7_FILTER: &str = "cilium.l7policy";
const NETWORK_FILTER: &str = "cilium.network";
pub(super) const METADATA_FILTER: &str = "cilium.bpf_metadata";
const V3: i32 = 2;
const GRPC: i32 = 2;

/// The limits of a cluster, as in Cilium.
const CIRCUIT_BREAKERS: [(&str, u32); 4] =
    [("max_connections", 1024), ("max_pending_requests", 1024), ("max_requests", 1024), ("max_retries", 128)];

/// Fields with the name of a cluster.
const CLUSTER_NAMES: [(&str, &str); 8] = [
    ("envoy.config.route.v3.RouteAction", "cluster"),
    ("envoy.config.route.v3.RouteAction.RequestMirrorPolicy", "cluster"),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", "name"),
    (TCP_PROXY, "cluster"),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight", "name"),
    ("envoy.config.core.v3.GrpcService.EnvoyGrpc", "cluster_name"),
    ("envoy.config.core.v3.HttpUri", "cluster"),
    ("envoy.config.cluster.v3.Cluster.EdsClusterConfig", "service_name"),
];

/// Qualifies the names in a resource and fills in what it leaves open, at all depths.
pub(super) fn complete(types: &Types, message: &mut DynamicMessage, origin: Origin<'_>) {
    types.visit(message, &mut |message| {
        let name = message.descriptor().full_name().to_owned();
        for (_, field) in CLUSTER_NAMES.iter().filter(|(kind, _)| *kind == name) {
            let cluster = text(message, field);
            if !cluster.is_empty() && cluster != AGENT_CLUSTER && message.has_field_by_name(field) {
                set_text(message, field, origin.shared(&cluster));
            }
        }
        match name.as_str() {
            "envoy.config.route.v3.VirtualHost" | "envoy.config.route.v3.RouteConfiguration" => {
                let name = origin.own(&text(message, "name"));
                set_text(message, "name", name);
            }
            "envoy.extensions.filters.network.http_connection_manager.v3.Rds" => {
                let name = origin.own(&text(message, "route_config_name"));
                set_text(message, "route_config_name", name);
                fill_source(types, message, "config_source");
            }
            "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig" => {
                let name = origin.shared(&text(message, "name"));
                set_text(message, "name", name);
                fill_source(types, message, "sds_config");
            }
            "envoy.extensions.filters.http.health_check.v3.HealthCheck" => {
                qualify_health_check(message, origin)
            }
            _ => {}
        }
    });
}

/// The filter of health checks has names of clusters as keys.
fn qualify_health_check(message: &mut DynamicMessage, origin: Origin<'_>) {
    use envoy_api::reflect::MapKey;
    let map = message.get_field_by_name_mut("cluster_min_healthy_percentages").and_then(Value::as_map_mut);
    let Some(map) = map else { return };
    let qualified = std::mem::take(map).into_iter().map(|(key, value)| match key {
        MapKey::String(name) => (MapKey::String(origin.shared(&name)), value),
        key => (key, value),
    });
    *map = qualified.collect();
}

/// Sets a source of configuration to the agent, if the resource leaves it open.
fn fill_source(types: &Types, message: &mut DynamicMessage, field: &str) {
    const KINDS: [&str; 5] = ["path", "path_config_source", "api_config_source", "ads", "self"];
    let source = child(message, field);
    let is_open = |source: &DynamicMessage| !KINDS.iter().any(|kind| source.has_field_by_name(kind));
    if source.as_ref().is_none_or(is_open)
        && let Some(source) = agent_source(types)
    {
        message.set_field_by_name(field, Value::Message(source));
    }
}

fn agent_source(types: &Types) -> Option<DynamicMessage> {
    let mut service = types.message("envoy.config.core.v3.GrpcService")?;
    set_text(child_mut(&mut service, "envoy_grpc")?, "cluster_name", AGENT_CLUSTER);
    let mut source = types.message("envoy.config.core.v3.ConfigSource")?;
    let api = child_mut(&mut source, "api_config_source")?;
    api.set_field_by_name("api_type", Value::EnumNumber(GRPC));
    api.set_field_by_name("transport_api_version", Value::EnumNumber(V3));
    api.set_field_by_name("grpc_services", Value::List(vec![Value::Message(service)]));
    api.set_field_by_name("set_node_on_first_message_only", Value::Bool(true));
    let timeout = child_mut(&mut source, "initial_fetch_timeout")?;
    timeout.set_field_by_name("seconds", Value::I64(INITIAL_FETCH_TIMEOUT));
    source.set_field_by_name("resource_api_version", Value::EnumNumber(V3));
    Some(source)
}

/// Completes a cluster: limits, the source of its endpoints, and with `inject` Cilium's filter in front of servers.
pub(super) fn cluster(types: &Types, cluster: &mut DynamicMessage, settings: &Settings, inject: bool) {
    const EDS: i32 = 3;
    let is_eds = cluster.has_field_by_name("type")
        && cluster.get_field_by_name("type").and_then(|kind| kind.as_enum_number()) == Some(EDS);
    if is_eds && let Some(eds) = child_mut(cluster, "eds_cluster_config") {
        fill_source(types, eds, "eds_config");
    }
    if !cluster.has_field_by_name("circuit_breakers")
        && let Some(mut thresholds) = types.message("envoy.config.cluster.v3.CircuitBreakers.Thresholds")
    {
        CIRCUIT_BREAKERS.iter().for_each(|(field, limit)| wrap_u32(&mut thresholds, field, *limit));
        if let Some(list) =
            child_mut(cluster, "circuit_breakers").and_then(|breakers| list_mut(breakers, "thresholds"))
        {
            list.push(Value::Message(thresholds));
        }
    }
    if inject {
        upstream(types, cluster, settings);
    }
}

/// Adds the filters of connections to servers, and a protocol for them if none is chosen.
fn upstream(types: &Types, cluster: &mut DynamicMessage, settings: &Settings) -> Option<()> {
    const FIELD: &str = "typed_extension_protocol_options";
    const PROTOCOLS: [&str; 3] = ["explicit_http_config", "use_downstream_protocol_config", "auto_config"];
    let packed = entry(cluster, FIELD, UPSTREAM_OPTIONS);
    let known = packed.as_ref().and_then(|any| types.unpack(any));
    let mut options = known.or_else(|| types.message(UPSTREAM_OPTIONS))?;
    if !PROTOCOLS.iter().any(|protocol| options.has_field_by_name(protocol)) {
        // With ALPN the server chooses the protocol.
        match has_alpn(types, cluster) {
            true => {
                let protocol = child_mut(&mut options, "auto_config")?;
                child_mut(protocol, "http_protocol_options")?;
                child_mut(protocol, "http2_protocol_options")?;
            }
            false => {
                let protocol = child_mut(&mut options, "use_downstream_protocol_config")?;
                child_mut(protocol, "http2_protocol_options")?;
            }
        }
    }
    let filters = list_mut(&mut options, "http_filters")?;
    if !has_named(filters, L7_FILTER) {
        filters.insert(0, Value::Message(l7_filter(types, settings)?));
    }
    if !has_named(filters, CODEC_FILTER) {
        let codec = types.pack(&types.message(CODEC)?);
        filters.push(Value::Message(http_filter(types, CODEC_FILTER, codec)?));
    }
    let packed = types.pack(&options);
    set_entry(cluster, FIELD, UPSTREAM_OPTIONS, packed);
    Some(())
}

fn has_alpn(types: &Types, cluster: &DynamicMessage) -> bool {
    let socket = child(cluster, "transport_socket");
    let context = socket.and_then(|socket| types.unpack(&child(&socket, "typed_config")?));
    let context = context.filter(|context| context.descriptor().full_name() == UPSTREAM_TLS);
    let common = context.and_then(|context| child(&context, "common_tls_context"));
    common.is_some_and(|common| common.has_field_by_name("alpn_protocols"))
}

fn has_named(filters: &[Value], name: &str) -> bool {
    filters.iter().filter_map(Value::as_message).any(|filter| text(filter, "name") == name)
}

fn http_filter(types: &Types, name: &str, config: DynamicMessage) -> Option<DynamicMessage> {
    named(types, "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter", name, config)
}

/// Returns a filter of a kind with a name and a configuration.
fn named(types: &Types, kind: &str, name: &str, config: DynamicMessage) -> Option<DynamicMessage> {
    let mut filter = types.message(kind)?;
    set_text(&mut filter, "name", name);
    filter.set_field_by_name("typed_config", Value::Message(config));
    Some(filter)
}

fn l7_filter(types: &Types, settings: &Settings) -> Option<DynamicMessage> {
    let policy = L7Policy {
        access_log_path: settings.access_log.clone(),
        denied_403_body: settings.denied_403_body.clone(),
    };
    http_filter(types, L7_FILTER, types.any(L7Policy::type_url(), policy.encode_to_vec()))
}

/// Adds Cilium's filters to the chains of a listener: the one of connections in front of the last one, and the one of
/// requests in front of the router. Returns whether a chain is of HTTP.
pub(super) fn filters(
    types: &Types,
    listener: &mut DynamicMessage,
    settings: &Settings,
    inject: bool,
) -> bool {
    let mut is_http = false;
    let default = listener.has_field_by_name("default_filter_chain");
    if let Some(chains) = list_mut(listener, "filter_chains") {
        for chain in chains.iter_mut().filter_map(Value::as_message_mut) {
            is_http |= chain_filters(types, chain, settings, inject).unwrap_or_default();
        }
    }
    if default && let Some(chain) = child_mut(listener, "default_filter_chain") {
        is_http |= chain_filters(types, chain, settings, inject).unwrap_or_default();
    }
    is_http
}

fn chain_filters(
    types: &Types,
    chain: &mut DynamicMessage,
    settings: &Settings,
    inject: bool,
) -> Option<bool> {
    let filters = list_mut(chain, "filters")?;
    let mut is_http = false;
    let mut position = None;
    for (index, filter) in filters.iter_mut().enumerate() {
        let filter = filter.as_message_mut()?;
        let config = child(filter, "typed_config").and_then(|any| types.unpack(&any));
        let Some(mut config) = config else { continue };
        match config.descriptor().full_name() {
            MANAGER => {
                is_http = true;
                position = Some(index);
                if inject {
                    manager_filters(types, &mut config, settings)?;
                    filter.set_field_by_name("typed_config", Value::Message(types.pack(&config)));
                }
            }
            TCP_PROXY => position = Some(index),
            _ => {}
        }
    }
    if let Some(position) = position.filter(|_| inject && !has_named(filters, NETWORK_FILTER)) {
        let config = types.any(NetworkFilter::type_url(), NetworkFilter::default().encode_to_vec());
        let filter = named(types, "envoy.config.listener.v3.Filter", NETWORK_FILTER, config)?;
        filters.insert(position, Value::Message(filter));
    }
    Some(is_http)
}

fn manager_filters(types: &Types, manager: &mut DynamicMessage, settings: &Settings) -> Option<()> {
    let filters = list_mut(manager, "http_filters")?;
    if has_named(filters, L7_FILTER) {
        return Some(());
    }
    let is_router =
        |filter: &Value| filter.as_message().is_some_and(|filter| text(filter, "name") == ROUTER_FILTER);
    let position = filters.iter().position(is_router).unwrap_or(filters.len());
    filters.insert(position, Value::Message(l7_filter(types, settings)?));
    Some(())
}

/// Gives a listener one socket for all workers, without SO_REUSEPORT.
pub(super) fn single_socket(listener: &mut DynamicMessage) {
    if let Some(value) = child_mut(listener, "enable_reuse_port") {
        value.set_field_by_name("value", Value::Bool(false));
    }
}

/// Sets the address of a listener: loopback of the enabled families.
pub(super) fn address(types: &Types, listener: &mut DynamicMessage, ips: &[&str], port: u16) -> Option<()> {
    let mut addresses = Vec::new();
    for ip in ips {
        let mut address = types.message("envoy.config.core.v3.Address")?;
        let socket = child_mut(&mut address, "socket_address")?;
        set_text(socket, "address", *ip);
        socket.set_field_by_name("port_value", Value::U32(port.into()));
        addresses.push(address);
    }
    let mut addresses = addresses.into_iter();
    listener.set_field_by_name("address", Value::Message(addresses.next()?));
    let mut additional = Vec::new();
    for address in addresses {
        let mut entry = types.message("envoy.config.listener.v3.AdditionalAddress")?;
        entry.set_field_by_name("address", Value::Message(address));
        additional.push(Value::Message(entry));
    }
    listener.set_field_by_name("additional_addresses", Value::List(additional));
    Some(())
}

/// Adds the filter with which Envoy knows identities, after the other filters of the listener.
pub(super) fn metadata(
    types: &Types,
    listener: &mut DynamicMessage,
    settings: &Settings,
    port: u16,
    metadata: Metadata,
) -> Option<()> {
    // The ingress has a policy of its own between the client and the backends.
    let ingress = if metadata.is_l7lb { settings.ingress } else { IngressAddresses::default() };
    let text = |address: Option<String>| address.unwrap_or_default();
    let message = BpfMetadata {
        bpf_root: settings.bpf_root.clone(),
        use_original_source_address: metadata.use_original_source,
        is_l7lb: metadata.is_l7lb,
        ipv4_source_address: text(ingress.ipv4.map(|ip| ip.to_string())),
        ipv6_source_address: text(ingress.ipv6.map(|ip| ip.to_string())),
        enforce_policy_on_l7lb: ingress.any(),
        proxy_id: port.into(),
        ipcache_name: IPCACHE.to_owned(),
        original_source_so_linger_time: settings.linger.filter(|_| metadata.is_http),
        ..BpfMetadata::default()
    };
    let config = types.any(BpfMetadata::type_url(), message.encode_to_vec());
    let filter = named(types, "envoy.config.listener.v3.ListenerFilter", METADATA_FILTER, config)?;
    let filters = list_mut(listener, "listener_filters")?;
    if !has_named(filters, METADATA_FILTER) {
        filters.push(Value::Message(filter));
    }
    Some(())
}

/// The properties of a listener that its metadata filter has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) is_l7lb: bool,
    pub(super) use_original_source: bool,
    pub(super) is_http: bool,
}

//! BGP.

use smol_str::SmolStr;

use super::{Condition, Conditions};
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// BGP instances of a set of nodes, with their peers.
    pub struct CiliumBGPClusterConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: BgpClusterConfigSpec,
        /// The observed state.
        always pub status: Conditions,
    }

    /// BGP instances, and the nodes that run them.
    pub struct BgpClusterConfigSpec {
        /// The selected nodes; all if missing.
        pub node_selector: Option<LabelSelector>,
        /// The BGP instances.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpInstance>,
    }

    /// A BGP instance.
    pub struct BgpInstance {
        /// Its name.
        always pub name: SmolStr,
        /// Its AS number.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// The port that it listens on; it does not listen if missing.
        pub local_port: Option<i32>,
        /// Its peers.
        pub peers: Vec<BgpPeer>,
    }

    /// A peer.
    pub struct BgpPeer {
        /// Its name.
        always pub name: SmolStr,
        /// Its address.
        pub peer_address: Option<SmolStr>,
        /// Its AS number; 0 accepts the one of its OPEN message.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// The auto-discovery of its address.
        pub auto_discovery: Option<BgpAutoDiscovery>,
        /// Its settings.
        pub peer_config_ref: Option<BgpPeerConfigRef>,
    }

    /// The auto-discovery of a peer's address.
    pub struct BgpAutoDiscovery {
        /// `DefaultGateway`.
        always pub mode: SmolStr,
        /// Discovery by the default route.
        pub default_gateway: Option<BgpDefaultGateway>,
    }

    /// A peer that is the next hop of the default route.
    pub struct BgpDefaultGateway {
        /// `ipv4` or `ipv6`.
        always pub address_family: SmolStr,
    }

    /// A peer's settings, by name.
    pub struct BgpPeerConfigRef {
        /// The name.
        always pub name: SmolStr,
    }

    /// BGP instances of a node. The object has the node's name.
    pub struct CiliumBGPNodeConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: BgpNodeSpec,
        /// The observed state.
        always pub status: BgpNodeStatus,
    }

    /// BGP instances of a node.
    pub struct BgpNodeSpec {
        /// The BGP instances.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpNodeInstance>,
    }

    /// A BGP instance of a node.
    pub struct BgpNodeInstance {
        /// Its name.
        always pub name: SmolStr,
        /// Its AS number.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// Its router id; derived from the node's address if missing.
        #[serde(rename = "routerID")]
        pub router_id: Option<SmolStr>,
        /// The port that it listens on; it does not listen if missing.
        pub local_port: Option<i32>,
        /// Its peers.
        pub peers: Vec<BgpNodePeer>,
    }

    /// A peer of a node.
    pub struct BgpNodePeer {
        /// Its name.
        always pub name: SmolStr,
        /// Its address.
        pub peer_address: Option<SmolStr>,
        /// Its AS number.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// The auto-discovery of its address.
        pub auto_discovery: Option<BgpAutoDiscovery>,
        /// The node's local address of the session.
        pub local_address: Option<SmolStr>,
        /// Its settings.
        pub peer_config_ref: Option<BgpPeerConfigRef>,
    }

    /// The status of the BGP instances of a node.
    pub struct BgpNodeStatus {
        /// The status of each instance.
        #[serde(rename = "bgpInstances")]
        pub instances: Vec<BgpInstanceStatus>,
        /// Conditions of the object.
        pub conditions: Vec<Condition>,
    }

    /// The status of a BGP instance.
    pub struct BgpInstanceStatus {
        /// Its name.
        always pub name: SmolStr,
        /// Its AS number.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// Its peers.
        pub peers: Vec<BgpPeerStatus>,
    }

    /// The status of a peer.
    pub struct BgpPeerStatus {
        /// Its name.
        always pub name: SmolStr,
        /// Its address.
        always pub peer_address: SmolStr,
        /// Its AS number.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// `established` and so on.
        pub peering_state: Option<SmolStr>,
        /// The negotiated timers.
        pub timers: Option<BgpTimersState>,
        /// The time at which it was established.
        pub established_time: Option<SmolStr>,
        /// Its routes by family.
        pub route_count: Vec<BgpRouteCount>,
    }

    /// The negotiated timers of a session.
    pub struct BgpTimersState {
        /// The hold time in seconds.
        pub applied_hold_time_seconds: Option<i32>,
        /// The keepalive interval in seconds.
        pub applied_keepalive_seconds: Option<i32>,
    }

    /// The routes of a family.
    pub struct BgpRouteCount {
        /// `ipv4`, `ipv6` and so on.
        always pub afi: SmolStr,
        /// `unicast` and so on.
        always pub safi: SmolStr,
        /// The number of received routes.
        pub received: Option<i32>,
        /// The number of advertised routes.
        pub advertised: Option<i32>,
    }

    /// Overrides for a node. The object has the node's name.
    pub struct CiliumBGPNodeConfigOverride {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The overrides.
        always pub spec: BgpNodeOverrideSpec,
    }

    /// Overrides for a node.
    pub struct BgpNodeOverrideSpec {
        /// The overrides of each instance.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpInstanceOverride>,
    }

    /// Overrides for a BGP instance.
    pub struct BgpInstanceOverride {
        /// Its name.
        always pub name: SmolStr,
        /// Its id.
        #[serde(rename = "routerID")]
        pub router_id: Option<SmolStr>,
        /// The port it listens on.
        pub local_port: Option<i32>,
        /// Its peers.
        pub peers: Vec<BgpPeerOverride>,
        /// Its AS number.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
    }

    /// Overrides for a peer.
    pub struct BgpPeerOverride {
        /// Its name.
        always pub name: SmolStr,
        /// The node's local address of the session.
        pub local_address: Option<SmolStr>,
        /// The node's local port of the session.
        pub local_port: Option<i32>,
    }

    /// Settings of peers.
    pub struct CiliumBGPPeerConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The settings.
        always pub spec: BgpPeerConfigSpec,
        /// The observed state.
        always pub status: Conditions,
    }

    /// Settings of a peer.
    pub struct BgpPeerConfigSpec {
        /// Its transport.
        pub transport: Option<BgpTransport>,
        /// Its timers.
        pub timers: Option<BgpTimers>,
        /// The secret with its password.
        pub auth_secret_ref: Option<SmolStr>,
        /// Graceful restart (RFC 4724).
        pub graceful_restart: Option<BgpGracefulRestart>,
        /// The TTL of eBGP multihop.
        #[serde(rename = "ebgpMultihop")]
        pub ebgp_multihop: Option<i32>,
        /// The address families of the session.
        pub families: Vec<BgpFamily>,
    }

    /// The transport of a peer.
    pub struct BgpTransport {
        /// Its port.
        pub peer_port: Option<i32>,
        /// The device with the source address.
        pub source_interface: Option<SmolStr>,
    }

    /// The timers of a peer.
    pub struct BgpTimers {
        /// The retry interval of connections, in seconds.
        pub connect_retry_time_seconds: Option<i32>,
        /// The hold time in seconds.
        pub hold_time_seconds: Option<i32>,
        /// The keepalive interval in seconds.
        pub keep_alive_time_seconds: Option<i32>,
    }

    /// Graceful restart (RFC 4724).
    pub struct BgpGracefulRestart {
        /// Whether it is enabled.
        always pub enabled: bool,
        /// The time for which routes are kept, in seconds.
        pub restart_time_seconds: Option<i32>,
    }

    /// An address family, with its advertisements.
    pub struct BgpFamily {
        /// `ipv4`, `ipv6` and so on.
        always pub afi: SmolStr,
        /// `unicast` and so on.
        always pub safi: SmolStr,
        /// The selected advertisements; none if missing.
        pub advertisements: Option<LabelSelector>,
    }

    /// Routes that are advertised to peers.
    pub struct CiliumBGPAdvertisement {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The routes.
        always pub spec: BgpAdvertisementSpec,
    }

    /// Routes that are advertised to peers.
    pub struct BgpAdvertisementSpec {
        /// The advertisements.
        always pub advertisements: Vec<BgpAdvertisement>,
    }

    /// An advertisement.
    pub struct BgpAdvertisement {
        /// `PodCIDR`, `CiliumPodIPPool`, `Service` or `Interface`.
        always pub advertisement_type: SmolStr,
        /// The kinds of addresses of services.
        pub service: Option<BgpService>,
        /// The device.
        pub interface: Option<BgpInterface>,
        /// The selected pools or services; none if missing.
        pub selector: Option<LabelSelector>,
        /// Attributes of the routes.
        pub attributes: Option<BgpAttributes>,
    }

    /// The kinds of addresses of services.
    pub struct BgpService {
        /// `LoadBalancerIP`, `ClusterIP`, `ExternalIP`.
        pub addresses: Vec<SmolStr>,
        /// The length of aggregated IPv4 prefixes.
        #[serde(rename = "aggregationLengthIPv4")]
        pub aggregation_length_ipv4: Option<i32>,
        /// The length of aggregated IPv6 prefixes.
        #[serde(rename = "aggregationLengthIPv6")]
        pub aggregation_length_ipv6: Option<i32>,
    }

    /// A device whose addresses are advertised.
    pub struct BgpInterface {
        /// Its name.
        always pub name: SmolStr,
    }

    /// Attributes of routes.
    pub struct BgpAttributes {
        /// Communities.
        pub communities: Option<BgpCommunities>,
        /// LOCAL_PREF.
        pub local_preference: Option<i64>,
    }

    /// BGP communities of routes.
    pub struct BgpCommunities {
        /// Standard communities (RFC 1997).
        pub standard: Vec<SmolStr>,
        /// Well-known communities by name.
        pub well_known: Vec<SmolStr>,
        /// Large communities (RFC 8092).
        pub large: Vec<SmolStr>,
    }
}

resource!(
    CiliumBGPAdvertisement,
    CiliumBGPClusterConfig,
    CiliumBGPNodeConfig,
    CiliumBGPNodeConfigOverride,
    CiliumBGPPeerConfig,
);

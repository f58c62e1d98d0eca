//! BGP.

use smol_str::SmolStr;

use super::{Condition, Conditions};
use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Routers of some nodes and their peers.
    pub struct CiliumBGPClusterConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: BgpClusterConfigSpec,
        /// How it is.
        always pub status: Conditions,
    }

    /// Routers and the nodes that have them.
    pub struct BgpClusterConfigSpec {
        /// The nodes; all without it.
        pub node_selector: Option<LabelSelector>,
        /// The routers.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpInstance>,
    }

    /// A router.
    pub struct BgpInstance {
        /// Its name.
        always pub name: SmolStr,
        /// The number of its system.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// The port it listens on; none without it.
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
        /// The number of its system; 0 for the one of its OPEN message.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// How its address is found.
        pub auto_discovery: Option<BgpAutoDiscovery>,
        /// Its settings.
        pub peer_config_ref: Option<BgpPeerConfigRef>,
    }

    /// How a peer's address is found.
    pub struct BgpAutoDiscovery {
        /// `DefaultGateway`.
        always pub mode: SmolStr,
        /// By the default route.
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

    /// Routers of a node; its name is the node's.
    pub struct CiliumBGPNodeConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: BgpNodeSpec,
        /// How it is.
        always pub status: BgpNodeStatus,
    }

    /// Routers of a node.
    pub struct BgpNodeSpec {
        /// The routers.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpNodeInstance>,
    }

    /// A router of a node.
    pub struct BgpNodeInstance {
        /// Its name.
        always pub name: SmolStr,
        /// The number of its system.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// Its id; one is made of the node's address without it.
        #[serde(rename = "routerID")]
        pub router_id: Option<SmolStr>,
        /// The port it listens on; none without it.
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
        /// The number of its system.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// How its address is found.
        pub auto_discovery: Option<BgpAutoDiscovery>,
        /// The node's address towards it.
        pub local_address: Option<SmolStr>,
        /// Its settings.
        pub peer_config_ref: Option<BgpPeerConfigRef>,
    }

    /// How the routers of a node are.
    pub struct BgpNodeStatus {
        /// Each of them.
        #[serde(rename = "bgpInstances")]
        pub instances: Vec<BgpInstanceStatus>,
        /// All of them.
        pub conditions: Vec<Condition>,
    }

    /// How a router is.
    pub struct BgpInstanceStatus {
        /// Its name.
        always pub name: SmolStr,
        /// The number of its system.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// Its peers.
        pub peers: Vec<BgpPeerStatus>,
    }

    /// How a peer is.
    pub struct BgpPeerStatus {
        /// Its name.
        always pub name: SmolStr,
        /// Its address.
        always pub peer_address: SmolStr,
        /// The number of its system.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// `established` and so on.
        pub peering_state: Option<SmolStr>,
        /// The times that both agreed on.
        pub timers: Option<BgpTimersState>,
        /// Since when it is established.
        pub established_time: Option<SmolStr>,
        /// Its routes by family.
        pub route_count: Vec<BgpRouteCount>,
    }

    /// The times that both sides agreed on.
    pub struct BgpTimersState {
        /// Silence after which the other one is gone.
        pub applied_hold_time_seconds: Option<i32>,
        /// Seconds between signs of life.
        pub applied_keepalive_seconds: Option<i32>,
    }

    /// The routes of a family.
    pub struct BgpRouteCount {
        /// `ipv4`, `ipv6` and so on.
        always pub afi: SmolStr,
        /// `unicast` and so on.
        always pub safi: SmolStr,
        /// How many it sent.
        pub received: Option<i32>,
        /// How many it was sent.
        pub advertised: Option<i32>,
    }

    /// Overrides for a node; its name is the node's.
    pub struct CiliumBGPNodeConfigOverride {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The overrides.
        always pub spec: BgpNodeOverrideSpec,
    }

    /// Overrides for a node.
    pub struct BgpNodeOverrideSpec {
        /// Of which routers.
        #[serde(rename = "bgpInstances")]
        always pub instances: Vec<BgpInstanceOverride>,
    }

    /// Overrides for a router.
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
        /// The number of its system.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
    }

    /// Overrides for a peer.
    pub struct BgpPeerOverride {
        /// Its name.
        always pub name: SmolStr,
        /// The node's address towards it.
        pub local_address: Option<SmolStr>,
        /// The node's port towards it.
        pub local_port: Option<i32>,
    }

    /// Settings of peers.
    pub struct CiliumBGPPeerConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The settings.
        always pub spec: BgpPeerConfigSpec,
        /// How it is.
        always pub status: Conditions,
    }

    /// Settings of a peer.
    pub struct BgpPeerConfigSpec {
        /// How it is reached.
        pub transport: Option<BgpTransport>,
        /// Its times.
        pub timers: Option<BgpTimers>,
        /// The secret with its password.
        pub auth_secret_ref: Option<SmolStr>,
        /// Whether its routes outlive a restart.
        pub graceful_restart: Option<BgpGracefulRestart>,
        /// The maximum distance in hops.
        #[serde(rename = "ebgpMultihop")]
        pub ebgp_multihop: Option<i32>,
        /// The families that are announced to it.
        pub families: Vec<BgpFamily>,
    }

    /// How a peer is reached.
    pub struct BgpTransport {
        /// Its port.
        pub peer_port: Option<i32>,
        /// The device whose address is the source.
        pub source_interface: Option<SmolStr>,
    }

    /// The times of a peer.
    pub struct BgpTimers {
        /// Seconds between tries to connect.
        pub connect_retry_time_seconds: Option<i32>,
        /// Silence after which it is gone.
        pub hold_time_seconds: Option<i32>,
        /// Seconds between signs of life.
        pub keep_alive_time_seconds: Option<i32>,
    }

    /// Whether routes outlive a restart.
    pub struct BgpGracefulRestart {
        /// Whether they do.
        always pub enabled: bool,
        /// How long they do.
        pub restart_time_seconds: Option<i32>,
    }

    /// An address family, and what is advertised of it.
    pub struct BgpFamily {
        /// `ipv4`, `ipv6` and so on.
        always pub afi: SmolStr,
        /// `unicast` and so on.
        always pub safi: SmolStr,
        /// The advertisements; none without it.
        pub advertisements: Option<LabelSelector>,
    }

    /// Routes that are advertised to peers.
    pub struct CiliumBGPAdvertisement {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The routes.
        always pub spec: BgpAdvertisementSpec,
    }

    /// Routes that are advertised to peers.
    pub struct BgpAdvertisementSpec {
        /// Each kind of it.
        always pub advertisements: Vec<BgpAdvertisement>,
    }

    /// A kind of routes.
    pub struct BgpAdvertisement {
        /// `PodCIDR`, `CiliumPodIPPool`, `Service` or `Interface`.
        always pub advertisement_type: SmolStr,
        /// Which addresses of services.
        pub service: Option<BgpService>,
        /// Which device.
        pub interface: Option<BgpInterface>,
        /// Which pools or services; none without it.
        pub selector: Option<LabelSelector>,
        /// Attributes of the routes.
        pub attributes: Option<BgpAttributes>,
    }

    /// Which addresses of services.
    pub struct BgpService {
        /// `LoadBalancerIP`, `ClusterIP`, `ExternalIP`.
        pub addresses: Vec<SmolStr>,
        /// How long the IPv4 prefixes are that they are put together to.
        #[serde(rename = "aggregationLengthIPv4")]
        pub aggregation_length_ipv4: Option<i32>,
        /// How long the IPv6 prefixes are that they are put together to.
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
        /// How much they are preferred.
        pub local_preference: Option<i64>,
    }

    /// Communities of routes.
    pub struct BgpCommunities {
        /// Those of 4 bytes (RFC 1997).
        pub standard: Vec<SmolStr>,
        /// The same by name.
        pub well_known: Vec<SmolStr>,
        /// Those of 12 bytes (RFC 8092).
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

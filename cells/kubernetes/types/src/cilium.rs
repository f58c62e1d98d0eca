//! Kinds of `cilium.io`.

mod announcement;
mod bgp;
mod cloud;
mod endpoint;
mod envoy;
mod gateway;
mod identity;
mod node;
mod policy;
mod pool;
mod redirect;
mod small;

pub use announcement::{CiliumL2AnnouncementPolicy, L2AnnouncementPolicySpec};
pub use bgp::{
    BgpAdvertisement, BgpAdvertisementSpec, BgpAttributes, BgpAutoDiscovery, BgpClusterConfigSpec,
    BgpCommunities, BgpDefaultGateway, BgpFamily, BgpGracefulRestart, BgpInstance, BgpInstanceOverride,
    BgpInstanceStatus, BgpInterface, BgpNodeInstance, BgpNodeOverrideSpec, BgpNodePeer, BgpNodeSpec,
    BgpNodeStatus, BgpPeer, BgpPeerConfigRef, BgpPeerConfigSpec, BgpPeerOverride, BgpPeerStatus,
    BgpRouteCount, BgpService, BgpTimers, BgpTimersState, BgpTransport, CiliumBGPAdvertisement,
    CiliumBGPClusterConfig, CiliumBGPNodeConfig, CiliumBGPNodeConfigOverride, CiliumBGPPeerConfig,
};
pub use cloud::{
    AlibabaCloudEni, AlibabaCloudSpec, AlibabaCloudStatus, AlibabaCloudVpc, AlibabaCloudVswitch, AwsSubnet,
    AwsVpc, AzureAddress, AzureInterface, AzureSpec, AzureStatus, AzureSubnet, Eni, EniSpec, EniStatus,
    PrivateIpSet,
};
pub use endpoint::{
    AddressPair, AllowedIdentity, CiliumEndpoint, CiliumEndpointSlice, ControllerConfiguration,
    ControllerRuns, ControllerStatus, CoreCiliumEndpoint, EncryptionSpec, EndpointHealth,
    EndpointIdentifiers, EndpointIdentity, EndpointNetworking, EndpointPolicy, EndpointPolicyDirection,
    EndpointStatus, EndpointStatusChange, NamedPort,
};
pub use envoy::{
    BackendService, CiliumClusterwideEnvoyConfig, CiliumEnvoyConfig, EnvoyConfigSpec, ServiceListener,
};
pub use gateway::{
    CiliumGatewayClassConfig, GatewayClassConfigSpec, GatewayService, GrpcWebTranslation, HttpOptions,
};
pub use identity::CiliumIdentity;
pub use node::{
    AllocationIp, CiliumNode, IpamPodCidr, IpamPoolAllocation, IpamPoolDemand, IpamPoolRequest, IpamPools,
    IpamSpec, IpamStatus, NodeAddress, NodeSpec, NodeStatus, OperatorStatus,
};
pub(crate) use policy::show_rules;
pub use policy::{
    CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, PolicyCondition, PolicyNodeStatus, PolicyStatus,
};
pub use pool::{
    CiliumLoadBalancerIPPool, CiliumPodIPPool, IpBlock, LoadBalancerIpPoolSpec, PodIpPoolSpec, PoolFamily,
};
pub use redirect::{
    AddressMatcher, CiliumLocalRedirectPolicy, LocalRedirectPolicySpec, LocalRedirectPolicyStatus, PortInfo,
    RedirectBackend, RedirectFrontend, ServiceMatcher,
};
pub use small::{
    CidrGroupSpec, CiliumCIDRGroup, CiliumDatapathPlugin, CiliumEgressGatewayPolicy, CiliumNodeConfig,
    Condition, Conditions, DatapathPluginSpec, EgressGateway, EgressGatewayPolicySpec, EgressRule,
    NodeConfigSpec,
};

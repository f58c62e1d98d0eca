//! Endpoints of all nodes.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{ObjectMeta, StringMap};

slim! {
    /// An endpoint; its name and namespace are its pod's.
    pub struct CiliumEndpoint {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// How it is.
        always pub status: EndpointStatus,
    }

    /// How an endpoint is.
    kebab pub struct EndpointStatus {
        /// Its number on its node.
        pub id: i64,
        /// Its controllers.
        pub controllers: Vec<ControllerStatus>,
        /// Its external identifiers.
        pub external_identifiers: Option<EndpointIdentifiers>,
        /// Its health.
        pub health: Option<EndpointHealth>,
        /// Its security identity.
        pub identity: Option<EndpointIdentity>,
        /// Its log.
        pub log: Vec<EndpointStatusChange>,
        /// Its addresses.
        pub networking: Option<EndpointNetworking>,
        /// Its node's key.
        always pub encryption: EncryptionSpec,
        /// Its policy.
        pub policy: Option<EndpointPolicy>,
        /// `ready` and so on.
        pub state: SmolStr,
        /// The ports that have names.
        pub named_ports: Vec<NamedPort>,
        /// The service account of its pod.
        pub service_account: SmolStr,
    }

    /// Something that is done again and again.
    pub struct ControllerStatus {
        /// Its name.
        pub name: SmolStr,
        /// When it is done.
        pub configuration: Option<ControllerConfiguration>,
        /// How it went.
        always pub status: ControllerRuns,
        /// Its id.
        pub uuid: SmolStr,
    }

    /// When something is done again.
    kebab pub struct ControllerConfiguration {
        /// Whether it is when it failed.
        pub error_retry: bool,
        /// How long after a failure, at first, in nanoseconds.
        pub error_retry_base: i64,
        /// How long after it went well, in nanoseconds.
        pub interval: i64,
    }

    /// How something went that is done again and again.
    kebab pub struct ControllerRuns {
        /// How often it failed since it went well.
        pub consecutive_failure_count: i64,
        /// How often it failed.
        pub failure_count: i64,
        /// Why it failed last.
        pub last_failure_msg: SmolStr,
        /// When it failed last.
        pub last_failure_timestamp: SmolStr,
        /// When it went well last.
        pub last_success_timestamp: SmolStr,
        /// How often it went well.
        pub success_count: i64,
    }

    /// External identifiers of an endpoint.
    kebab pub struct EndpointIdentifiers {
        /// Container and interface.
        pub cni_attachment_id: SmolStr,
        /// Container.
        pub container_id: SmolStr,
        /// Name of the container.
        pub container_name: SmolStr,
        /// Docker's endpoint.
        pub docker_endpoint_id: SmolStr,
        /// Docker's network.
        pub docker_network_id: SmolStr,
        /// Namespace of the pod.
        pub k8s_namespace: SmolStr,
        /// Name of the pod.
        pub k8s_pod_name: SmolStr,
        /// Both.
        pub pod_name: SmolStr,
    }

    /// The health of an endpoint.
    pub struct EndpointHealth {
        /// Of its programs.
        pub bpf: SmolStr,
        /// Whether it is connected.
        pub connected: bool,
        /// Of all.
        pub overall_health: SmolStr,
        /// Of its policy.
        pub policy: SmolStr,
    }

    /// A security identity with its labels.
    pub struct EndpointIdentity {
        /// Its number.
        pub id: i64,
        /// Its labels with their sources: `k8s:app=web`.
        pub labels: Vec<SmolStr>,
    }

    /// Something that happened to an endpoint.
    pub struct EndpointStatusChange {
        /// `OK` or `Failed`.
        pub code: SmolStr,
        /// The code of the last change.
        pub message: SmolStr,
        /// How the endpoint was then.
        pub state: SmolStr,
        /// When it was.
        pub timestamp: SmolStr,
    }

    /// The addresses of an endpoint.
    pub struct EndpointNetworking {
        /// Its own.
        always pub addressing: Vec<AddressPair>,
        /// Its node's.
        #[serde(rename = "node")]
        pub node_ip: SmolStr,
    }

    /// An address of each family.
    pub struct AddressPair {
        /// The IPv4 one.
        pub ipv4: SmolStr,
        /// The IPv6 one.
        pub ipv6: SmolStr,
    }

    /// A key of a node.
    pub struct EncryptionSpec {
        /// Its number; 0 for no encryption.
        pub key: i64,
    }

    /// The policy of an endpoint.
    pub struct EndpointPolicy {
        /// For traffic to the endpoint.
        pub ingress: Option<EndpointPolicyDirection>,
        /// For traffic from the endpoint.
        pub egress: Option<EndpointPolicyDirection>,
    }

    /// The policy of an endpoint in one direction.
    pub struct EndpointPolicyDirection {
        /// Whether traffic that is not allowed is dropped.
        always pub enforcing: bool,
        /// Allowed peers.
        pub allowed: Vec<AllowedIdentity>,
        /// Denied peers.
        pub denied: Vec<AllowedIdentity>,
        /// Peers that will no longer be allowed.
        pub removing: Vec<AllowedIdentity>,
        /// Peers that will be allowed.
        pub adding: Vec<AllowedIdentity>,
        /// `enforcing`, `disabled` and so on.
        pub state: SmolStr,
    }

    /// A peer and a port.
    kebab pub struct AllowedIdentity {
        /// Its security identity.
        pub identity: u64,
        /// Its labels.
        pub identity_labels: StringMap,
        /// The port.
        pub dest_port: u16,
        /// The protocol's number.
        pub protocol: u8,
    }

    /// A port that has a name.
    pub struct NamedPort {
        /// Its name.
        pub name: SmolStr,
        /// Its number.
        pub port: u16,
        /// Its protocol.
        pub protocol: SmolStr,
    }

    /// Some endpoints of a namespace.
    pub struct CiliumEndpointSlice {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The namespace.
        pub namespace: SmolStr,
        /// The endpoints.
        always pub endpoints: Vec<CoreCiliumEndpoint>,
    }

    /// An endpoint as other nodes see it.
    kebab pub struct CoreCiliumEndpoint {
        /// Its name.
        pub name: SmolStr,
        /// The number of its security identity.
        #[serde(rename = "id")]
        pub identity_id: i64,
        /// The uid of its pod.
        pub pod_uid: SmolStr,
        /// Its addresses.
        pub networking: Option<EndpointNetworking>,
        /// Its node's key.
        always pub encryption: EncryptionSpec,
        /// The ports that have names.
        pub named_ports: Vec<NamedPort>,
        /// The service account of its pod.
        pub service_account: SmolStr,
    }
}

resource!(CiliumEndpoint, CiliumEndpointSlice);

//! Endpoints of the cluster.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::{SmallList, slim};
use crate::{ObjectMeta, StringMap, UnknownMembers};

slim! {
    /// An endpoint, with the name and namespace of its pod.
    pub struct CiliumEndpoint {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The observed state.
        always pub status: EndpointStatus,
    }

    /// The status of an endpoint.
    kebab pub struct EndpointStatus {
        /// Its node-local id.
        pub id: i64,
        /// Its controllers.
        pub controllers: Vec<ControllerStatus>,
        /// Its external identifiers.
        pub external_identifiers: Option<Box<EndpointIdentifiers>>,
        /// Its health.
        pub health: Option<Box<EndpointHealth>>,
        /// Its security identity.
        pub identity: Option<EndpointIdentity>,
        /// Its log.
        pub log: Vec<EndpointStatusChange>,
        /// Its addresses.
        pub networking: Option<EndpointNetworking>,
        /// The encryption key of its node.
        always pub encryption: EncryptionSpec,
        /// Its policy.
        pub policy: Option<Box<EndpointPolicy>>,
        /// `ready` and so on.
        pub state: SmolStr,
        /// Its named ports.
        pub named_ports: Vec<NamedPort>,
        /// The service account of its pod.
        pub service_account: SmolStr,
    }

    /// A controller: a periodic task.
    pub struct ControllerStatus {
        /// Its name.
        pub name: SmolStr,
        /// Its configuration.
        pub configuration: Option<ControllerConfiguration>,
        /// Its runs.
        always pub status: ControllerRuns,
        /// Its id.
        pub uuid: SmolStr,
    }

    /// The configuration of a controller.
    kebab pub struct ControllerConfiguration {
        /// Whether it is retried after an error.
        pub error_retry: bool,
        /// The minimum backoff in nanoseconds.
        pub error_retry_base: i64,
        /// The interval in nanoseconds.
        pub interval: i64,
    }

    /// The runs of a controller.
    kebab pub struct ControllerRuns {
        /// The number of failures since the last success.
        pub consecutive_failure_count: i64,
        /// The number of failures.
        pub failure_count: i64,
        /// The error of the last failure.
        pub last_failure_msg: SmolStr,
        /// The time of the last failure.
        pub last_failure_timestamp: SmolStr,
        /// The time of the last success.
        pub last_success_timestamp: SmolStr,
        /// The number of successes.
        pub success_count: i64,
    }

    /// External identifiers of an endpoint.
    kebab pub struct EndpointIdentifiers {
        /// The id of the CNI attachment: container and interface.
        pub cni_attachment_id: SmolStr,
        /// Container.
        pub container_id: SmolStr,
        /// Name of the container.
        pub container_name: SmolStr,
        /// The id of Docker's endpoint.
        pub docker_endpoint_id: SmolStr,
        /// The id of Docker's network.
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

    /// An entry of an endpoint's status log.
    pub struct EndpointStatusChange {
        /// `OK` or `Failed`.
        pub code: SmolStr,
        /// The code of the last change.
        pub message: SmolStr,
        /// The state of the endpoint.
        pub state: SmolStr,
        /// The time.
        pub timestamp: SmolStr,
    }

    /// The addresses of an endpoint.
    pub struct EndpointNetworking {
        /// Its own.
        always pub addressing: SmallList<AddressPair>,
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

    /// The encryption key of a node.
    pub struct EncryptionSpec {
        /// The index of the key; 0 for no encryption.
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
        /// Whether policy is enforced.
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

    /// An allowed or denied peer with a port.
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

    /// A named port.
    pub struct NamedPort {
        /// Its name.
        pub name: SmolStr,
        /// Its number.
        pub port: u16,
        /// Its protocol.
        pub protocol: SmolStr,
    }

    /// A batch of endpoints of a namespace.
    pub struct CiliumEndpointSlice {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The namespace.
        pub namespace: SmolStr,
        /// The endpoints.
        always pub endpoints: Vec<CoreCiliumEndpoint>,
        /// Members of another version.
        unknown pub unknown: UnknownMembers,
    }

    /// The fields of an endpoint that other nodes need.
    kebab pub struct CoreCiliumEndpoint {
        /// Its name.
        pub name: SmolStr,
        /// The id of its security identity.
        #[serde(rename = "id")]
        pub identity_id: i64,
        /// The uid of its pod.
        pub pod_uid: SmolStr,
        /// Its addresses.
        pub networking: Option<EndpointNetworking>,
        /// The encryption key of its node.
        always pub encryption: EncryptionSpec,
        /// Its named ports.
        pub named_ports: Vec<NamedPort>,
        /// The service account of its pod.
        pub service_account: SmolStr,
    }
}

resource!(CiliumEndpoint, CiliumEndpointSlice keeps unknown);

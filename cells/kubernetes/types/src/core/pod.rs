//! Pods.

use smol_str::SmolStr;

use crate::ObjectMeta;
use crate::Time;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// A pod.
    pub struct Pod {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: PodSpec,
        /// Its specification.
        always pub status: PodStatus,
    }

    /// The desired state of a pod.
    pub struct PodSpec {
        /// Containers that run before the others.
        pub init_containers: Vec<Container>,
        /// Its containers.
        always pub containers: Vec<Container>,
        /// The service account it runs as.
        pub service_account_name: SmolStr,
        /// The node it is bound to; empty if it is bound to none.
        pub node_name: SmolStr,
        /// Whether it lives in the node's network namespace.
        pub host_network: bool,
    }

    /// A container.
    pub struct Container {
        /// Its name.
        always pub name: SmolStr,
        /// Its image.
        pub image: SmolStr,
        /// The ports that it declares.
        pub ports: Vec<ContainerPort>,
        /// Its mounts.
        pub volume_mounts: Vec<VolumeMount>,
    }

    /// A port of a container.
    pub struct ContainerPort {
        /// The name that policies and services may use.
        pub name: SmolStr,
        /// The node's port that leads to it; 0 for none.
        pub host_port: u16,
        /// Its number.
        always pub container_port: u16,
        /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
        pub protocol: SmolStr,
        /// The node's address that the node's port is on; empty for all.
        #[serde(rename = "hostIP")]
        pub host_ip: SmolStr,
    }

    /// A mount of a container.
    pub struct VolumeMount {
        /// Where.
        always pub mount_path: SmolStr,
    }

    /// The observed state of a pod.
    pub struct PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pub phase: SmolStr,
        /// How it is.
        pub conditions: Vec<PodCondition>,
        /// Its node's address.
        #[serde(rename = "hostIP")]
        pub host_ip: SmolStr,
        /// Its first address.
        #[serde(rename = "podIP")]
        pub pod_ip: SmolStr,
        /// Its addresses, one a family at most.
        #[serde(rename = "podIPs")]
        pub pod_ips: Vec<PodIp>,
        /// When its node took it.
        pub start_time: Option<Time>,
        /// How its containers are.
        pub container_statuses: Vec<ContainerStatus>,
        /// `Guaranteed`, `Burstable` or `BestEffort`.
        pub qos_class: SmolStr,
    }

    /// How a container is.
    pub struct ContainerStatus {
        /// The state of the container.
        always pub state: ContainerState,
        /// The id that its runtime assigned, with the runtime's name in front.
        #[serde(rename = "containerID")]
        pub container_id: Box<str>,
    }

    /// The state of a container.
    pub struct ContainerState {
        /// It runs.
        pub running: Option<ContainerStateRunning>,
    }

    /// A container that runs.
    pub struct ContainerStateRunning {
        /// Since when.
        always pub started_at: Option<Time>,
    }

    /// How a pod is.
    pub struct PodCondition {
        /// `Ready` and so on.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// When it was last probed.
        always pub last_probe_time: Option<Time>,
        /// Since when it is so.
        always pub last_transition_time: Option<Time>,
        /// Why, in one word.
        pub reason: Box<str>,
        /// Why, in words.
        pub message: Box<str>,
    }

    /// An address of a pod.
    pub struct PodIp {
        /// The address.
        pub ip: SmolStr,
    }
}

resource!(Pod);

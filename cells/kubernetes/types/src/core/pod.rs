//! Pods.

use smol_str::SmolStr;

use crate::ObjectMeta;
use crate::Time;
use crate::resource::resource;
use crate::slim::slim;

slim! {
    /// A pod.
    pub struct Pod {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The desired state.
        always pub spec: PodSpec,
        /// The observed state.
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
        /// Whether it uses the node's network namespace.
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
        /// The host port; 0 for none.
        pub host_port: u16,
        /// Its number.
        always pub container_port: u16,
        /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
        pub protocol: SmolStr,
        /// The node's address of the host port; empty for all.
        #[serde(rename = "hostIP")]
        pub host_ip: SmolStr,
    }

    /// A mount of a container.
    pub struct VolumeMount {
        /// The path.
        always pub mount_path: SmolStr,
    }

    /// The observed state of a pod.
    pub struct PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pub phase: SmolStr,
        /// The conditions.
        pub conditions: Vec<PodCondition>,
        /// Its node's address.
        #[serde(rename = "hostIP")]
        pub host_ip: SmolStr,
        /// Its first address.
        #[serde(rename = "podIP")]
        pub pod_ip: SmolStr,
        /// Its addresses, at most one per family.
        #[serde(rename = "podIPs")]
        pub pod_ips: Vec<PodIp>,
        /// The time at which its node accepted it.
        pub start_time: Option<Time>,
        /// The status of its containers.
        pub container_statuses: Vec<ContainerStatus>,
        /// `Guaranteed`, `Burstable` or `BestEffort`.
        pub qos_class: SmolStr,
    }

    /// The status of a container.
    pub struct ContainerStatus {
        /// The state of the container.
        always pub state: ContainerState,
        /// Its id, with the runtime's name as a prefix.
        #[serde(rename = "containerID")]
        pub container_id: Box<str>,
    }

    /// The state of a container.
    pub struct ContainerState {
        /// Set if it is running.
        pub running: Option<ContainerStateRunning>,
    }

    /// The state of a running container.
    pub struct ContainerStateRunning {
        /// The time at which it was started.
        always pub started_at: Option<Time>,
    }

    /// A condition of a pod.
    pub struct PodCondition {
        /// `Ready` and so on.
        always pub r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        always pub status: SmolStr,
        /// The time of the last probe.
        always pub last_probe_time: Option<Time>,
        /// The time of the last transition.
        always pub last_transition_time: Option<Time>,
        /// The reason, as one CamelCase word.
        pub reason: Box<str>,
        /// A human-readable message.
        pub message: Box<str>,
    }

    /// An address of a pod.
    pub struct PodIp {
        /// The address.
        pub ip: SmolStr,
    }
}

resource!(Pod);

//! Configuration of Envoy.

use serde_json::Value;
use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Resources of Envoy, and services that are led to it, of one namespace.
    pub struct CiliumEnvoyConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Resources and services.
        always pub spec: EnvoyConfigSpec,
    }

    /// The same, of all namespaces.
    pub struct CiliumClusterwideEnvoyConfig {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// Resources and services.
        always pub spec: EnvoyConfigSpec,
    }

    /// Resources of Envoy, and services that are led to it.
    pub struct EnvoyConfigSpec {
        /// Services that are led to a listener.
        pub services: Vec<ServiceListener>,
        /// Services whose backends Envoy gets, while their traffic is not redirected.
        pub backend_services: Vec<BackendService>,
        /// The resources, as Envoy takes them, each with its `@type`.
        pub resources: Vec<Value>,
        /// Nodes that have it; all without it.
        pub node_selector: Option<LabelSelector>,
    }

    /// A service that is led to a listener.
    pub struct ServiceListener {
        /// Its name.
        always pub name: SmolStr,
        /// Its namespace.
        always pub namespace: SmolStr,
        /// Its ports; all without any.
        pub ports: Vec<u16>,
        /// The listener; the first of the resources without it.
        always pub listener: SmolStr,
    }

    /// A service whose backends Envoy gets.
    pub struct BackendService {
        /// Its name.
        always pub name: SmolStr,
        /// Its namespace.
        always pub namespace: SmolStr,
        /// Its ports, by number or name; all without any.
        #[serde(rename = "number")]
        pub ports: Vec<SmolStr>,
    }
}

resource!(CiliumEnvoyConfig, CiliumClusterwideEnvoyConfig);

//! Configuration of Envoy.

use serde_json::Value;
use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::slim;
use crate::{LabelSelector, ObjectMeta};

slim! {
    /// Envoy resources, and services that are redirected to Envoy, in a namespace.
    pub struct CiliumEnvoyConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Resources and services.
        always pub spec: EnvoyConfigSpec,
    }

    /// Envoy resources, and services that are redirected to Envoy, cluster-wide.
    pub struct CiliumClusterwideEnvoyConfig {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Resources and services.
        always pub spec: EnvoyConfigSpec,
    }

    /// Envoy resources, and services that are redirected to Envoy.
    pub struct EnvoyConfigSpec {
        /// Services that are redirected to a listener.
        pub services: Vec<ServiceListener>,
        /// Services with backends that Envoy receives, without redirection of their traffic.
        pub backend_services: Vec<BackendService>,
        /// The xDS resources, each with its `@type`.
        pub resources: Vec<Value>,
        /// The selected nodes; all if missing.
        pub node_selector: Option<LabelSelector>,
    }

    /// A service that is redirected to a listener.
    pub struct ServiceListener {
        /// Its name.
        always pub name: SmolStr,
        /// Its namespace.
        always pub namespace: SmolStr,
        /// Its ports; empty for all.
        pub ports: Vec<u16>,
        /// The listener; empty for the first one of the resources.
        always pub listener: SmolStr,
    }

    /// A service with backends that Envoy receives.
    pub struct BackendService {
        /// Its name.
        always pub name: SmolStr,
        /// Its namespace.
        always pub namespace: SmolStr,
        /// Its ports, by number or name; empty for all.
        #[serde(rename = "number")]
        pub ports: Vec<SmolStr>,
    }
}

resource!(CiliumEnvoyConfig, CiliumClusterwideEnvoyConfig);

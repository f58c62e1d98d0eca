//! EndpointSlices: subsets of a service's backends.

use smol_str::SmolStr;

use crate::resource::resource;
use crate::slim::{Rare, SmallList, slim};
use crate::{ObjectMeta, StringMap};

slim! {
    /// A subset of a service's backends.
    pub struct EndpointSlice {
        /// Standard object metadata; the label `kubernetes.io/service-name` names the service.
        always pub metadata: ObjectMeta,
        /// `IPv4`, `IPv6` or `FQDN`.
        always pub address_type: SmolStr,
        /// The backends.
        always pub endpoints: Vec<Endpoint>,
        /// The ports that each of them has.
        always pub ports: SmallList<EndpointPort>,
    }

    /// A backend.
    pub struct Endpoint {
        /// Its addresses; only the first one is used.
        always pub addresses: SmallList<SmolStr>,
        /// The conditions.
        always pub conditions: EndpointConditions,
        /// Its name.
        pub hostname: Rare<SmolStr>,
        /// Topology labels of its node; deprecated.
        pub deprecated_topology: Rare<StringMap>,
        /// Its node.
        pub node_name: Option<SmolStr>,
        /// Its zone.
        pub zone: Option<SmolStr>,
        /// The zones and nodes whose clients should use it.
        pub hints: Rare<EndpointHints>,
    }

    /// The conditions of a backend. Missing ones are true, except `terminating`.
    pub struct EndpointConditions {
        /// Whether it takes new connections.
        pub ready: Option<bool>,
        /// Whether it serves, even if it is terminating.
        pub serving: Option<bool>,
        /// Whether it is terminating.
        pub terminating: Option<bool>,
    }

    /// The zones and nodes whose clients should use a backend.
    pub struct EndpointHints {
        /// Clients of these zones.
        pub for_zones: Vec<ForZone>,
        /// Clients on these nodes.
        pub for_nodes: Vec<ForNode>,
    }

    /// A zone whose clients should use a backend.
    pub struct ForZone {
        /// Its name.
        always pub name: SmolStr,
    }

    /// A node whose clients should use a backend.
    pub struct ForNode {
        /// Its name.
        always pub name: SmolStr,
    }

    /// A port of backends.
    pub struct EndpointPort {
        /// Its name, that of the service's port.
        pub name: Option<SmolStr>,
        /// Its protocol; none means `TCP`.
        pub protocol: Option<SmolStr>,
        /// Its number; none means all ports.
        pub port: Option<u16>,
    }
}

resource!(EndpointSlice);

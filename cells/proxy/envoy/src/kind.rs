//! The types of resources.

use envoy_api::{Name as _, cilium, cluster, listener};

/// A type of resources, served by a service of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Listeners.
    Listeners,
    /// Routes of HTTP.
    Routes,
    /// Clusters.
    Clusters,
    /// Addresses of clusters.
    Endpoints,
    /// Certificates, keys and other secrets.
    Secrets,
    /// Policies of endpoints.
    Policies,
    /// Addresses of identities.
    Hosts,
}

impl Kind {
    /// All types, in the order of their numbers.
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Listeners,
        Kind::Routes,
        Kind::Clusters,
        Kind::Endpoints,
        Kind::Secrets,
        Kind::Policies,
        Kind::Hosts,
    ];

    /// Returns the URL of the type.
    pub(crate) fn type_url(self) -> String {
        let of_envoy = |name: &str| format!("type.googleapis.com/envoy.{name}");
        match self {
            Kind::Listeners => listener::Listener::type_url(),
            Kind::Routes => of_envoy("config.route.v3.RouteConfiguration"),
            Kind::Clusters => cluster::Cluster::type_url(),
            Kind::Endpoints => of_envoy("config.endpoint.v3.ClusterLoadAssignment"),
            Kind::Secrets => of_envoy("extensions.transport_sockets.tls.v3.Secret"),
            Kind::Policies => cilium::NetworkPolicy::type_url(),
            Kind::Hosts => cilium::NetworkPolicyHosts::type_url(),
        }
    }
}
